"""Damaged .npz files end in a SourceError: never in another exception, a hang or much memory."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.fuzz import byte_changes, must_end
from trtkit.errors import SourceError
from trtkit.inputs import samples
from trtkit.inputs.samples import read_npz

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=lambda save: save.__name__)
def test_changed_bytes(save: object, tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    assert callable(save)
    save(file, x=np.arange(12.0).reshape(3, 4), y=np.array([True, False]))
    assert sorted(read_npz(file)) == ["x", "y"]
    for changed in byte_changes(file.read_bytes(), 250):
        file.write_bytes(changed)
        must_end(lambda: read_npz(file), changed)


def test_an_archive_that_expands_a_thousandfold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_ALWAYS_EXPANDED", 1 << 20)
    file = tmp_path / "in.npz"
    np.savez_compressed(file, x=np.zeros(1 << 18))
    with pytest.raises(SourceError) as caught:
        read_npz(file)
    assert str(caught.value) == (
        f"{file}: {file.stat().st_size} bytes expand to {(2 << 20) + 128}\n"
        "fix: save it with numpy.savez, which does not compress"
    )


def test_an_array_that_says_it_is_larger_than_its_entry_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(SourceError) as caught:
        read_npz(file)
    assert str(caught.value) == (
        f"{file}: array `x.npy` is to be float64 of shape [1000000000000], it has {10 + len(header)} bytes\n"
        "fix: save it with numpy.savez"
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.npz")
    with pytest.raises(SourceError, match="Not a regular file"):
        read_npz(tmp_path / "in.npz")
