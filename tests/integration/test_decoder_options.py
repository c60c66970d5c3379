"""The decoder network's optional inputs and outputs."""

from __future__ import annotations

import pytest
import torch

from tests.support.decoder_cases import CASES
from tests.support.decoders import Model, Runner, T, builds, executor_of, graph_of, model_of, relative_rms
from trtkit.dtypes import BF16, FP8, FP16, FP32, INT64
from trtkit.errors import NetworkError
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.reference import Executor, Options, read_layers

IDS = torch.randint(3, 67, (3, 9), generator=torch.Generator().manual_seed(2))
LLAMA = next(case for case in CASES if case.name == "llama-3")


@pytest.fixture
def model() -> Model:
    return model_of(LLAMA)


def runner_of(model: Model, options: DecoderOptions) -> Runner:
    runner = Runner(graph_of(model, options))
    runner.reset(3)
    return runner


def test_logits_of_the_last_token_of_each_slot(model: Model) -> None:
    last = torch.tensor([8, 0, 4], dtype=torch.int32)
    got = runner_of(model, DecoderOptions(FP32, T)).step(IDS, last_token_index=last)["logits"]
    want = torch.stack([row[index] for row, index in zip(model.logits(IDS), last, strict=True)])
    assert relative_rms(got, want) <= 1e-5


@pytest.mark.parametrize("has_all_logits", [False, True])
def test_hidden_states_are_those_before_the_head(model: Model, has_all_logits: bool) -> None:
    options = DecoderOptions(FP32, T, has_all_logits=has_all_logits, has_hidden_states=True)
    last = torch.full((3,), 8, dtype=torch.int32)
    outputs = runner_of(model, options).step(IDS, last_token_index=last)
    with torch.inference_mode():
        want = model.hf.model(IDS).last_hidden_state
    assert relative_rms(outputs["hidden_states"], want) <= 1e-5
    logits = model.logits(IDS)
    assert relative_rms(outputs["logits"], logits if has_all_logits else logits[:, -1]) <= 1e-5


def test_embeddings_in_place_of_ids(model: Model) -> None:
    runner = runner_of(model, DecoderOptions(FP32, T, has_all_logits=True, has_embeds_input=True))
    embeds = model.checkpoint["model.embed_tokens.weight"][IDS]
    assert relative_rms(runner.step(IDS, inputs_embeds=embeds)["logits"], model.logits(IDS)) <= 1e-5


def test_lengths_told_to_the_attention_layer_change_nothing(model: Model) -> None:
    runner = runner_of(model, DecoderOptions(FP32, T, has_all_logits=True, has_native_lengths=True))
    got = runner.step(IDS, [9, 4, 1])["logits"]
    want = executor_of(LLAMA, FP32)
    want.reset(3)
    assert relative_rms(got[0], want.step(IDS, [9, 4, 1])["logits"][0]) <= 1e-6
    assert relative_rms(got[1, :4], model.logits(IDS)[1, :4]) <= 1e-5


def feed_of(executor: Executor, dtype: torch.dtype = torch.int32) -> dict[str, torch.Tensor]:
    """Return inputs for a prefill of IDS; caches in fp32."""
    ids = {"input_ids": IDS, "position_ids": torch.arange(9).repeat(3, 1)}
    lengths = {"write_indices": torch.zeros(3).int(), "kv_lengths": torch.full((3,), 9).int()}
    caches = {spec.name: spec.shape for spec in executor.inputs if spec.name.startswith("past_")}
    empty = {name: torch.zeros(3, *shape[1:]) for name, shape in caches.items()}
    return {name: value.to(dtype) for name, value in ids.items()} | lengths | empty


def test_ids_may_be_int64(model: Model) -> None:
    graph = graph_of(model, DecoderOptions(FP32, T, ids_dtype=INT64, has_all_logits=True))
    executor = Executor(read_layers(graph.backend, graph.network))
    assert relative_rms(executor.run(feed_of(executor, torch.int64))["logits"], model.logits(IDS)) <= 1e-5
    assert builds(graph)


