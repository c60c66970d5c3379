"""Images in the engine: chunked prefill, shared prefixes, preemption, beams, guesses, many images."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.support.tiny_vlm import MAX_PREFILL, VLMS, Reference, Vlm, bundle_of, model_of, picture
from trtkit import LLM, SamplingParams
from trtkit.inputs.vision_language import PreparedImage
from trtkit.llm.engine import LookupProposer
from trtkit.llm.images.image_prompts import rope_positions
from trtkit.llm.scheduler import SchedulingParams
from trtkit.llm.soft_tokens import SoftTokens, shared_length

if TYPE_CHECKING:
    from typing import Any

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
some = pytest.mark.parametrize("vlm", [VLMS["llava"], VLMS["smolvlm"], VLMS["qwen2-vl"]], ids=str)


def asked(vlm: Vlm, seed: int = 0, words: str = "What do you see there?") -> dict[str, Any]:
    return {"prompt": f"Look at {vlm.image_text}. {words}", "images": [picture(44, 40, seed)]}


@cache
def fresh_answer(vlm: Vlm, seed: int = 0) -> tuple[int, ...]:
    """Return transformers' greedy answer to `asked`, after checking that it is the engine's own."""
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        output = llm.generate(asked(vlm, seed), GREEDY)[0]
    want = Reference(vlm).greedy(output.prompt_token_ids, asked(vlm, seed)["images"], 8)
    assert list(output.outputs[0].token_ids) == want
    return output.outputs[0].token_ids


@some
@pytest.mark.parametrize("budget", [1, 5, MAX_PREFILL])
def test_a_prompt_may_be_cut_anywhere_in_an_image(vlm: Vlm, budget: int) -> None:
    with LLM(bundle_of(vlm), runtime="reference", prefill_budget=budget) as llm:
        assert llm.generate(asked(vlm), GREEDY)[0].outputs[0].token_ids == fresh_answer(vlm)


@pytest.mark.parametrize("vlm", [VLMS["qwen2-vl"]], ids=str)
def test_images_reach_every_rank(vlm: Vlm) -> None:
    """Vectors and M-RoPE's positions of two prompts at once, in chunks, on two stages of two ranks."""
    with LLM(bundle_of(vlm, "parallel={tensor: 2, pipeline: 2}"), runtime="reference", prefill_budget=5) as llm:
        outputs = llm.generate([asked(vlm), asked(vlm, seed=1)], GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == [fresh_answer(vlm), fresh_answer(vlm, 1)]


@some
def test_a_beginning_is_shared_with_the_same_image_only(vlm: Vlm) -> None:
    """The same prompt again is found whole; another image of the same size shares the words before it only."""
    with LLM(bundle_of(vlm), runtime="reference", min_shared_tokens=1) as llm:
        first, again = (llm.generate(asked(vlm), GREEDY)[0] for _ in range(2))
        other = llm.generate(asked(vlm, seed=1), GREEDY)[0]
        record = llm.frontend.bundle.manifest.images
        before = first.prompt_token_ids.index(record.image_token_id if record else 0)
    assert again.metrics.reused_tokens == len(first.prompt_token_ids) - 1
    assert other.prompt_token_ids == first.prompt_token_ids
    assert other.metrics.reused_tokens == before
    assert first.outputs[0].token_ids == again.outputs[0].token_ids == fresh_answer(vlm)
    assert other.outputs[0].token_ids == fresh_answer(vlm, 1) != fresh_answer(vlm)


@some
def test_requests_at_once_share_the_same_image_only(vlm: Vlm) -> None:
    """All are admitted together; the last two begin when both images have been computed."""
    with LLM(bundle_of(vlm), runtime="reference", min_shared_tokens=1) as llm:
        outputs = llm.generate([asked(vlm, seed) for seed in (0, 1, 0, 1)], GREEDY)
        record = llm.frontend.bundle.manifest.images
    prompt = outputs[0].prompt_token_ids
    before = prompt.index(record.image_token_id if record else 0)
    for seed, output in zip((0, 1, 0, 1), outputs, strict=True):
        assert output.outputs[0].token_ids == fresh_answer(vlm, seed)
    assert fresh_answer(vlm) != fresh_answer(vlm, 1)
    assert [output.metrics.reused_tokens for output in outputs[:2]] == [0, before]
    assert min(output.metrics.reused_tokens for output in outputs[2:]) > before


@pytest.mark.parametrize("vlm", [VLMS["qwen2-vl"], VLMS["gemma3"]], ids=str)
def test_pages_hold_the_same_image_only(vlm: Vlm) -> None:
    """A page may end within an image, also where its tokens see each other: the next one was computed with it."""
    with LLM(bundle_of(vlm, "llm.kv=paged", "llm.page_tokens=16"), runtime="reference", min_shared_tokens=1) as llm:
        first, again = (llm.generate(asked(vlm), GREEDY)[0] for _ in range(2))
        other = llm.generate(asked(vlm, seed=1), GREEDY)[0]
        record = llm.frontend.bundle.manifest.images
        before = first.prompt_token_ids.index(record.image_token_id if record else 0)
    assert again.metrics.reused_tokens == (len(first.prompt_token_ids) - 1) // 16 * 16
    assert other.metrics.reused_tokens == before // 16 * 16
    assert first.outputs[0].token_ids == again.outputs[0].token_ids == fresh_answer(vlm)
    assert other.outputs[0].token_ids == fresh_answer(vlm, 1)


@some
def test_a_conversation_goes_on_behind_its_image(vlm: Vlm) -> None:
    """A longer prompt of the same beginning reads its own end only, and answers as if it were new."""
    longer = asked(vlm, words="What do you see there? And what else is in it?")
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        llm.generate(asked(vlm), GREEDY)
        output = llm.generate(longer, GREEDY)[0]
    assert output.metrics.reused_tokens > 16
    assert list(output.outputs[0].token_ids) == Reference(vlm).greedy(output.prompt_token_ids, longer["images"], 8)


@some
def test_text_and_image_requests_share_a_batch(vlm: Vlm) -> None:
    texts: list[Any] = ["Gravity is", "The capital of France is"]
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        alone = [llm.generate(text, GREEDY)[0].outputs[0].token_ids for text in texts]
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        outputs = llm.generate([texts[0], asked(vlm), texts[1], asked(vlm, 1)], GREEDY)
    found = [output.outputs[0].token_ids for output in outputs]
    assert found == [alone[0], fresh_answer(vlm), alone[1], fresh_answer(vlm, 1)]


@pytest.mark.parametrize("caches", [(), ("llm.kv=paged", "llm.page_tokens=16")], ids=["linear", "paged"])
@pytest.mark.parametrize("vlm", [VLMS["llava"], VLMS["qwen2-vl"], VLMS["gemma3"]], ids=str)
def test_images_are_read_in_calls_in_which_others_decode(
    vlm: Vlm, caches: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors, M-RoPE's positions, and images whose tokens see each other, in packed calls; with guesses, too."""
    texts: list[Any] = ["Gravity is", "The capital of France is"]
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        alone = [llm.generate(text, GREEDY)[0].outputs[0].token_ids for text in texts]
    with LLM(bundle_of(vlm, "llm.batching=packed", *caches), runtime="reference") as llm:
        outputs = llm.generate([texts[0], asked(vlm), texts[1], asked(vlm, 1)], GREEDY)
        assert llm.statistics.network_calls <= llm.statistics.steps
    found = [output.outputs[0].token_ids for output in outputs]
    assert found == [alone[0], fresh_answer(vlm), alone[1], fresh_answer(vlm, 1)]
    monkeypatch.setattr("trtkit.llm.networks.LookupProposer", partial(LookupProposer, shortest=1))
    with LLM(bundle_of(vlm, "llm.batching=packed", *caches), runtime="reference", lookup=3, prefill_budget=40) as llm:
        outputs = llm.generate([texts[0], asked(vlm), texts[1], asked(vlm, 1)], GREEDY)
        assert llm.statistics.drafted_tokens > 0
    assert [output.outputs[0].token_ids for output in outputs] == found


@some
def test_a_preempted_request_keeps_its_image(vlm: Vlm) -> None:
    with LLM(bundle_of(vlm), runtime="reference", slots=1) as llm:
        frontend, done = llm.frontend, {}
        slow = frontend.add(asked(vlm), GREEDY, scheduling=SchedulingParams(1))
        while not slow.requests[0].metrics.first_token_s:
            frontend.step()
        urgent = frontend.add(asked(vlm, 1), GREEDY, scheduling=SchedulingParams(0))
        while frontend.jobs:
            done |= {job.id: job.output() for job in frontend.step()}
    assert done[slow.id].metrics.preemptions == 1
    assert done[slow.id].outputs[0].token_ids == fresh_answer(vlm)
    assert done[urgent.id].outputs[0].token_ids == fresh_answer(vlm, 1)


@some
def test_beams_are_those_of_transformers(vlm: Vlm) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, num_beams=3, ignore_eos=True)
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        output = llm.generate(asked(vlm), params)[0]
    reference, ids = Reference(vlm), output.prompt_token_ids
    inputs = reference.inputs(ids, asked(vlm)["images"])
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        want = reference.model.generate(**inputs, **options)[0, len(ids) :].tolist()
    assert list(output.outputs[0].token_ids) == want


@some
def test_guesses_and_several_answers_change_nothing(vlm: Vlm) -> None:
    many = SamplingParams(temperature=0.7, seed=3, max_tokens=8, n=2, ignore_eos=True)
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        plain = [output.token_ids for output in llm.generate(asked(vlm), many)[0].outputs]
    with LLM(bundle_of(vlm), runtime="reference", lookup=3) as llm:
        guessed = [output.token_ids for output in llm.generate(asked(vlm), many)[0].outputs]
        pieces = [token for delta in llm.stream(asked(vlm), GREEDY) for token in delta.token_ids]
    assert plain == guessed
    assert tuple(pieces) == fresh_answer(vlm)


@some
def test_more_images_than_a_call_of_the_tower_takes(vlm: Vlm) -> None:
    images = [picture(20, 20, seed) for seed in range(4)]
    prompt = {"prompt": vlm.image_text * 4, "images": images}
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        soft = llm.frontend.soft_tokens(llm.frontend.reader.read(prompt))
    assert soft is not None
    want = Reference(vlm).features(images)
    assert float((soft.vectors - want).norm() / want.norm()) <= 2e-5


def test_positions_are_those_of_transformers() -> None:
    """Two images and the text around them, beside `get_rope_index`."""
    grids, gaps = [(1, 3, 5), (1, 4, 2)], [4, 1, 6]
    kinds = [0] * gaps[0]
    for (time, rows, columns), gap in zip(grids, gaps[1:], strict=True):
        kinds += [1] * (time * rows * columns) + [0] * gap
    model = model_of(VLMS["qwen2-vl"]).model
    patches = torch.tensor([(time, 2 * rows, 2 * columns) for time, rows, columns in grids])
    want, delta = model.get_rope_index(torch.tensor([kinds]), torch.tensor([kinds]), image_grid_thw=patches)
    images = [PreparedImage({}, time * rows * columns, 0, grid=(time, rows, columns)) for time, rows, columns in grids]
    places = np.flatnonzero(kinds)
    got = rope_positions(len(kinds), places, images)
    assert got.tolist() == want[:, 0].tolist()
    soft = SoftTokens(places, torch.zeros(len(places), 1), places, got)
    after = soft.rope_at(len(kinds) - 1, 3)
    assert after is not None
    assert after[0].tolist() == [len(kinds) - 1 + int(delta) + step for step in range(3)]
    later = soft.rope_at(len(kinds) + 4, 2)
    assert later is not None
    assert later[2].tolist() == [len(kinds) + 4 + int(delta), len(kinds) + 5 + int(delta)]


def test_prompts_part_where_their_images_do() -> None:
    def soft(places: list[int], keys: list[int]) -> SoftTokens:
        return SoftTokens(np.array(places), torch.zeros(len(places), 1), np.array(keys))

    assert shared_length(None, None) is None
    assert shared_length(soft([2, 3], [7, 8]), None) == shared_length(None, soft([2, 3], [7, 8])) == 2
    assert shared_length(soft([2, 3], [7, 8]), soft([2, 3], [7, 8])) is None
    assert shared_length(soft([2, 3], [7, 8]), soft([2, 3], [7, 9])) == 3
    assert shared_length(soft([2, 3], [7, 8]), soft([2, 3, 9], [7, 8, 1])) == 9
