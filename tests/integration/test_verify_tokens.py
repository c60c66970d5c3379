"""`trtkit verify` notices mistakes of every kind in every kind of language model, by the check for it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.support import engine_decoders, tiny_llm, tiny_t5, tiny_whisper
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.generation import case_of
from tests.support.tiny_vlm import VLMS, folder_of
from trtkit.builder.decoders import OpenedDecoder
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import new_runner
from trtkit.llm.encoded import Encoder
from trtkit.llm.execution import ReferenceDecoder
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.images import VisionTower
from trtkit.models.rank_weights import RankWeights
from trtkit.verification.jobs import VerifySettings
from trtkit.verification.verify import verify_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.execution import Call

    Plant = Callable[[pytest.MonkeyPatch], None]

pytestmark = pytest.mark.usefixtures("one_export")


@cache
def config_of(kind: str) -> ModelConfig:
    """Return the config of a tiny model in fp32."""
    folder = Path(mkdtemp(prefix="trtkit-test-"))
    llm: dict[str, Any] = {"max_batch_size": 3, "max_sequence_length": 64, "max_prefill_length": 16}
    more: dict[str, Any] = {}
    match kind:
        case "images" | "whole images":
            folder = folder_of(VLMS["qwen2-vl" if kind == "images" else "gemma3"])
            llm |= {"max_sequence_length": 160, "max_prefill_length": 32}
            more = {"vision": {"max_images": 3}}
        case "speech":
            tiny_whisper.save(folder)
            llm = {"max_batch_size": 3}
        case "source text":
            tiny_t5.save(folder)
            llm |= {"max_source_length": 40}
        case "head":
            llm |= {"speculator": str(_saved_head(folder)), "tree_tokens": 12, "logits": "all"}
        case "ranks":
            tiny_llm.save(folder)
            more = {"parallel": {"tensor": 2}}
        case "separate calls":
            tiny_llm.save(folder)
            llm |= {"batching": "separate", "logits": "last"}
        case "packed calls":
            tiny_llm.save(folder)
        case "states":
            case = case_of("falcon_h1")
            case = replace(case, config={**case.config, "vocab_size": len(tiny_llm.tokenizer())})
            return engine_decoders.config_of(case, folder, **llm)
    return ModelConfig.model_validate({"source": {"hf": str(folder)}, "precision": "fp32", "llm": llm, **more})


def _saved_head(folder: Path) -> Path:
    tiny_llm.save(folder, num_hidden_layers=6)
    torch.manual_seed(2)
    fields = fields_of(len(tiny_llm.tokenizer()), hidden_size=48, eagle_aux_hidden_state_layer_ids=[1, 3, 5])
    save_head(folder / "head", Head(fields))
    return folder / "head"


def failed_checks(kind: str) -> set[str]:
    """Verify the model; return the names of all checks that fail, without the prompts that some are of."""
    report = verify_config(config_of(kind), VerifySettings(layers=False), new_runner())
    checks = {**report.outputs, "greedy text": report.task, **{corner.name: corner for corner in report.corners}}
    failed = {name.partition(":")[0] for name, check in checks.items() if not check.passed}
    assert report.top_1_agreement is not None
    failed |= {"top-1 agreement"} if report.top_1_agreement < 1 else set()
    assert report.passed == (not failed)
    return failed


def wrong(logits: torch.Tensor) -> torch.Tensor:
    return logits.roll(1, -1)


def plant_in_calls(is_wrong: Callable[[ReferenceDecoder, Call], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give wrong logits in some calls of one kind."""
    forward = ReferenceDecoder.forward

    def run(self: ReferenceDecoder, call: Call, *draw: Any) -> torch.Tensor:
        logits = forward(self, call, *draw)
        return wrong(logits) if is_wrong(self, call) else logits

    monkeypatch.setattr(ReferenceDecoder, "forward", run)


def in_later_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_calls(
        lambda model, call: model.hidden is None and call.starts.max() > 0 < call.ids.shape[1] - 1, monkeypatch
    )


def in_single_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_calls(
        lambda model, call: model.hidden is None and call.starts.max() > 0 and call.ids.shape[1] == 1, monkeypatch
    )


def in_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_calls(lambda _model, call: call.tree is not None, monkeypatch)


def in_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_calls(lambda model, _call: model.hidden is not None, monkeypatch)


def in_logits_of_the_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_calls(lambda model, _call: model.hidden is None and not model.has_all_logits, monkeypatch)


