"""Whether memory and disk can hold a build, asked before it starts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import BuildError

if TYPE_CHECKING:
    from trtkit.dtypes import DType

# Next to the weights: Python, TensorRT and the buffers of a build.
_BASE_MEMORY_BYTES = 600 * 2**20
# Times the fp32 weights that an export to ONNX and its care take at least. ViT-B/16 took 9.3 times, 15.5 in fp16; large
# models skip steps that ONNX's limit of 2 GiB does not allow.
_EXPORT_COPIES = 4
# Plans and ONNX files hold more than weights.
_FILE_FACTOR = 1.05


@dataclass(frozen=True)
class BuildLoad:
    """What a build has to hold.

    engine_bytes: weights in the engines' type. exported: how many go through ONNX. file_bytes: theirs in ONNX files.
    layer_bytes: weights that the bundle holds once more, for the reference executor, since they are not in the source
        as the network has them: those that change type or go through ONNX.
    """

    engine_bytes: int
    exported: int = 0
    file_bytes: int = 0
    layer_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Needed at least. The builder copies the weights once; export and build are one after the other."""
        return max(2 * self.engine_bytes, _EXPORT_COPIES * 4 * self.exported) + _BASE_MEMORY_BYTES

    @property
    def disk_bytes(self) -> int:
        """Needed for plans, ONNX files and layers."""
        return int(_FILE_FACTOR * (self.engine_bytes + self.file_bytes + self.layer_bytes))


def hybrid_load(parameters: int, exported: int, dtype: DType, converted: int = 0) -> BuildLoad:
    """Return what a model is, some of whose weights go through ONNX. dtype: of the engines.

    converted: how many of the others are stored in another type.
    """
    file_bytes = dtype.size_bytes(exported)
    return BuildLoad(dtype.size_bytes(parameters), exported, file_bytes, dtype.size_bytes(exported + converted))


def check_room(load: BuildLoad, folder: Path) -> None:
    """Refuse a build that memory or the disk of `folder` cannot hold, before it starts. Raises BuildError."""
    needed, available = load.memory_bytes, _available_memory_bytes()
    if available is not None and needed > available:
        what = f"about {_gib(needed)} GiB of memory needed, {_gib(available)} GiB free"
        raise BuildError(what, fix="free some memory, or build on a machine with more")
    free = shutil.disk_usage(folder).free
    if load.disk_bytes > free:
        what = f"about {_gib(load.disk_bytes)} GiB of disk space needed, {_gib(free)} GiB free"
        raise BuildError(what, str(folder), "free space, or choose another `--output`")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f}" if size_bytes >= 2**30 / 10 else f"{size_bytes / 2**30:.4f}"


def _available_memory_bytes() -> int | None:
    """Return what the system says is available, None if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    available = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(available.split()[1]) * 1024 if available else None
