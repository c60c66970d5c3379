"""Language models on engines: 8-bit caches, speculation, images, commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tiny_llm
from tests.support.tiny_vlm import VLMS, Vlm, bundle_of, picture
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.errors import GenerationError
from trtkit.jobs.runner import new_runner
from trtkit.verification.verify import VerifySettings, verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from tests.simulated_tensorrt import Simulated
    from trtkit.llm.scheduler.costs import Statistics
    from trtkit.serving_options import Runtime

pytestmark = pytest.mark.usefixtures("one_export")
PARAMS = [
    tiny_llm.GREEDY,
    SamplingParams(temperature=1.2, top_p=0.9, seed=5, max_tokens=10),
    SamplingParams(num_beams=2, temperature=0, max_tokens=6),
    SamplingParams(temperature=0.8, top_k=7, seed=1, repetition_penalty=1.2, max_tokens=10),
]


def tokens(bundle: Path, runtime: str, **options: Any) -> list[tuple[int, ...]]:
    with LLM(bundle, runtime=runtime, **options) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS * 2, PARAMS * 2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.build(tmp_path_factory.mktemp("engines"), "m")


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_caches_in_eight_bits(kind: str, gpu: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention reads all of the cached tokens, or a window of 8, 16, 32 or 64 of them; the tokens are the same."""
    monkeypatch.setattr("trtkit.network.input_spec._LEAST_WINDOW", 8)
    path, answers = str(tiny_llm.save_to_quantize(tmp_path)), []
    for window in ("full", "used"):
        overrides = ["quantize.method=none", f"quantize.kv_cache={kind}", "target=sm89", f"llm.kv_window={window}"]
        folder = tmp_path / window
        bundle = build_bundle(load_config(path, overrides), folder, new_runner(), use_cache=False).bundle
        gpu.plans.add(bundle)
        answers += [tokens(bundle.path, "tensorrt"), tokens(bundle.path, "reference")]
    assert answers == [answers[0]] * 4


@pytest.mark.parametrize(
    "options", [{"lookup": 3}, {"prefill_budget": 3}, {"has_cuda_graphs": False}, {"slots": 3}], ids=str
)
def test_ways_to_run(options: dict[str, Any], plain: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(plain))
    assert tokens(plain, "tensorrt", **options) == tokens(plain, "reference")


def answers_to_images(
    vlm: Vlm, bundle: Path, runtime: Runtime, **options: Any
) -> tuple[list[tuple[int, ...]], Statistics]:
    """Return the tokens of answers to a picture and to a text, and what was done for them."""
    prompts: list[Any] = [{"prompt": f"Look at {vlm.image_text}.", "images": [picture(44, 40)]}, "And?"]
    with LLM(bundle, runtime=runtime, **options) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        return [output.outputs[0].token_ids for output in outputs], llm.statistics


@pytest.fixture
def vlm_bundle(vlm: Vlm) -> Path:
    """Ask for it before `gpu`, whose cache is empty: other tests may have built the bundle."""
    return bundle_of(vlm)


@pytest.mark.parametrize(
    "vlm", [VLMS[name] for name in ("llava", "smolvlm", "qwen2-vl", "gemma3", "qwen3-vl")], ids=str
)
def test_vision_language_models(vlm: Vlm, vlm_bundle: Path, gpu: Simulated) -> None:
    """Steps overlap: the engine looks up the vectors of tokens that the host does not know yet."""
    gpu.plans.add(open_bundle(vlm_bundle))
    (answer, statistics), (expected, _) = (
        answers_to_images(vlm, vlm_bundle, name) for name in ("tensorrt", "reference")
    )
    assert answer == expected
    assert statistics.synchronous_steps == 0
    assert statistics.steps > 8


@pytest.mark.parametrize("batching", ["packed", "separate"])
def test_pieces_of_a_token_of_an_image_are_its_vectors(batching: str, gpu: Simulated) -> None:
    """Such a piece has the shape of a decode step, whose vectors are otherwise those of tokens."""
    vlm = VLMS["llava"]
    bundle = bundle_of(vlm, f"llm.batching={batching}")
    gpu.plans.add(open_bundle(bundle))
    answer, _ = answers_to_images(vlm, bundle, "tensorrt", prefill_budget=1)
    assert answer == answers_to_images(vlm, bundle, "reference")[0]


def test_verify_compares_the_engine(plain: Path, gpu: Simulated) -> None:
    bundle = open_bundle(plain)
    gpu.plans.add(bundle)
    report = verify_bundle(bundle, VerifySettings(corners=False), new_runner())
    assert report.passed
    assert report.engine is not None
    assert report.engine.outputs["logits"].relative_rms_error == 0


