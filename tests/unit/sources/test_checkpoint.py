"""Weights out of safetensors: values, laziness, and what damaged files say."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from trtkit.errors import ProblemsError, SourceError
from trtkit.sources.checkpoint import Checkpoint, StoredArray, check_finite
from trtkit.sources.safetensors_file import INDEX, read_folder, read_safetensors

if TYPE_CHECKING:
    from pathlib import Path

TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def write_raw(path: Path, header: Any, data: bytes = b"") -> Path:
    """Write a safetensors file byte by byte; header: an object, or text as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_shards(folder: Path, shards: dict[str, dict[str, torch.Tensor]]) -> None:
    """Write shards and their index."""
    for name, arrays in shards.items():
        save_file(arrays, folder / name)
    weight_map = {array: name for name, arrays in shards.items() for array in arrays}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def refused(folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        read_folder(folder)
    return str(caught.value)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_reads_as_torch_wrote_it(name: str, tmp_path: Path) -> None:
    values = torch.arange(-3, 4).abs().reshape(7, 1) * torch.tensor([[0.0, 1.0, 1.5]])
    want = values.to(TYPES[name])
    save_file({"other": torch.ones(3), "x": want}, tmp_path / "m.safetensors")
    got = read_safetensors(tmp_path / "m.safetensors")["x"].read()
    assert (str(got.dtype), got.shape) == (name, (7, 3))
    np.testing.assert_array_equal(got.astype(np.float64), want.double().numpy())


def test_arrays_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(4)}, tmp_path / "m.safetensors")
    first, second = (read_safetensors(tmp_path / "m.safetensors")["x"] for _ in range(2))
    assert np.shares_memory(first.read(), first.read())
    with (tmp_path / "m.safetensors").open("r+b") as file:
        file.seek(-16, 2)
        file.write(np.float32(7).tobytes())
    assert first.read()[0] == second.read()[0] == 7


def test_scalars_empty_arrays_and_odd_addresses_read(tmp_path: Path) -> None:
    header = {
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "empty": {"dtype": "F16", "shape": [0, 5], "data_offsets": [4, 4]},
        "odd": {"dtype": "F32", "shape": [2], "data_offsets": [5, 13]},
        "__metadata__": {"format": "pt"},
    }
    data = np.float32(2.5).tobytes() + b"\0" + np.array([1, -2], np.float32).tobytes()
    arrays = read_safetensors(write_raw(tmp_path / "m.safetensors", header, data))
    assert list(arrays) == ["scalar", "empty", "odd"]
    assert arrays["scalar"].read() == np.float32(2.5)
    assert arrays["empty"].read().shape == (0, 5)
    odd = arrays["odd"].read()
    assert odd.tolist() == [1, -2]
    assert odd.flags.aligned


def test_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a.safetensors": {"x": torch.ones(2)}, "b.safetensors": {"y": torch.full((3,), 2.0)}})
    arrays, files = read_folder(tmp_path)
    assert {name: stored.read().tolist() for name, stored in arrays.items()} == {"x": [1, 1], "y": [2, 2, 2]}
    assert [file.name for file in files] == [INDEX, "a.safetensors", "b.safetensors"]


def test_a_file_beside_the_index_is_left_alone(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a.safetensors": {"x": torch.ones(2)}})
    save_file({"x": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    assert read_folder(tmp_path)[0]["x"].read().tolist() == [1, 1]


def test_a_single_file_is_taken_before_an_index_as_transformers_takes_it(tmp_path: Path) -> None:
    model = transformers.GPT2Model(transformers.GPT2Config(n_embd=4, n_head=1, n_layer=1, vocab_size=5, n_positions=3))
    model.save_pretrained(tmp_path)
    write_shards(tmp_path, {"a.safetensors": {name: 0.5 * value for name, value in model.state_dict().items()}})
    expected = transformers.GPT2Model.from_pretrained(tmp_path).wte.weight.tolist()
    arrays, files = read_folder(tmp_path)
    assert arrays["wte.weight"].read().tolist() == expected
    assert [file.name for file in files] == ["model.safetensors"]


def test_names_and_shapes_are_known_without_reading() -> None:
    def read() -> Any:
        raise AssertionError("this was not to be read")

    checkpoint = Checkpoint({"x": StoredArray((2, 3), read)})
    assert ("x" in checkpoint, "y" in checkpoint, list(checkpoint), len(checkpoint)) == (True, False, ["x"], 1)
    assert checkpoint.shape_of("x") == (2, 3)
    with pytest.raises(AssertionError, match="not to be read"):
        checkpoint["x"]
    with pytest.raises(KeyError):
        checkpoint["y"]


def test_missing_shards_are_all_named(tmp_path: Path) -> None:
    one = {"x": torch.ones(2)}
    write_shards(tmp_path, {"a.safetensors": one, "b.safetensors": {"y": one["x"]}, "c.safetensors": {"z": one["x"]}})
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "c.safetensors").unlink()
    assert refused(tmp_path) == (
        f"{tmp_path / INDEX}: 2 of 3 shards are missing: `a.safetensors`, `c.safetensors`\n"
        f"fix: put them into {tmp_path}"
    )


def test_a_shard_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"weight_map": {"x": "../m.safetensors"}}')
    assert "shard `../m.safetensors` is outside the folder" in refused(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}'])
def test_an_index_without_weight_map_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    assert refused(tmp_path).startswith(f"{tmp_path / INDEX}: `weight_map` is missing\nfix: ")


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"weight_map": ')
    assert refused(tmp_path).startswith(f"{tmp_path / INDEX}: not valid JSON: Expecting value")


def test_an_index_that_its_shard_contradicts_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a.safetensors": {"x": torch.ones(2), "y": torch.ones(2)}})
    save_file({"x": torch.ones(2)}, tmp_path / "a.safetensors")
    assert refused(tmp_path) == (
        f"{tmp_path / INDEX}: 1 tensors are not in the shard that the index names, the first is `y` in `a.safetensors`"
        "\nfix: take index and shards from the same source"
    )


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"x": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    assert refused(tmp_path) == (
        f"{tmp_path}: tensor `x` is in two files: `a.safetensors` and `b.safetensors`"
        "\nfix: remove the file that is not the model's"
    )


def test_a_truncated_file_says_how_much_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(100), "y": torch.ones(100)}, path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4])
    assert refused(tmp_path) == (
        f"{path}: the file is truncated: {size - 4} bytes, {size} needed; 1 tensors are cut off, the first is `y`"
        "\nfix: copy or download the file again"
    )


