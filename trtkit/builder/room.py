"""Check before a build whether memory and disk suffice."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import BuildError

if TYPE_CHECKING:
    from trtkit.dtypes import DType

# In addition to the weights: Python, TensorRT and the buffers of a build.
_BASE_MEMORY_BYTES = 600 * 2**20
# Lower bound for the memory of an export to ONNX, in copies of the fp32 weights. ViT-B/16 took 9.3, 15.5 in fp16; large
# models skip steps because of ONNX's limit of 2 GiB.
_EXPORT_COPIES = 4
# Upper bound for the memory of one rank's build, in copies of its weights: 3.3 to 4.1 were measured
# (benchmarks/results/rank_build.json).
_RANK_COPIES = 5
# Plans and ONNX files hold more than the weights.
_FILE_FACTOR = 1.05


@dataclass(frozen=True)
class BuildLoad:
    """What a build needs room for.

    engine_bytes: weights in the engines' type.
    exported: number of parameters exported through ONNX.
    file_bytes: their size in ONNX files.
    layer_bytes: weights stored in the bundle again for the reference executor, because the source does not have them as
        in the network: they change type or are exported through ONNX.
    """

    engine_bytes: int
    exported: int = 0
    file_bytes: int = 0
    layer_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Minimum memory. The builder copies the weights once; export and build run one after the other."""
        return max(2 * self.engine_bytes, _EXPORT_COPIES * 4 * self.exported) + _BASE_MEMORY_BYTES

    @property
    def disk_bytes(self) -> int:
        """Disk space for plans, ONNX files and layers."""
        return int(_FILE_FACTOR * (self.engine_bytes + self.file_bytes + self.layer_bytes))


def hybrid_load(parameters: int, exported: int, dtype: DType, converted: int = 0) -> BuildLoad:
    """Return the load of a model with `parameters` in all, `exported` of them through ONNX. dtype: of the engines.

    converted: how many of the others change type.
    """
    file_bytes = dtype.size_bytes(exported)
    return BuildLoad(dtype.size_bytes(parameters), exported, file_bytes, dtype.size_bytes(exported + converted))


def check_room(load: BuildLoad, folder: Path) -> None:
    """Refuse a build that exceeds memory or the disk of `folder`, before it starts. Raises BuildError."""
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


def ranks_at_once(rank_bytes: int, threads: int) -> int:
    """Return how many ranks can be built side by side: with a core per builder thread, and memory for all.

    rank_bytes: a rank's weights. threads: of each builder.
    """
    count = len(os.sched_getaffinity(0)) // threads
    if (available := _available_memory_bytes()) is not None:
        count = min(count, available // (_RANK_COPIES * rank_bytes + _BASE_MEMORY_BYTES))
    return max(1, count)


def _available_memory_bytes() -> int | None:
    """Return the available memory as the system reports it; None if it does not."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    available = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(available.split()[1]) * 1024 if available else None
