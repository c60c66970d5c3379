"""Shell completion of arguments: names that trtkit knows, bundles and files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from trtkit.quantization_methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import click

_FILE = re.compile(r"\.(yaml|yml|onnx|gguf)$")
# Rows of the table of GPUs: names after two spaces, below `gpus:`.
_GPU = re.compile(r"^  ([\w.-]+):$", re.MULTILINE)


def configs(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer shipped configs, YAML files and models."""
    return [*_named(_shipped(), incomplete), *_paths(incomplete, has_bundles=False)]


def networks(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer shipped configs, YAML files, models and bundles."""
    return [*_named(_shipped(), incomplete), *_paths(incomplete, has_bundles=True)]


def bundles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer bundles, and folders that may contain them."""
    return [item for item in _paths(incomplete, has_bundles=True) if not _FILE.search(item.value)]


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [CompletionItem(incomplete, type="file")]


def folders(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer folders."""
    return [CompletionItem(incomplete, type="dir")]


def targets(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of targets."""
    return _named((path.stem for path in (_configs_folder() / "targets").glob("*.yaml")), incomplete)


def gpus(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer GPUs for the last name of a comma-separated list."""
    text = (_package() / "planning/gpus.yaml").read_text(encoding="utf-8").partition("\ngpus:\n")[2]
    return _listed(_GPU.findall(text), incomplete)


def methods(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer quantization methods."""
    return _named(METHODS, incomplete)


def fallbacks(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer fallback methods for layers left by a budget."""
    return _named((name for name, method in METHODS.items() if method.is_fallback), incomplete)


def config_keys(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer keys of a config, with `=` after those that take a value."""
    from trtkit.config import ModelConfig
    from trtkit.config.overrides import key_paths

    return _named((f"{key}=" for key in key_paths(ModelConfig)), incomplete)


def serving_keys(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer serving options."""
    from trtkit.config.overrides import key_paths
    from trtkit.deployment.triton.options import DeployOptions

    return _named((f"{key}=" for key in key_paths(DeployOptions)), incomplete)


def _shipped() -> Iterator[str]:
    return (path.stem for path in _configs_folder().glob("*.yaml"))


def _configs_folder() -> Path:
    """Return the folder of shipped configs like `trtkit.config`, whose import is too slow for a key press."""
    installed = _package() / "_configs"
    return installed if installed.is_dir() else _package().parent / "configs"


def _package() -> Path:
    """Return trtkit's folder; a function, since `--help` imports this module too and needs no paths."""
    from pathlib import Path

    return Path(__file__).parents[1]


def _named(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _listed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Offer names for the text after the last comma."""
    before, comma, last = incomplete.rpartition(",")
    named = before.split(",")
    return [CompletionItem(before + comma + item.value) for item in _named(names, last) if item.value not in named]


def _paths(incomplete: str, *, has_bundles: bool) -> Iterator[CompletionItem]:
    """Yield buildable files, bundles, and other folders with a trailing slash."""
    from pathlib import Path

    start, slash, last = incomplete.rpartition("/")
    folder = Path(start + slash).expanduser()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.name.startswith(last) or (path.name.startswith(".") and not last):
            continue
        if path.is_dir():
            is_bundle = (path / "manifest.json").is_file()
            if has_bundles or not is_bundle:
                yield CompletionItem(f"{start}{slash}{path.name}{'' if is_bundle else '/'}")
        elif _FILE.search(path.name):
            yield CompletionItem(f"{start}{slash}{path.name}")