@pytest.mark.parametrize("kept", [0, 4, 8, 30])
def test_a_file_cut_inside_its_header_is_refused(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path}: not a safetensors file, or a truncated one: {kept} bytes" in refused(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{oops}", "the header is damaged: Expecting property name"),
        (b"\xff\xfe{}", "the header is damaged: "),
        (b"[1]", "the header is damaged: it is not a JSON object"),
        ({"x": 3}, "tensor `x`: the header's entry is damaged"),
        ({"x": {"dtype": "F32", "shape": [1]}}, "tensor `x`: the header's entry is damaged"),
        ({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "tensor `x`: the header's entry is damaged"),
        ({"x": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, "tensor `x`: type `F31` is not known"),
        (
            {"x": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 20]}},
            "tensor `x`: F32 of shape [3, 2] takes 24 bytes, the header gives it 20",
        ),
        (
            {"x": {"dtype": "F32", "shape": [1], "data_offsets": [2**40, 2**40 + 4]}},
            "the file is truncated: ",
        ),
    ],
)
def test_a_damaged_header_says_where(header: Any, message: str, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "model.safetensors", header, bytes(32))
    text = refused(tmp_path)
    assert text.startswith(f"{path}: ")
    assert message in text


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused_with_the_command_that_converts_them(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02}.")
    assert refused(tmp_path) == (
        f"{tmp_path}: the weights are pickles (`{name}`), which can run code when they are read\n"
        "fix: convert them to safetensors: python -c 'import sys, transformers as t; f = sys.argv[1]; "
        f"t.AutoModelForCausalLM.from_pretrained(f).save_pretrained(f)' {tmp_path}"
    )


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"{tmp_path}: no safetensors file in the folder\nfix: download the model's *.safetensors too"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_weights_that_are_not_finite_are_all_named(dtype: Any) -> None:
    fine = np.ones((3, 5), dtype)
    bad, worse = fine.copy(), fine.copy()
    bad[2, 4] = np.nan
    worse[0, 0], worse[1] = -np.inf, np.inf
    with pytest.raises(ProblemsError) as caught:
        check_finite({"fine": fine, "bad": bad, "worse": worse, "ids": np.arange(3)}, "m.safetensors")
    assert str(caught.value).splitlines()[:3] == [
        "weights that are not finite numbers",
        "  m.safetensors: `bad` has 1 of 15 values that are NaN or infinite",
        "  m.safetensors: `worse` has 6 of 15 values that are NaN or infinite",
    ]


def test_only_twenty_bad_weights_are_listed() -> None:
    with pytest.raises(ProblemsError) as caught:
        check_finite({f"w{i}": np.array(np.nan, np.float32) for i in range(23)})
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-2]) == (23, "  and 3 more")


def test_finite_weights_of_any_layout_pass() -> None:
    check_finite({"empty": np.empty((0, 3)), "scalar": np.float32(1).reshape(()), "turned": np.ones((7, 9)).T})


def test_checking_takes_little_memory() -> None:
    array = np.ones((64, 1 << 20), np.float16)  # 128 MiB
    array[-1, -1] = np.inf
    tracemalloc.start()
    with pytest.raises(ProblemsError) as caught:
        check_finite({"large": array})
    assert caught.value.problems[0].what == "`large` has 1 of 67108864 values that are NaN or infinite"
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