def test_verify_sees_an_engine_of_other_weights(plain: Path, gpu: Simulated, tmp_path: Path) -> None:
    """The other model's plan stands in the place of the bundle's own."""
    bundle, other = open_bundle(plain), open_bundle(tiny_llm.build(tmp_path, "m", seed=1))
    gpu.plans.add(other, in_place_of=bundle)
    report = verify_bundle(bundle, VerifySettings(corners=False), new_runner())
    assert report.engine is not None
    assert not report.engine.passed
    assert not report.passed


@pytest.mark.parametrize("vlm", [VLMS["llava"]], ids=str)
def test_verify_compares_the_decoder_of_a_vision_language_model(vlm_bundle: Path, gpu: Simulated) -> None:
    bundle = open_bundle(vlm_bundle)
    gpu.plans.add(bundle)
    report = verify_bundle(bundle, VerifySettings(corners=False), new_runner())
    assert report.engine is not None
    assert report.engine.passed


def test_a_slot_that_begins_at_no_address_of_tensorrt(gpu: Simulated, tmp_path: Path) -> None:
    """Two heads of 8 in fp32 take 64 bytes a token, so 95 tokens are not a multiple of 256 bytes."""
    tiny_llm.save(tmp_path / "hf")
    lengths = "{max_sequence_length: 95, max_prefill_length: 16}"
    (tmp_path / "m.yaml").write_text(f"source: {{hf: {tmp_path}/hf}}\nllm: {lengths}\n")
    bundle = build_bundle(load_config(str(tmp_path / "m.yaml")), tmp_path / "b", new_runner(), use_cache=False).bundle
    gpu.plans.add(bundle)
    with pytest.raises(GenerationError) as error:
        LLM(bundle, runtime="tensorrt", slots=2)
    assert error.value.what == "a slot of `past_key_0` has 6080 bytes, not a multiple of TensorRT's alignment, 256"
    assert error.value.fix == "build with an `llm.max_sequence_length` that 4 divides, or use one slot"
    LLM(bundle, runtime="tensorrt", slots=1).close()


def test_generate_and_bench_run_the_engine(
    plain: Path, gpu: Simulated, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    assert workspace.is_dir()
    gpu.plans.add(open_bundle(plain))
    texts = []
    for runtime in ("tensorrt", "reference"):
        ran = trtkit("generate", plain, "the quick", "--runtime", runtime, "--json")
        texts.append(ran.json()["text"])
    assert texts[0] == texts[1]
    load = ("--unverified", "--input-len", 12, "--output-len", 5, "--requests", 4, "-q", "--json")
    for graphs, name in (("--cuda-graphs", "on"), ("--no-cuda-graphs", "off")):
        report = trtkit("bench", plain, *load, graphs).json()
        assert name in json.dumps(report), report
        assert "host memory" in json.dumps(report)


@pytest.mark.parametrize("kind", [None, "int8", "fp8"])
def test_prompts_travel_between_an_engine_and_the_reference(kind: str | None, gpu: Simulated, tmp_path: Path) -> None:
    """One computes the prompt, the other, of other sizes, the answer; both ways."""
    path, ids, bundles = str(tiny_llm.save_to_quantize(tmp_path)), list(range(10, 50)), []
    quantize = ["quantize=null"] if kind is None else ["quantize.method=none", f"quantize.kv_cache={kind}"]
    for slots, length in ((2, 96), (3, 64)):
        sizes = [f"llm.max_batch_size={slots}", f"llm.max_sequence_length={length}", "target=sm89"]
        config = load_config(path, [*quantize, *sizes])
        bundles.append(build_bundle(config, tmp_path / f"{length}", new_runner(), use_cache=False).bundle)
        gpu.plans.add(bundles[-1])
    with LLM(bundles[0].path, runtime="reference") as llm:
        want = llm.generate([ids], tiny_llm.GREEDY)[0].outputs[0].token_ids
    for runtimes in (("tensorrt", "reference"), ("reference", "tensorrt")):
        with LLM(bundles[0].path, runtime=runtimes[0]) as first, LLM(bundles[1].path, runtime=runtimes[1]) as second:
            first.generate([ids], SamplingParams(max_tokens=1))
            saved = first.frontend.engine.prefixes.export(ids)
            assert saved is not None
            assert second.frontend.engine.prefixes.add(ids, saved)
            assert second.generate([ids], tiny_llm.GREEDY)[0].outputs[0].token_ids == want
            assert second.frontend.engine.statistics.prompt_tokens == 0
            assert second.frontend.engine.statistics.imported_tokens == len(ids) - 1
