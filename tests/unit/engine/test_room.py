from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trtkit.dtypes import FP16, FP32
from trtkit.engine.room import Load, check_room, hybrid_load
from trtkit.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def test_a_build_that_fits_passes(tmp_path: Path) -> None:
    check_room(Load(GIB // 100), tmp_path)


def test_memory_is_of_the_builder_or_of_the_export_whichever_is_more() -> None:
    base = Load(0).memory_bytes
    assert Load(3 * GIB).memory_bytes == base + 6 * GIB
    assert hybrid_load(1000, 0, FP32).memory_bytes == base + 8000
    assert hybrid_load(1000, 900, FP16).memory_bytes == base + 4 * 3600
    assert hybrid_load(1000, 900, FP16).disk_bytes == int(1.05 * (2000 + 1800))


def test_what_memory_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"about 2048\d\.\d GiB of memory needed, \d+\.\d+ GiB free"):
        check_room(Load(10 * 2**40), tmp_path)


def test_what_the_disk_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"about 10752\.0 GiB of disk space needed, \d+\.\d+ GiB free") as caught:
        check_room(Load(0, 0, 10 * 2**40), tmp_path)
    assert caught.value.where == str(tmp_path)
    assert caught.value.fix == "free space, or choose another `--output`"
