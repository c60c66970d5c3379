"""Instructions of compiled kernels from NVIDIA's disassembler, which needs no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

_LABEL = re.compile(r"\s*\.(L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/.*;")
_BRANCH = re.compile(r"\bBRA\b.*`\(\.(L_x_\d+)\)")


def instructions_of_loops(cubin: bytes) -> list[int]:
    """Return the number of instructions of each innermost loop, in order. (A jump to itself ends a kernel.)"""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        text = subprocess.run([str(tool), "-c", file.name], capture_output=True, text=True, check=True).stdout
    starts, loops, count = dict[str, int](), list[tuple[int, int]](), 0
    for line in text.splitlines():
        if label := _LABEL.match(line):
            starts[label[1]] = count
        elif _INSTRUCTION.search(line):
            count += 1
            branch = _BRANCH.search(line)
            if branch is not None and branch[1] in starts:
                loops.append((starts[branch[1]], count))
    inner = [loop for loop in loops if not any(_is_inside(other, loop) for other in loops)]
    return [stop - start for start, stop in inner if stop - start > 1]


def _is_inside(loop: tuple[int, int], other: tuple[int, int]) -> bool:
    return loop != other and other[0] <= loop[0] and loop[1] <= other[1]