def test_tied_weights_are_in_the_network_once(model: Model) -> None:
    graph = graph_of(model, DecoderOptions(FP32, T))
    layers = [graph.network.get_layer(index) for index in range(graph.network.num_layers)]
    tables = [layer.name for layer in layers if tuple(layer.get_output(0).shape) == (67, 42)]
    assert tables == ["embedding/weight"]


def test_layers_speak_the_language_of_the_checkpoint(model: Model) -> None:
    graph = graph_of(model, DecoderOptions(FP32, T))
    names = {graph.network.get_layer(index).name for index in range(graph.network.num_layers)}
    expected = {"layers.1/attention/q/matmul", "layers.0/mlp/down/weight", "layers.1/mlp_norm/mean", "lm_head/matmul"}
    assert expected <= names
    assert not [name for name in names if name.startswith("(Unnamed")]


def test_widened_bf16_weights_come_from_the_side_table(model: Model) -> None:
    graph = graph_of(model, DecoderOptions(BF16, T, has_all_logits=True))
    assert "layers.0/attention/q/weight" in graph.constants
    widened = Executor(read_layers(graph.backend, graph.network, graph.constants), Options(widen="fp32"))
    assert (
        relative_rms(widened.run(feed_of(widened))["logits"], model.logits(IDS, BF16)) <= 6e-3
    )  # the rotary tables are bf16


def test_options_that_do_not_fit_are_named(model: Model) -> None:
    gpt2 = model_of(next(case for case in CASES if case.name == "gpt2"))
    with pytest.raises(NetworkError, match="gpt2: max_sequence_length 65 is above the model's 64 positions"):
        graph_of(gpt2, DecoderOptions(FP32, 65))
    with pytest.raises(NetworkError, match="llama: a network cannot be written in fp8\nfix: use one of fp32, fp16"):
        graph_of(model, DecoderOptions(FP8, T))


def test_an_unknown_activation_is_named_with_its_layer(model: Model) -> None:
    broken = Model(model.hf, {**model.config, "hidden_act": "xielu"}, model.checkpoint)
    graph = Graph(executor_of(LLAMA, FP32).backend)
    with pytest.raises(NetworkError, match=r"layers\.0/mlp: unknown activation `xielu`"):
        build_decoder(graph, broken.spec, find_weights(broken.spec, broken.checkpoint), DecoderOptions(FP32, T))


@pytest.mark.parametrize(
    "options",
    [
        DecoderOptions(FP16, T, has_all_logits=True, has_hidden_states=True),
        DecoderOptions(BF16, T, has_embeds_input=True, has_hidden_states=True),
        DecoderOptions(FP32, T, has_native_lengths=True),
        DecoderOptions(FP16, T, has_native_lengths=True),
    ],
    ids=["all outputs", "embeddings in", "lengths fp32", "lengths fp16"],
)
def test_networks_with_options_build(model: Model, options: DecoderOptions) -> None:
    assert builds(graph_of(model, options))


def test_a_weight_that_nobody_has_is_named(model: Model) -> None:
    arrays = {
        path: array
        for path, array in find_weights(model.spec, model.checkpoint).items()
        if path != "layers.1.mlp.up.weight"
    }
    with pytest.raises(NetworkError, match=r"layers\.1/mlp/up/weight: there is no such weight"):
        build_decoder(Graph(executor_of(LLAMA, FP32).backend), model.spec, arrays, DecoderOptions(FP32, T))


def test_checkpoints_of_another_type_are_converted(model: Model) -> None:
    """A bf16 checkpoint in an fp32 network, and NumPy's arrays, compute as the same weights in fp32 do."""
    stored = {name: value.bfloat16() for name, value in model.checkpoint.items()}
    as_numpy = {name: value.float().numpy() for name, value in stored.items()}
    want = model.logits(IDS, BF16)
    for checkpoint in (stored, as_numpy):
        runner = runner_of(Model(model.hf, model.config, checkpoint), DecoderOptions(FP32, T, has_all_logits=True))
        assert relative_rms(runner.step(IDS)["logits"], want) <= 1e-5