def in_other_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows but the first of a call have the logits of the row before."""
    forward = ReferenceDecoder.forward

    def run(self: ReferenceDecoder, call: Call, *draw: Any) -> torch.Tensor:
        logits = forward(self, call, *draw)
        return torch.cat([logits[:1], logits[:-1]])

    monkeypatch.setattr(ReferenceDecoder, "forward", run)


def in_mixed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ReferenceDecoder.forward_packed

    def run(self: ReferenceDecoder, packed: PackedCall, *draw: Any) -> torch.Tensor:
        logits = forward(self, packed, *draw)
        return wrong(logits) if packed.rows and len(packed.places) else logits

    monkeypatch.setattr(ReferenceDecoder, "forward_packed", run)


def in_slots_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts read and write the first slots' states."""
    monkeypatch.setattr(PackedCall, "prompt_slots", lambda self, **_: slice(0, len(self.prompts.starts)))


def in_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix of the language model has its inputs in the wrong order."""
    weights = OpenedDecoder.weights

    def changed(self: OpenedDecoder) -> dict[str, Any]:
        arrays = dict(weights(self))
        path = next(path for path in arrays if path.endswith("mlp.down.weight"))
        return arrays | {path: np.asarray(arrays[path])[:, ::-1].copy()}

    monkeypatch.setattr(OpenedDecoder, "weights", changed)


def in_what_precedes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tower gives the soft tokens in the wrong order, an encoder one layer's keys for another's."""
    encode, look = Encoder.encode, VisionTower.soft_tokens

    def heard(self: Encoder, values: Any) -> dict[str, Any]:
        encoded = encode(self, values)
        return {**encoded, "cross_key_0": encoded["cross_key_1"]}

    monkeypatch.setattr(Encoder, "encode", heard)
    monkeypatch.setattr(VisionTower, "soft_tokens", lambda self, *images: look(self, *images).flip(0))


def in_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RankWeights.__getitem__

    def changed(self: RankWeights, path: str) -> Any:
        weight = right(self, path)
        return np.asarray(weight)[:, ::-1].copy() if path == "layers.1.attention.o.weight" else weight

    monkeypatch.setattr(RankWeights, "__getitem__", changed)


ANSWERS = {"logits", "greedy text", "top-1 agreement"}
ONE_CALL, SLOTS = "decoding and prompts in one call", "slots of different lengths"


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "plant", "checks"),
    [
        ("separate calls", in_a_weight, ANSWERS),
        ("separate calls", in_later_pieces, {"chunks of 5"}),
        ("separate calls", in_single_tokens, {"chunks of 1", "greedy text"}),
        ("separate calls", in_logits_of_the_last_token, {"greedy text"}),
        ("separate calls", in_other_slots, {SLOTS}),
        ("packed calls", in_a_weight, {*ANSWERS, ONE_CALL}),
        ("packed calls", in_later_pieces, {"chunks of 5"}),
        ("packed calls", in_other_slots, {SLOTS}),
        ("packed calls", in_mixed_calls, {ONE_CALL}),
        ("states", in_slots_of_prompts, {ONE_CALL}),
        ("head", in_a_weight, {*ANSWERS, "guesses of the head", "branches of a tree of guesses"}),
        ("head", in_the_head, {"guesses of the head"}),
        ("head", in_trees, {"branches of a tree of guesses"}),
        ("ranks", in_one_rank, {*ANSWERS, "2 ranks and one"}),
        ("ranks", in_later_pieces, {"chunks of 5"}),
        ("ranks", in_other_slots, {SLOTS}),
        ("images", in_later_pieces, {"chunks of 5"}),
        slow("images", in_a_weight, ANSWERS),
        slow("images", in_single_tokens, {"greedy text"}),
        slow("images", in_other_slots, {SLOTS}),
        slow("images", in_mixed_calls, {ONE_CALL}),
        slow("images", in_what_precedes, {*ANSWERS, "soft_tokens"}),
        slow("whole images", in_later_pieces, {"chunks of 5"}),
        slow("whole images", in_other_slots, {SLOTS}),
        slow("whole images", in_mixed_calls, {ONE_CALL}),
        ("speech", in_mixed_calls, {ONE_CALL}),
        slow("speech", in_a_weight, ANSWERS),
        slow("speech", in_later_pieces, {"chunks of 5"}),
        slow("speech", in_single_tokens, {"greedy text"}),
        slow("speech", in_other_slots, {SLOTS}),
        slow("speech", in_what_precedes, {*ANSWERS, "keys_and_values"}),
        ("source text", in_other_slots, {SLOTS}),
        slow("source text", in_a_weight, ANSWERS),
        slow("source text", in_later_pieces, {"chunks of 5"}),
        slow("source text", in_single_tokens, {"greedy text"}),
        slow("source text", in_mixed_calls, {ONE_CALL}),
        slow("source text", in_what_precedes, {*ANSWERS, "keys_and_values"}),
    ],
)
def test_a_mistake_fails_the_checks_that_are_for_it(
    kind: str, plant: Plant, checks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert checks <= failed_checks(kind)


@pytest.mark.parametrize("kind", ["separate calls", "packed calls", "states", "head", "ranks", slow("whole images")])
def test_a_right_network_passes_every_check(kind: str) -> None:
    assert failed_checks(kind) == set()
