"""Custom ops as plugins: whether an engine uses them, their ONNX file, and their registration before the build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.backends import BACKENDS, list_gpus
from trtkit.errors import BackendError, ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    import onnx

    from trtkit.backends import Backend
    from trtkit.config.schema import ModelConfig


def uses_plugins(config: ModelConfig, backend: str) -> bool:
    """Whether custom ops become plugins. Raises ConfigError if they are required and the backend has none."""
    has_plugins = BACKENDS[backend].features.plugins
    if config.custom_ops.plugins == "always" and not has_plugins:
        fix = "set `never`, which builds each op from standard operators, or use a target with the backend `tensorrt`"
        problem = Problem(f"the backend `{backend}` has no plugins", "custom_ops.plugins", fix)
        raise ConfigError("the config does not fit the backend", [problem])
    return has_plugins and config.custom_ops.plugins != "never"


def reads_pages_in_place(config: ModelConfig, backend: str) -> bool:
    """Whether a language model's attention reads pages in place, in the layers that the plugin supports.

    Raises ConfigError if plugins are required and the backend has none.
    """
    return config.llm is not None and config.llm.kv == "paged" and uses_plugins(config, backend)


def write_plugins(model: onnx.ModelProto, path: Path) -> tuple[tuple[str, ...], str]:
    """Write `model` with plugin nodes, which only TensorRT can parse and run.

    Returns the ops to register and a description. If no node can be a plugin there are no ops, and no file is written.
    """
    from trtkit.network.onnx.io import save_model
    from trtkit.network.onnx.plugins import plugin_names, use_plugins

    copy = type(model)()
    copy.CopyFrom(model)
    detail = use_plugins(copy)
    ops = plugin_names(copy)
    if ops:
        save_model(copy, path)
    return tuple(ops), detail


def register_plugins(backend: Backend, ops: Sequence[str], capabilities: Sequence[int]) -> ModuleType | None:
    """Register plugins before a network with them is parsed or written; return their module, None without plugins.

    capabilities: SM numbers that the engine is for; that of the present GPU if empty. Kernels are compiled for the
    oldest, which newer ones run too. Raises BackendError if no GPU is named or present, or one is too old.
    """
    if not ops:
        return None
    from trtkit.network.aot import COMPUTE_CAPABILITIES
    from trtkit.network.custom_op import find
    from trtkit.network.plugin import define

    present = list(capabilities) or [gpu.compute_capability for gpu in list_gpus()[:1]]
    if not present:
        fix = "use a target with compute capabilities, or set `custom_ops.plugins` to `never`"
        raise BackendError(
            "plugins are compiled for a GPU, but the target names none and none is present", "custom_ops.plugins", fix
        )
    if min(present) < min(COMPUTE_CAPABILITIES):
        what = f"plugin kernels need SM{min(COMPUTE_CAPABILITIES)} or newer; the target is SM{min(present)}"
        raise BackendError(what, "custom_ops.plugins", "set it to `never`")
    module: ModuleType = backend.plugin_module()
    for op in ops:
        define(module, find(op), min(present))
    return module
