"""The plan of a model that reads active neurons only, against what the network that is built moves and computes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.decoder_case import NO_SIZE, Case
from tests.support.decoder_cases import case
from tests.support.decoders import T, model_of, rtx
from tests.unit.planning.planned import counted
from trtkit.builder.active_neurons import with_active_blocks
from trtkit.config.llm import LlmOptions, SparseFfnOptions
from trtkit.config.schema import ModelConfig, Source
from trtkit.dtypes import FP16
from trtkit.errors import ConfigError
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.describe import describe
from trtkit.planning.count_decoder import _network, group_of
from trtkit.planning.traffic import network_cost
from trtkit.quantized_model import QuantizedModel

OPT = case("opt-sparse", "opt", *NO_SIZE, hidden_size=48, ffn_dim=1200, word_embed_proj_dim=48)
REGLU = case("reglu-sparse", "llama", hidden_act="relu", hidden_size=48, intermediate_size=900)
KEEP = 100


@pytest.mark.parametrize("tokens", [1, 3, 5])
@pytest.mark.parametrize("which", [OPT, REGLU], ids=str)
def test_a_step_costs_what_the_network_that_is_built_does(which: Case, tokens: int) -> None:
    """Of 1,200 and 900 neurons: three tokens read 100 for each, and five read all."""
    model, point = model_of(which), (tokens, 1, T)
    options = SparseFfnOptions(keep=KEEP, block=1)
    config = ModelConfig(source=Source(hf="/nowhere"), llm=LlmOptions(sparse_ffn=options))
    spec = with_active_blocks(model.spec, config)
    mlp: Any = spec.layers[0].feed_forward
    graph = _network(rtx(), spec, DecoderOptions(FP16, T), QuantizedModel({}))
    shapes = {item.name: item.shape_at({"batch": tokens, "new_tokens": 1}) for item in graph.inputs}
    built = network_cost(describe(rtx(), graph.network, shapes), group_of)
    step = counted(model.config, sparse_ffn=options).of_step(point)
    products = next(group for group in step.groups if group.name == "mlp")
    assert products.flops.at(point) == pytest.approx(built.groups["mlp"].flops, rel=1e-3)
    numbers = 2 * 4 * mlp.active.count_of(mlp.intermediate_size)  # of blocks, as constants of both layers
    assert step.fused_bytes.at(point) + numbers == pytest.approx(built.fused_bytes, abs=400)


def test_all_rows_are_read_for_many_tokens_and_in_other_formats() -> None:
    sparse, dense = counted(model_of(OPT).config, sparse_ffn=SparseFfnOptions(keep=KEEP)), counted(model_of(OPT).config)
    rows = 2 * 2 * 1200 * 48  # of `down` alone, two layers in fp16
    for tokens, share in ((1, KEEP / 1200), (4, 4 * KEEP / 1200), (5, 1.0), (64, 1.0)):
        saved = dense.fused_bytes.at((tokens, 1, T)) - sparse.of_step((tokens, 1, T)).fused_bytes.at((tokens, 1, T))
        assert saved == round(rows * (1 - share))
    assert sparse.bends_at == 5
    assert dense.active is None


def test_what_cannot_be_built_is_not_planned() -> None:
    with pytest.raises(ConfigError) as refused:
        counted({**model_of(REGLU).config, "hidden_act": "silu"}, sparse_ffn=SparseFfnOptions(keep=3))
    assert "layer 0 has the activation `silu`" in str(refused.value)
