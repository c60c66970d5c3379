"""Steps that read active neurons only, against transformers' dense model; missed blocks against torch's count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.decoder_case import GPT2_SIZES, NO_SIZE, Case, case
from tests.support.decoders import Model, Runner, T, builds, model_of, relative_rms, rtx
from trtkit.dtypes import BF16, FP16, FP32, DType
from trtkit.models.feed_forward import ActiveBlocks
from trtkit.models.weights import find_weights
from trtkit.network.blocks import active_neurons
from trtkit.network.decoder import BLOCK_COUNTS, build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

OPT_SIZES = {"hidden_size": 48, "ffn_dim": 300, "word_embed_proj_dim": 48}
ROPE = {"rope_theta": 100.0, "partial_rotary_factor": 0.25}
CASES = [
    case("opt", "opt", *NO_SIZE, **OPT_SIZES),
    case("opt-post-norm-no-biases", "opt", *NO_SIZE, **OPT_SIZES, do_layer_norm_before=False, enable_bias=False),
    case("nemotron-biases", "nemotron", rope_parameters=ROPE, mlp_bias=True),
    case("llama-reglu", "llama", hidden_act="relu"),
    case("llama-reglu2-biases-tied", "llama", hidden_act="relu2", mlp_bias=True, tie_word_embeddings=True),
    case("arcee", "arcee"),
    case("jais2", "jais2"),
    Case("gpt2-in-out", "gpt2", {**GPT2_SIZES, "activation_function": "relu", "n_inner": 90}),
]
IDS = torch.randint(3, 67, (3, 13), generator=torch.Generator().manual_seed(2))


@dataclass(frozen=True, eq=False)
class Seen:
    """What torch counts of one layer: whether each block of each token is active, [B, S, blocks]."""

    is_active: torch.Tensor

    @property
    def most(self) -> int:
        """Blocks that one token activates, at most."""
        return int(self.is_active.sum(-1).max())

    def together(self, tokens: slice, rows: slice = slice(None)) -> int:
        """Blocks that some token of a step activates."""
        return int(self.is_active[rows, tokens].flatten(0, 1).any(0).sum())


@cache
def quiet(which: Case) -> Model:
    """Return a case's model, of whose neurons with a bias few are active."""
    model = model_of(replace(which, name=f"quiet {which.name}"))
    for name, weight in model.hf.named_parameters():
        if name.endswith(("fc1.bias", "up_proj.bias")) and which.model_type in ("opt", "nemotron"):
            with torch.no_grad():
                weight.sub_(2.5)
            model.checkpoint[name] = weight.detach().clone()
    return model


def seen_by_torch(model: Model, block: int) -> list[Seen]:
    """Return which blocks the inputs of each layer's last product are not zero in."""
    seen, hooks = [], []
    names = [name for name, _ in model.hf.named_modules() if name.endswith(("fc2", "down_proj", "mlp.c_proj"))]

    def note(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        x = inputs[0].reshape(*IDS.shape, -1)
        x = torch.nn.functional.pad(x, (0, -x.shape[-1] % block))
        seen.append(Seen((x.reshape(*x.shape[:-1], -1, block) != 0).any(-1)))

    for name in names:
        hooks.append(model.hf.get_submodule(name).register_forward_pre_hook(note))
    model.logits(IDS)
    for hook in hooks:
        hook.remove()
    return seen


def sparse(model: Model, block: int, kept: Sequence[int], dtype: DType = FP32) -> Graph:
    layers = []
    for layer, count in zip(model.spec.layers, kept, strict=True):
        part: Any = layer.feed_forward
        layers.append(replace(layer, feed_forward=replace(part, active=ActiveBlocks(block, count))))
    spec, graph = replace(model.spec, layers=tuple(layers)), Graph(rtx())
    build_decoder(graph, spec, find_weights(spec, model.checkpoint), DecoderOptions(dtype, T, has_all_logits=True))
    return graph


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("which", CASES, ids=str)
def test_logits_and_counts_are_those_of_the_dense_model(which: Case, block: int) -> None:
    """A prompt of each row is dense; then two tokens a row, or one, are read for. 8 does not divide 76, 90 or 300."""
    model = quiet(which)
    seen = seen_by_torch(model, block)
    runner, want = Runner(sparse(model, block, [layer.most for layer in seen])), model.logits(IDS)
    for rows in (slice(1, 2), slice(3)):
        runner.reset(len(IDS[rows]))
        at, outputs = 0, []
        for part in IDS[rows].split((6, 1, 2, 1, 1, 1, 1), 1):
            step = runner.step(part)
            outputs.append(step["logits"])
            for layer, (active, read) in zip(seen, step[BLOCK_COUNTS].tolist(), strict=True):
                count = layer.is_active.shape[-1]
                few = part.numel() <= ActiveBlocks(block, layer.most).most_tokens(count)
                assert read == (part.numel() * layer.most if few else count)
                assert active == layer.together(slice(at, at + part.shape[1]), rows)
                assert active <= read
            at += part.shape[1]
        assert relative_rms(torch.cat(outputs, 1), want[rows]) < 1e-5


def test_blocks_that_are_not_kept_are_counted() -> None:
    """Two blocks less than the busiest token needs: the counts say how many that and other tokens miss."""
    model = quiet(CASES[0])
    seen = seen_by_torch(model, 4)
    kept = [int(layer.is_active[0].sum(-1).max()) - 2 for layer in seen]
    runner, want = Runner(sparse(model, 4, kept)), model.logits(IDS)
    missed, is_exact = 0, []
    runner.reset(1)
    for at in range(IDS.shape[1]):
        step = runner.step(IDS[:1, at : at + 1])
        first = seen[0].together(slice(at, at + 1), slice(1))
        active, read = step[BLOCK_COUNTS][0].tolist()
        assert (active, read) == (first, kept[0])
        missed += max(active - read, 0)
        is_exact.append(relative_rms(step["logits"], want[:1, at : at + 1]) < 1e-5)
    counted = seen[0].is_active[0].sum(-1) - kept[0]
    assert missed == int(counted.clamp(min=0).sum()) > 0
    assert not all(is_exact)


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
@pytest.mark.parametrize("which", [CASES[0], CASES[4]], ids=str)
def test_networks_of_other_types_build_and_agree(which: Case, dtype: DType) -> None:
    model = quiet(which)
    kept = [min(layer.most + 3, layer.is_active.shape[-1] - 1) for layer in seen_by_torch(model, 2)]
    graph = sparse(model, 2, kept, dtype)
    assert builds(graph, [120 if dtype == BF16 else 80])
    runner = Runner(graph)
    found = torch.cat([runner.step(part)["logits"] for part in IDS[:1].split(1, 1)], 1)
    assert relative_rms(found, model.logits(IDS[:1], dtype)) < (0.05 if dtype == BF16 else 0.01)


def test_rows_of_other_neurons_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quiet(CASES[3])
    kept = [layer.most for layer in seen_by_torch(model, 1)]
    joined = active_neurons._by_block
    monkeypatch.setattr(active_neurons, "_by_block", lambda rows, block: joined(rows[::-1], block))
    runner = Runner(sparse(model, 1, kept))
    assert relative_rms(runner.step(IDS[:1])["logits"], model.logits(IDS[:1])) > 0.1
