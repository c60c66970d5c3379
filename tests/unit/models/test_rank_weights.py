"""One rank's weights are the rows and columns of the whole model's, in every quantized form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np
import pytest

from trtkit.errors import ConfigError
from trtkit.models.attention import AttentionSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec, RoutingSpec
from trtkit.models.parallel import Grid, check_grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.spec import BlockSpec, DecoderSpec, HeadSpec, LayerSpec, Share
from trtkit.models.weights import model_weights
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_matrix import QuantizedMatrix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.quantization_methods import Format

RMS = NormSpec("rms", 1e-5)
ATTENTION = AttentionSpec(8, 2, 16, 0.25)
RANDOM = np.random.default_rng(0)


def decoder(attention: AttentionSpec = ATTENTION, feed_forward: MlpSpec | MoeSpec | None = None) -> DecoderSpec:
    names = {
        path: path
        for path in ("embedding", "lm_head", "final_norm", "layers.{i}.attention_norm", "layers.{i}.mlp_norm")
    }
    modules = ("attention.q", "attention.k", "attention.v", "attention.o", "attention.qkv", "attention.sinks")
    names |= {f"layers.{{i}}.{module}": f"layers.{{i}}.{module}" for module in modules}
    names |= {f"layers.{{i}}.mlp.{name}": f"layers.{{i}}.mlp.{name}" for name in ("gate", "up", "down", "gate_up")}
    layers = (LayerSpec(attention, feed_forward or MlpSpec(256, "silu")),) * 3
    return DecoderSpec("llama", 67, 128, 64, layers, BlockSpec(RMS), HeadSpec(RMS, is_tied=False), names)


def arrays_of(spec: DecoderSpec) -> dict[str, Array]:
    return {weight.path: RANDOM.normal(size=weight.shape).astype(np.float32) for weight in model_weights(spec)}


def shares(spec: DecoderSpec, arrays: Mapping[str, Any], grid: Grid) -> list[RankWeights]:
    return [RankWeights(spec, rank_spec(spec, grid, rank), arrays) for rank in range(grid.ranks)]


def test_rows_and_columns_of_all_ranks_are_the_whole() -> None:
    spec = decoder(replace(ATTENTION, has_sinks=True))
    arrays = arrays_of(spec)
    ranks = shares(spec, dict(arrays), Grid(2))
    for path, axis in (("q", 0), ("k", 0), ("v", 0), ("o", 1)):
        name = f"layers.1.attention.{path}.weight"
        assert np.array_equal(np.concatenate([rank[name] for rank in ranks], axis), arrays[name])
    sinks = "layers.0.attention.sinks"
    assert np.array_equal(np.concatenate([rank[sinks] for rank in ranks]), arrays[sinks])
    table = np.concatenate([rank["embedding.weight"] for rank in ranks])
    assert np.array_equal(table[:67], arrays["embedding.weight"])
    assert table.shape == (68, 128)


def test_rows_of_a_file_are_mapped_and_others_do_not_keep_the_whole(tmp_path: Path) -> None:
    """A rank's memory is that of its share: of a matrix in memory it holds a copy of its rows."""
    spec, path = decoder(), "layers.0.mlp.gate.weight"
    arrays = arrays_of(spec)
    np.save(tmp_path / "gate.npy", arrays[path])
    mapped = np.load(tmp_path / "gate.npy", mmap_mode="r")
    share = shares(spec, {**arrays, path: mapped}, Grid(2))[1][path]
    assert np.shares_memory(share, mapped)
    copied = shares(spec, dict(arrays), Grid(2))[1][path]
    assert isinstance(copied, np.ndarray)
    assert np.array_equal(copied, share)
    assert copied.base is None
    quantized = shares(spec, {**arrays, path: matrix("int4", 256, 128)}, Grid(2))[1][path]
    assert isinstance(quantized, QuantizedMatrix)
    assert quantized.codes.base is None
    assert quantized.codes.shape == (128, 64)


