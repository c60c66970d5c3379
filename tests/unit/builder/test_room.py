from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from trtkit.builder.build import build_bundle
from trtkit.builder.decoders import converted_bytes, open_decoder
from trtkit.builder.room import BuildLoad, check_room, hybrid_load
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import FP16, FP32
from trtkit.errors import BuildError
from trtkit.jobs.runner import new_runner
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def test_a_build_that_fits_passes(tmp_path: Path) -> None:
    check_room(BuildLoad(GIB // 100), tmp_path)


def test_memory_is_of_the_builder_or_of_the_export_whichever_is_more() -> None:
    base = BuildLoad(0).memory_bytes
    assert BuildLoad(3 * GIB).memory_bytes == base + 6 * GIB
    assert hybrid_load(1000, 0, FP32).memory_bytes == base + 8000
    assert hybrid_load(1000, 900, FP16).memory_bytes == base + 4 * 3600
    assert hybrid_load(1000, 900, FP16).disk_bytes == int(1.05 * (2000 + 1800 + 1800))
    assert hybrid_load(1000, 900, FP16, converted=80).disk_bytes == int(1.05 * (2000 + 1800 + 1960))


@pytest.mark.parametrize(("precision", "is_stored_again"), [("fp32", False), ("fp16", True), ("bf16", True)])
def test_weights_that_change_type_are_counted_as_the_bundle_stores_them(
    precision: str, is_stored_again: bool, tmp_path: Path
) -> None:
    tiny_llm.save(tmp_path / "hf")
    fields = {"name": "m", "source": {"hf": str(tmp_path / "hf")}, "precision": precision}
    bundle = build_bundle(ModelConfig.model_validate(fields), tmp_path / "m", new_runner()).bundle
    counted = converted_bytes(open_decoder(resolve(bundle.manifest.config)))
    (stage,) = bundle.manifest.stages
    assert stage.layers is not None
    stored = 0 if stage.layers.weights is None else stage.layers.weights.size_bytes
    assert (counted > 0) == is_stored_again
    assert counted <= stored
    assert stored <= 1.1 * counted or not is_stored_again


def test_what_memory_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"about 2048\d\.\d GiB of memory needed, \d+\.\d+ GiB free"):
        check_room(BuildLoad(10 * 2**40), tmp_path)


def test_what_the_disk_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"about 10752\.0 GiB of disk space needed, \d+\.\d+ GiB free") as caught:
        check_room(BuildLoad(0, 0, 10 * 2**40), tmp_path)
    assert caught.value.where == str(tmp_path)
    assert caught.value.fix == "free space, or choose another `--output`"
