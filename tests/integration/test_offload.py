"""Stages loaded in turn on one device: FlexGen's schedule gives the whole model's tokens."""

from __future__ import annotations

import errno
import json
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM

from tests.integration.test_in_flight_batching import KINDS
from tests.support import tiny_llm
from tests.support.engine_decoders import config_of
from tests.support.generation import case_of
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.config.schema import ModelConfig
from trtkit.errors import ExecutionError, GenerationError, RequestError
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution import Call, ExecutionOptions, open_execution
from trtkit.llm.offload.decoder import OffloadedDecoder
from trtkit.llm.offload.open import check_offload
from trtkit.models.parallel import Grid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

PLACES = ("device", "host", "disk")
PROMPTS = [
    [5, 9, 33, 7],
    [40, 41],
    [100, 3, 8, 8, 21, 64, 2],
    [12, 50],
    [77, 5, 90, 61, 8],
    [30, 31, 32],
    [4, 3],
    [9] * 9,
]
"""Two blocks of four slots, of different lengths."""
TOKENS = [9, 3, 9, 6, 1, 7, 2, 7]


def save(family: str, folder: Path) -> Path:
    """Write a tiny model of five layers."""
    if family == "llama":
        return tiny_llm.save(folder, num_hidden_layers=5)
    torch.manual_seed(1)
    sizes = {"hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 5, "num_attention_heads": 4}
    config = OPTConfig(**sizes, vocab_size=320, max_position_embeddings=128, word_embed_proj_dim=48, dropout=0.0)
    model = OPTForCausalLM(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


def build(model: Path, folder: Path, **changes: object) -> Path:
    sizes = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 32}
    config = {"source": {"hf": str(model)}, "precision": "fp32", "llm": sizes, "parallel": {"pipeline": 3}, **changes}
    return build_bundle(ModelConfig.model_validate(config), folder, new_runner()).bundle.path


@pytest.fixture(scope="module", params=["llama", "opt"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its bundle of three stages."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save(request.param, folder / "model")
    return model, build(model, folder / "bundle")


def weight_bytes(bundle: Path) -> list[int]:
    """Weights of each stage's network."""
    networks = open_bundle(bundle).manifest.stages[-1].networks
    return [sum(network.totals.weight_bytes.values()) for network in networks]


def transformers_tokens(model: Path) -> list[list[int]]:
    """Greedy continuations by transformers, each prompt on its own."""
    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    hf.generation_config.eos_token_id = None
    answers = []
    for prompt, count in zip(PROMPTS, TOKENS, strict=True):
        ids = torch.tensor([prompt])
        output = hf.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_answers_are_those_of_transformers(family: tuple[Path, Path], place: str, micro_batch: int) -> None:
    model, bundle = family
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in TOKENS]
    with LLM(bundle, runtime="reference", offload=place, micro_batch=micro_batch) as llm:
        answers = [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]
        decoder = llm.frontend.execution
        assert isinstance(decoder, OffloadedDecoder)
        counts = decoder.counts
    assert answers == transformers_tokens(model)
    assert counts.passes == 9 + 7  # of each block: one that reads all prompts, and one for each next token
    assert counts.loads == 3 * counts.passes + 1  # the first stage once more, ready for the next pass
    weights = weight_bytes(bundle)
    assert counts.loaded_bytes == counts.passes * sum(weights) + weights[0]
    assert counts.most_resident_bytes == max(weights[0] + weights[1], weights[1] + weights[2], weights[2] + weights[0])
    assert counts.most_resident_bytes < sum(weights)
    assert bool(counts.fetched_bytes) is bool(counts.stored_bytes) is (place != "device")


def random_requests(count: int, vocab_size: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Requests of all settings, beams too; half of the prompts begin alike."""
    r, stem = random.Random(7), list(range(5, 25))
    prompts = [
        stem[: r.randint(2, 20) * r.randint(0, 1)] + [r.randrange(3, vocab_size) for _ in range(r.randint(2, 12))]
        for _ in range(count)
    ]
    return prompts, [SamplingParams(max_tokens=r.randint(2, 12), **KINDS[i % len(KINDS)](r)) for i in range(count)]


def same_as_the_whole(
    folder: Path, staged: dict[str, Any], place: str, vocab_size: int = 320, **options: Any
) -> set[str]:
    """Build a config without and with stages; compare answers to requests of all settings; return types of caches."""
    prompts, params = random_requests(14, vocab_size)
    answers = []
    for name, grid in (("whole", None), ("staged", {"pipeline": 3})):
        config = ModelConfig.model_validate({**staged, "parallel": grid})
        bundle = build_bundle(config, folder / name, new_runner()).bundle
        how = {"offload": place, "micro_batch": 2, **options} if grid else options
        with LLM(bundle, runtime="reference", min_shared_tokens=4, **how) as llm:
            outputs = llm.generate(prompts, params)
            answers.append([[each.token_ids for each in output.outputs] for output in outputs])
            execution = llm.frontend.execution
            types = {array.dtype for array in execution.cache.form(1).arrays}
    assert answers[0] == answers[1]
    assert isinstance(execution, OffloadedDecoder)
    return types


@pytest.mark.parametrize("place", PLACES)
def test_all_settings_and_shared_prefixes(place: str, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")
    sizes = {"max_batch_size": 6, "max_sequence_length": 64, "max_prefill_length": 16}  # prompts in several passes
    config = {"source": {"hf": str(model)}, "precision": "fp32", "llm": sizes}
    same_as_the_whole(tmp_path, config, place)


@pytest.mark.parametrize("place", ["device", "host"])
def test_recurrent_states(place: str, tmp_path: Path) -> None:
    config = config_of(case_of("lfm2"), tmp_path, max_batch_size=4, max_sequence_length=64)
    same_as_the_whole(tmp_path, config.model_dump(mode="json", exclude_unset=True), place, vocab_size=67)


def test_caches_in_8_bits_and_guesses(tmp_path: Path) -> None:
    path = tiny_llm.save_to_quantize(tmp_path)
    tiny_llm.save(tmp_path / "model", **tiny_llm.OF_BLOCKS, num_hidden_layers=4)
    config = load_config(str(path), ["quantize.method=none", "quantize.kv_cache=int8", "llm.max_batch_size=4"])
    types = same_as_the_whole(tmp_path, config.model_dump(mode="json", exclude_unset=True), "host", lookup=2)
    assert types == {"int8"}


def test_a_sequence_is_saved_and_loaded(family: tuple[Path, Path]) -> None:
    how = ExecutionOptions(offload="host", micro_batch=2)
    execution = open_execution(open_bundle(family[1]), "reference", how=how)
    prompts = np.array([[5, 9, 33], [7, 8, 11]])
    logits = execution.forward(Call(0, prompts, np.zeros(2, np.int64), np.full(2, 3)))
    execution.cache.load(3, execution.cache.save(1, 3))
    new = np.array([[4]])
    expected, loaded = (
        execution.forward(Call(slot, new, np.full(1, 3), np.ones(1, np.int64))).numpy().copy() for slot in (1, 3)
    )
    assert np.array_equal(expected, loaded)
    assert logits.shape == (2, 3, 320)
    with pytest.raises(ExecutionError, match="offload: the layers of stages that run in turn cannot be timed"):
        execution.layer_seconds(Call(0, new, np.full(1, 3), np.ones(1, np.int64)))
    execution.close()


def test_a_call_after_one_that_failed(family: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that cannot be loaded, or a stage that fails, leave nothing behind that the next call trips over."""
    how = ExecutionOptions(offload="disk", micro_batch=1)
    execution = open_execution(open_bundle(family[1]), "reference", how=how)
    assert isinstance(execution, OffloadedDecoder)
    call = Call(0, np.array([[5, 9, 33], [7, 8, 11]]), np.zeros(2, np.int64), np.full(2, 3))
    expected = execution.forward(call).clone()
    for name in ("load_weights", "forward"):
        stage = execution.stages[1].execution
        with monkeypatch.context() as patch:
            patch.setattr(stage, name, lambda *_: (_ for _ in ()).throw(MemoryError("no memory")))
            with pytest.raises(MemoryError):
                execution.forward(call)
        assert torch.equal(execution.forward(call), expected)
        assert set(execution._loading) == {0}
    execution.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batch": 5}, "micro_batch: 5 sequences are not a micro-batch of 4 slots\nfix: use 1 to 4"),
        ({"micro_batch": 0}, "micro_batch: 0 sequences are not a micro-batch of 4 slots"),
        ({"cache_dir": "kv"}, "cache_dir: stages in turn keep caches in no folder"),
        ({"needs_all_logits": True}, "offload: stages in turn give the logits that the bundle was built for"),
        ({"offload": None, "micro_batch": 2}, "micro_batch: only stages that run in turn have micro-batches"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str, family: tuple[Path, Path]) -> None:
    with pytest.raises(RequestError) as refused:
        LLM(family[1], **{"runtime": "reference", "offload": "device", **options})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grid", Grid(pipeline=2), "stages run in turn if there are 3 or more of one rank; the bundle has 2"),
        ("grid", Grid(), "stages run in turn if there are 3 or more of one rank; the bundle has 1"),
        ("grid", Grid(tensor=2, pipeline=3), "the bundle has 3 of 2 ranks"),
        ("images", object(), "stages in turn take no images"),
    ],
)
def test_bundles_that_are_refused(
    name: str, value: object, message: str, family: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_bundle(family[1])
    monkeypatch.setattr(type(opened.manifest), name, property(lambda _: value))
    with pytest.raises(RequestError, match=f"offload: .*{message}"):
        check_offload(opened, ExecutionOptions(offload="host"))


@pytest.mark.parametrize(
    ("llm", "message"),
    [
        ({"kv": "paged"}, "the caches of stages in turn are linear; the bundle's are in pages"),
        ({"lora": {"max_rank_sum": 8}}, "stages in turn take no LoRA adapters"),
    ],
)
def test_networks_that_are_refused(llm: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")
    sizes = {"max_batch_size": 2, "max_sequence_length": 64, "max_prefill_length": 16, **llm}
    with pytest.raises(RequestError, match=f"offload: {message}"):
        LLM(build(model, tmp_path / "bundle", llm=sizes), runtime="reference", offload="device")


def test_a_disk_without_room_is_an_error(family: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(GenerationError) as refused:
        LLM(family[1], runtime="reference", offload="disk")
    assert "no room for" in str(refused.value)
    assert "no space left on device" in str(refused.value)
    assert "fix: set TMPDIR to a folder on a disk with room, or use fewer slots" in str(refused.value)


def test_a_file_of_prompts_is_answered_by_stages_in_turn(
    family: tuple[Path, Path], tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt_token_ids": ids, "max_tokens": count} for ids, count in zip(PROMPTS, TOKENS, strict=True)]
    prompts.write_text("".join(json.dumps({**line, "ignore_eos": True}) + "\n" for line in lines))
    words = ("generate", family[1], "--prompts", prompts, "--runtime", "reference", "--offload", "host")
    ran = trtkit(*words, "--output", tmp_path / "answers.jsonl", "--stats", "-q")
    assert ran.code == 0, ran.err
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [answer["token_ids"] for answer in answers] == transformers_tokens(family[0])
    assert "15 passes over the weights, 0.01 GiB loaded" in ran.err  # the longest answers first: 9 and 6
    ran = trtkit(*words, "--micro-batch", 9, "-q")
    assert (ran.code, ran.err) == (
        2,
        "error: --micro-batch: 9 sequences are not a micro-batch of 4 slots\nfix: use 1 to 4\n",
    )
