"""The GGUF format: every tensor type, and what damaged files say."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from tests.unit.sources.gguf.write_gguf import add_sizes, finish, tiny, write_tensor
from trtkit.errors import ProblemsError, TrtkitError
from trtkit.sources.checkpoint import check_finite
from trtkit.sources.decoder_source import open_gguf
from trtkit.sources.gguf.file import read_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUANTIZED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
STEPS = {"Q8_0": 127, "Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31}
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_quantized_tensors_are_within_a_step_of_what_was_quantized(type_name: str, tmp_path: Path) -> None:
    want = np.random.default_rng(0).normal(size=(3, 7, 64)).astype(np.float32)
    raw = gguf.quants.quantize(want, gguf.GGMLQuantizationType[type_name])
    file = read_gguf(write_tensor(tmp_path / "m.gguf", raw, type_name))
    got = file.stored("x").read()
    assert (got.shape, got.dtype) == (want.shape, np.float32)
    span = np.ptp(want.reshape(-1, 32), 1) if type_name.endswith("1") else np.abs(want.reshape(-1, 32)).max(1)
    error = np.abs(got - want).reshape(-1, 32).max(1)
    assert np.all(error <= 1.01 * span / STEPS[type_name])
    assert np.all(error > 0)
    np.testing.assert_array_equal(file.stored_row("x", 2).read(), got[2])
    assert file.stored_row("x", 2).shape == (7, 64)


@pytest.mark.parametrize("type_name", K_QUANTS)
def test_k_quants_are_dequantized_as_gguf_does(type_name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[type_name]
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(0).integers(0, 60, (5, 2 * block_bytes), np.uint8)  # halves that are small numbers
    file = read_gguf(write_tensor(tmp_path / "m.gguf", raw, type_name))
    got = file.stored("x").read()
    assert got.shape == (5, 512)
    assert np.isfinite(got).all()
    assert got.std() > 0
    np.testing.assert_array_equal(got, gguf.quants.dequantize(raw, kind))


def test_a_q4_k_block_is_its_formula(tmp_path: Path) -> None:
    """Weight = d * scale * q - dmin * min; eight groups of 32, scales and mins in 6 bits (ggml-quants.c)."""
    rng = np.random.default_rng(1)
    scales, mins, q = (rng.integers(0, high, shape) for high, shape in ((64, 8), (64, 8), (16, (8, 32))))
    packed = np.zeros(12, np.uint8)
    packed[:4] = scales[:4] | (scales[4:] >> 4) << 6
    packed[4:8] = mins[:4] | (mins[4:] >> 4) << 6
    packed[8:] = (scales[4:] & 15) | (mins[4:] & 15) << 4
    nibbles = (q[0::2] | q[1::2] << 4).astype(np.uint8).reshape(-1)
    raw = np.concatenate([np.array([0.5, 0.25], np.float16).view(np.uint8), packed, nibbles])
    got = read_gguf(write_tensor(tmp_path / "m.gguf", raw[None], "Q4_K")).stored("x").read()
    want = 0.5 * scales[:, None] * q - 0.25 * mins[:, None]
    np.testing.assert_array_equal(got.reshape(8, 32), want)


@pytest.mark.parametrize(("type_name", "bits"), [("F32", np.float32), ("F16", np.float16), ("BF16", np.uint16)])
def test_plain_tensors_are_views_of_the_mapped_file(type_name: str, bits: Any, tmp_path: Path) -> None:
    want = np.array([[1, -2.5, 0.125]], np.float32)
    raw = want.astype(bits) if type_name != "BF16" else (want.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    stored_array = read_gguf(write_tensor(tmp_path / "m.gguf", raw, type_name)).stored("x")
    np.testing.assert_array_equal(stored_array.read().astype(np.float32), want)
    assert np.shares_memory(stored_array.read(), stored_array.read())


def refused(path: Path) -> str:
    with pytest.raises(TrtkitError) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "m.gguf")


def test_types_that_cannot_be_dequantized_are_named(tmp_path: Path) -> None:
    raw = np.zeros((2, 18), np.uint8)
    assert "m.gguf: tensor `x`: type `IQ4_NL` is not supported; F32, F16, BF16, Q8_0, " in refused(
        write_tensor(tmp_path / "m.gguf", raw, "IQ4_NL")
    )


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tiny(tmp_path / "m.gguf", lambda w: w.add_token_list(["a", "b"]))
    whole = path.read_bytes()
    data_start = len(whole) - 5 * 16 * 4
    for size in [*range(4, data_start, 7), data_start, len(whole) - 1]:
        path.write_bytes(whole[:size])
        expected = f"it ends in its header, at {size} bytes" if size < data_start - 32 else f"{size} bytes, "
        text = refused(path)
        assert text.startswith("m.gguf: the file is truncated: ")
        assert expected in text or size >= data_start - 32
        assert text.endswith("fix: copy or download the file again")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"GGML" + b[4:], "m.gguf: not a GGUF file: it does not start with `GGUF`"),
        (lambda _: b"", "m.gguf: not a GGUF file"),
        (lambda b: b[:4] + struct.pack(">I", 3) + b[8:], "m.gguf: GGUF version 50331648 is not supported"),
        (lambda b: b[:4] + struct.pack("<I", 1) + b[8:], "m.gguf: GGUF version 1 is not supported"),
        (lambda b: b[:8] + struct.pack("<Q", 2**60) + b[16:], "m.gguf: the file is truncated"),
        (lambda b: b[:24] + struct.pack("<Q", 2**60) + b[32:], "m.gguf: the file is truncated"),
        (lambda b: b.replace(b"architecture\x08", b"architecture\x0f"), "metadata type 15 is not known"),
        (lambda b: b.replace(b"architecture", b"\xff\xffchitecture"), "m.gguf: the header is damaged: "),
    ],
)  # fmt: skip
def test_damaged_headers_are_refused(damage: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    path = tiny(tmp_path / "m.gguf")
    path.write_bytes(damage(path.read_bytes()))
    assert message in refused(path)


def test_damaged_weights_are_found(tmp_path: Path) -> None:
    array = np.ones((5, 16), np.float32)
    array[3, 2] = np.nan
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_sizes(writer, {"hidden_size": 16, "num_attention_heads": 4})
    writer.add_tensor("token_embd.weight", array)
    checkpoint = open_gguf(finish(writer, tmp_path / "m.gguf")).checkpoint
    with pytest.raises(ProblemsError, match=re.escape("`model.embed_tokens.weight` has 1 of 80 values")):
        check_finite(checkpoint)
