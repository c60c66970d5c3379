"""Bundles of models with their own MTP module, from config to answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support import tiny_llm
from tests.support.decoders import model_of
from tests.support.generation import case_of
from tests.support.mtp import Pair, new_pair, save, speculate, train
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.builder.decoders import open_decoder
from trtkit.builder.speculators import open_config_speculator
from trtkit.config.load import load_config
from trtkit.errors import TrtkitError
from trtkit.jobs.runner import new_runner
from trtkit.resolve import resolve
from trtkit.verification.jobs import VerifySettings as Checks
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran
    from trtkit.bundle.bundle import Bundle

FAMILIES = [
    "glm4_moe",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "deepseek_v3",
            "exaone_moe",
            "glm4_moe_lite",
            "mellum",
            "mimo",
            "mimo_v2_flash",
            "qwen3_5_text",
            "qwen3_next",
        )
    ),
]
STEPS = {
    "glm4_moe": 22,
    "deepseek_v3": 36,
    "exaone_moe": 22,
    "glm4_moe_lite": 30,
    "mellum": 22,
    "mimo": 22,
    "mimo_v2_flash": 22,
    "qwen3_5_text": 12,
    "qwen3_next": 12,
}
"""Of training: so few that some guesses are wrong."""
LONGEST, ANSWER = 64, 24
SAMPLED = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14) for seed, t in enumerate((0.0, 0.8, 30.0, 0.0, 30.0))
]
PROMPTS = [*tiny_llm.PROMPTS, [7, 8, 9] * 9]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Pair, Path]]:
    """Trained pairs by family, with the folder of each, as tests ask for them."""
    root = tmp_path_factory.mktemp("mtp")

    class Pairs(dict[str, tuple[Pair, Path]]):
        def __missing__(self, family: str) -> tuple[Pair, Path]:
            torch.manual_seed(0)
            pair, tokenizer = new_pair(family, vocab_size=len(tiny_llm.tokenizer())), tiny_llm.tokenizer()
            train(pair, torch.tensor(tokenizer(tiny_llm.TEXT).input_ids), STEPS[family])
            save(root / family / "model", pair)
            tokenizer.save_pretrained(root / family / "model")
            self[family] = pair, root / family
            return self[family]

    return Pairs()


def config_file(folder: Path, speculator: str = "built-in", **llm: Any) -> str:
    """Write a config next to the model, whose paths are relative to it."""
    sizes = {"max_batch_size": 3, "max_sequence_length": LONGEST, "max_prefill_length": 16, **llm}
    options = ", ".join(f"{name}: {value}" for name, value in {**sizes, "speculator": speculator}.items())
    path = folder / f"{speculator.replace('/', '_')}.yaml"
    path.write_text(f"source: {{hf: model}}\nprecision: fp32\nllm: {{{options}}}\n")
    return str(path)


def build(folder: Path, name: str, **llm: Any) -> Bundle:
    return build_bundle(load_config(config_file(folder, **llm)), folder / name, new_runner(), use_cache=False).bundle


@pytest.mark.parametrize("kv", ["linear", pytest.param("paged", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_bundle_answers_as_without_and_guesses_as_torch(
    family: str, kv: str, pairs: dict[str, tuple[Pair, Path]]
) -> None:
    pair, folder = pairs[family]
    bundle = build(folder, kv, kv=kv)
    record = bundle.manifest.decoder.speculator
    assert record.model_type == "mtp"
    assert [stage.name for stage in bundle.manifest.stages] == ["speculator", "llm"]
    assert len({file.path for file in bundle.manifest.sources}) == len(bundle.manifest.sources)
    answers, guessed = {}, {}
    for most in (0, None, 5):
        with LLM(bundle, speculate=most) as llm:
            answers[most] = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SAMPLED)]
            guessed[most] = llm.statistics.drafted_tokens
    assert answers[0] == answers[None] == answers[5]
    assert guessed[0] == 0 < guessed[None] < guessed[5]
    for most in (1, 3):
        assert_same_acceptance(bundle, pair, most)
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert report.passed
    errors = {corner.name: corner.relative_rms_error for corner in report.corners}
    assert errors["guesses of the head"] < 1e-5


def assert_same_acceptance(bundle: Bundle, pair: Pair, most: int) -> None:
    """Compare a bundle's greedy answers, guesses and accepted guesses with those of the pair in torch."""
    greedy, totals = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True), [0, 0]
    with LLM(bundle, speculate=most) as llm:
        for prompt in PROMPTS:
            ids = tiny_llm.tokenizer()(prompt).input_ids if isinstance(prompt, str) else prompt
            tokens, guessed, accepted = speculate(pair, ids, ANSWER, most)
            assert list(llm.generate([ids], greedy)[0].outputs[0].token_ids) == tokens
            totals = [totals[0] + guessed, totals[1] + accepted]
            statistics = llm.statistics
            assert [statistics.drafted_tokens, statistics.accepted_tokens] == totals
    assert 0 < totals[1] < totals[0]  # or equality would say little


def test_module_takes_memory_with_its_copies_of_shared_weights(
    pairs: dict[str, tuple[Pair, Path]], trtkit: Callable[..., Ran]
) -> None:
    pair, folder = pairs["glm4_moe"]
    words = ("plan", folder / "model", "--gpu", "h200", "--input-len", 20, "--output-len", 12, "--concurrency", 3)
    words = (*words, "--set", "precision=fp32")
    with_module = trtkit(*words, "--set", "llm.speculator=built-in", "--json").json()["gpus"][0]["memory"]
    shared = sum(pair.module.shared[name].weight.numel() for name in ("table", "head"))
    router = pair.module.layer.mlp.gate.e_score_correction_bias.numel()  # a buffer in torch
    weights = sum(weight.numel() for weight in pair.module.parameters()) + router
    assert with_module["speculator_bytes"] == 4 * (weights + shared + 3 * 32 * 2 * 2 * 8)


def test_module_is_read_from_a_folder_too(pairs: dict[str, tuple[Pair, Path]]) -> None:
    """That of the model, or another one with the module's weights, as SGLang's users keep them."""
    _, folder = pairs["glm4_moe"]
    opened = [
        open_decoder(resolve(load_config(config_file(folder, speculator)))).speculator
        for speculator in ("built-in", "./model")
    ]
    assert all(each is not None and each.spec == opened[0].spec for each in opened)


def test_word_in_an_override_is_not_a_path(pairs: dict[str, tuple[Pair, Path]]) -> None:
    _, folder = pairs["glm4_moe"]
    path = config_file(folder, "./built-in")
    assert load_config(path).llm.speculator == str(folder / "built-in")
    assert load_config(path, ["llm.speculator=built-in"]).llm.speculator == "built-in"


def test_models_without_modules_are_refused(tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "model")
    with pytest.raises(TrtkitError, match="not a head of a kind that is supported: the config names") as error:
        assert open_decoder(resolve(load_config(config_file(tmp_path)))).speculator
    assert (
        "MTP modules, in the model's own weights, `model_type` of deepseek_v3, exaone_moe, glm4_moe, glm4_moe_lite"
        in error.value.fix
    )


def test_files_of_other_kinds_have_no_module(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path))
    config = config.model_copy(update={"source": config.source.model_copy(update={"hf": None, "gguf": "m.gguf"})})
    with pytest.raises(TrtkitError, match=r"draft heads in a model's own weights are read from `source\.hf` only"):
        open_config_speculator(config, model_of(case_of("glm4_moe")).spec, has_quantized_caches=False)
