"""Creation of a PyTorch module: import its factory, call it, load its checkpoint."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError, TrtkitError
from trtkit.sources import package_file
from trtkit.sources.package_file import add_folder_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from trtkit.config.schema import TorchSource

_LONGEST_REASON = 300


def make_module(source: TorchSource, requires: str | None = None) -> torch.nn.Module:
    """Call the factory, load the checkpoint and switch to evaluation."""
    factory = _import_factory(source.factory, requires)
    try:
        module: torch.nn.Module = factory(**source.kwargs)
    except TypeError as error:
        raise SourceError(f"`{source.factory}` does not take these kwargs: {error}", "source.torch.kwargs") from error
    except TrtkitError:
        raise
    except Exception as error:  # the user's code
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:_LONGEST_REASON]
        fix = "if it downloads weights, fetch them first and name the file in `source.torch.checkpoint`"
        raise SourceError(
            f"the factory failed: {reason}", source.factory, fix if isinstance(error, OSError) else ""
        ) from error
    if source.checkpoint is not None:
        _load_checkpoint(module, package_file.resolve(source.checkpoint, requires))
    return module.eval()


def _import_factory(name: str, requires: str | None) -> Any:
    """Return the callable `package.module:callable`."""
    module_name, _, attribute = name.partition(":")
    install = package_file.install_line(requires) or "install its package, or correct the name"
    add_folder_of(module_name)
    try:
        module = importlib.import_module(module_name)
        return functools.reduce(getattr, attribute.split("."), module)
    except ImportError as error:
        raise SourceError(f"factory module `{module_name}` does not import: {error}", name, install) from error
    except AttributeError as error:
        raise SourceError(f"`{module_name}` has no `{attribute}`", name, "correct `source.torch.factory`") from error


def _load_checkpoint(module: torch.nn.Module, path: Path) -> None:
    """Load a state dict strictly; pickled code is refused."""
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise SourceError(
                "the checkpoint is not a plain state dict of tensors", str(path), "save it as safetensors"
            ) from error
    state = state.get("state_dict", state)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        detail = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise SourceError(f"the checkpoint does not fit the module: {detail}", str(path)) from error
