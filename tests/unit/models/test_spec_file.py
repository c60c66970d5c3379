"""A decoder's spec in a bundle is the one that its network was written from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of
from trtkit.errors import BundleError
from trtkit.models.spec_file import SPEC, read_spec, write_spec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_read_is_what_was_written(case: Case, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_spec(model_of(case).spec, tmp_path)
    assert read_spec(tmp_path) == model_of(case).spec


def test_a_damaged_spec_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(BundleError, match=r"spec\.json: cannot be read: No such file"):
        read_spec(tmp_path)
    write_spec(model_of(CASES[0]).spec, tmp_path)
    data = json.loads((tmp_path / SPEC).read_text())
    del data["layers"][0]["mixer"]["head_dim"]
    (tmp_path / SPEC).write_text(json.dumps(data))
    with pytest.raises(BundleError, match="`head_dim` is missing"):
        read_spec(tmp_path)