@pytest.mark.parametrize("layout", ["concatenated", "grouped"])
@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_fused_projections_are_cut_by_head(layout: Literal["concatenated", "grouped"], tensor: int) -> None:
    """Each row holds the number of its head: query heads from 0, key heads from 100, value heads from 200 on."""
    spec = decoder(replace(ATTENTION, qkv=layout))
    if layout == "concatenated":
        heads = [*range(8), 100, 101, 200, 201]
    else:
        heads = [*range(4), 100, 200, *range(4, 8), 101, 201]
    arrays = arrays_of(spec)
    name = "layers.2.attention.qkv.weight"
    arrays[name] = np.repeat(np.array(heads, np.float32), 16)[:, None] * np.ones((1, 128), np.float32)
    for rank, weights in enumerate(shares(spec, dict(arrays), Grid(tensor))):
        own = range(rank * 8 // tensor, (rank + 1) * 8 // tensor)
        groups = sorted({head // 4 for head in own})
        held = np.asarray(weights[name])[::16, 0].tolist()
        assert sorted(held) == [*own, *(100 + group for group in groups), *(200 + group for group in groups)]
        assert held[0] == own.start


def matrix(kind: Format, out: int, size: int, block: int = 32) -> QuantizedMatrix:
    """Return a random matrix of a format, with a scale for each block, or for each row."""
    columns = size // 2 if FORMATS[kind].dtype.bits == 4 else size
    codes = RANDOM.integers(0, 100, (out, columns)).astype(np.uint8)
    if kind in ("fp8", "mxfp8"):
        codes = codes.view(ml_dtypes.float8_e4m3fn)
    elif kind == "int8":
        codes = codes.view(np.int8)
    scales = RANDOM.uniform(0.5, 1, (out, size // block) if block else (out,)).astype(np.float32)
    return QuantizedMatrix(kind, codes, scales, input_factors=RANDOM.uniform(1, 2, size).astype(np.float32))


def quantized_forms() -> Iterator[QuantizedMatrix]:
    yield matrix("int4", 128, 256)
    yield replace(matrix("int4", 128, 256), offsets=RANDOM.normal(size=(128, 8)).astype(np.float32))
    yield matrix("fp4", 128, 256, 16)
    yield matrix("int8", 128, 256, 0)
    yield matrix("fp8", 128, 256, 128)


@pytest.mark.parametrize("whole", quantized_forms(), ids=lambda each: f"{each.format}-{each.block}")
def test_columns_of_a_quantized_matrix_are_those_of_its_weights(whole: QuantizedMatrix) -> None:
    for part in (range(128), range(128, 256)):
        assert np.array_equal(whole.column_range(part).weights(), whole.weights()[:, part.start : part.stop])
    assert np.array_equal(whole.rows(slice(64, 128)).weights(), whole.weights()[64:])


def test_a_split_inside_a_block_is_refused_by_name() -> None:
    spec = decoder()
    path = "layers.0.attention.o.weight"
    arrays = {**arrays_of(spec), path: matrix("int4", 128, 128, 64)}
    ranks = shares(spec, arrays, Grid(4))
    message = r"`parallel.tensor` splits `layers.0.attention.o.weight`"
    with pytest.raises(ConfigError, match=message) as refused:
        ranks[1][path]
    assert refused.value.problems[0].what == "inputs 32 to 63 of 128 split a block of 64"
    assert refused.value.fix == "quantize with smaller blocks, or use fewer ranks"


def test_columns_in_the_order_of_activations_are_refused() -> None:
    spec = decoder()
    path = "layers.0.mlp.down.weight"
    arrays = {**arrays_of(spec), path: replace(matrix("int4", 128, 256), columns=np.arange(256)[::-1].copy())}
    with pytest.raises(ConfigError) as refused:
        shares(spec, arrays, Grid(2))[0][path]
    assert "act-order" in refused.value.problems[0].what


@pytest.mark.parametrize(
    ("grid", "where", "what", "fix"),
    [
        (Grid(3), "parallel.tensor", "3: does not divide 8 query and 2 key/value heads", "use one of 1, 2, 4, 8"),
        (Grid(1, 2), "parallel.expert", "the model is not a mixture of experts", "remove it"),
        (Grid(1, 1, 4), "parallel.pipeline", "4: the model has 3 layers", "use one of 1, 2, 3"),
    ],
    ids=str,
)
def test_what_ranks_cannot_share_is_refused(grid: Grid, where: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_grid(decoder(), grid, "config.json")
    problem = refused.value.problems[0]
    assert problem.where == where
    assert problem.what.startswith(what)
    assert problem.fix == fix


def test_experts_that_ranks_cannot_share_are_refused() -> None:
    spec = decoder(feed_forward=MoeSpec(6, RoutingSpec(2), MlpSpec(64, "silu")))
    with pytest.raises(ConfigError) as refused:
        check_grid(spec, Grid(1, 4), "config.json")
    assert refused.value.problems[0].what == "4: must divide the number of experts, 6"
    assert refused.value.problems[0].fix == "use one of 1, 2, 3, 6"


def test_a_layer_norm_over_all_heads_is_refused() -> None:
    attention = replace(ATTENTION, qk_norm="all", norm=NormSpec("layer", 1e-5))
    with pytest.raises(ConfigError) as refused:
        check_grid(decoder(attention), Grid(2), "config.json")
    assert refused.value.problems[0].what == "a layer norm over all heads cannot be shared by ranks"


def test_shares_cover_everything_once() -> None:
    for size in (7, 8, 30):
        for count in (1, 2, 3, 4):
            parts = [Share(index, count).of(size) for index in range(count)]
            assert [each for part in parts for each in part] == list(range(size))


def test_the_first_pipeline_stages_are_the_longer_ones() -> None:
    spec = decoder()
    held = [rank_spec(spec, Grid(1, 1, 2), rank) for rank in (0, 1)]
    assert [(each.first_layer, len(each.layers)) for each in held] == [(0, 2), (2, 1)]
    paths = [{weight.path for weight in model_weights(each)} for each in held]
    assert "embedding.weight" in paths[0] - paths[1]
    assert {"lm_head.weight", "final_norm.weight"} <= paths[1] - paths[0]
