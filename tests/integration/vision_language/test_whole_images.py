"""Bidirectional attention within images (Gemma 3): an image is always computed whole, wherever a prompt is split."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import Gemma3Processor

from tests.support.tiny_vlm import VLMS, Reference, bundle_of, folder_of, picture, tokenizer
from trtkit import LLM, SamplingParams
from trtkit.builder.vision_language import open_vision
from trtkit.config.load import load_config
from trtkit.errors import ConfigError, ExecutionError, RequestError, SourceError
from trtkit.llm.execution import Call
from trtkit.llm.soft_tokens import SoftTokens, pieces, run_ends
from trtkit.models.vision_language.registry import vision_spec
from trtkit.models.vision_language.spec import VisionLimits
from trtkit.sources.vision_language.load import whole_config

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
VLM = VLMS["gemma3"]
IMAGE = tokenizer(VLM).hf.convert_tokens_to_ids("<image_soft_token>")


def prompt(*parts: str | int) -> dict[str, Any]:
    """Return token ids of texts and images by their seeds, one placeholder an image."""
    ids = [[IMAGE] if isinstance(part, int) else tokenizer(VLM).encode(part) for part in parts]
    images = [picture(44, 40, part) for part in parts if isinstance(part, int)]
    return {"prompt_token_ids": list(chain.from_iterable(ids)), "images": images}


PROMPTS = {
    "an image first": prompt(1, "What is it?"),
    "two in a row": prompt("Here: ", 1, 2, " and what else?"),
    "an image last": prompt("Which is it: ", 3, " or ", 1),
    "none": prompt("Gravity is"),
    "three": prompt(2, "a", 1, "b", 3, "c"),
}


@pytest.mark.parametrize("budget", [1, 6, 32])
def test_a_prompt_is_cut_between_images_only(budget: int) -> None:
    """Five prompts in three slots, with none to three images each; images have four tokens, so a budget may be less."""
    with LLM(bundle_of(VLM), runtime="reference", prefill_budget=budget) as llm:
        outputs = llm.generate(list(PROMPTS.values()), GREEDY)
    for (name, asked), output in zip(PROMPTS.items(), outputs, strict=True):
        want = Reference(VLM).greedy(output.prompt_token_ids, asked["images"], 8)
        assert list(output.outputs[0].token_ids) == want, name


def test_a_beginning_is_shared_up_to_an_image_that_others_follow() -> None:
    """Images side by side see each other, so that the first one is another if the second is."""
    alone, pair, other = (prompt("Look at this: ", *seeds, "What?") for seeds in [(1,), (1, 2), (1, 3)])
    before = len(tokenizer(VLM).encode("Look at this: "))
    with LLM(bundle_of(VLM), runtime="reference", min_shared_tokens=1) as llm:
        outputs = [llm.generate(each, GREEDY)[0] for each in (alone, pair, other, pair)]
    assert [output.metrics.reused_tokens for output in outputs[:3]] == [0, before, before]
    assert outputs[3].metrics.reused_tokens == len(outputs[3].prompt_token_ids) - 1
    for asked, output in zip((alone, pair, other, pair), outputs, strict=True):
        want = Reference(VLM).greedy(output.prompt_token_ids, asked["images"], 8)
        assert list(output.outputs[0].token_ids) == want


@pytest.mark.slow
def test_ranks_see_whole_images() -> None:
    with LLM(bundle_of(VLM, "parallel={tensor: 2, pipeline: 2}"), runtime="reference", prefill_budget=5) as llm:
        outputs = llm.generate(list(PROMPTS.values())[:3], GREEDY)
    for asked, output in zip(PROMPTS.values(), outputs, strict=False):
        assert list(output.outputs[0].token_ids) == Reference(VLM).greedy(output.prompt_token_ids, asked["images"], 8)


@pytest.mark.parametrize("text", ["\nHi\n\nIS\n\nit?", "IS ISthe  end", "<|im_start|>user\nISIS\n"])
def test_frames_are_those_of_transformers_processor(text: str) -> None:
    """Line ends around an image join those of the text next to it."""
    hf, processor = tokenizer(VLM).hf, VLM.processor
    for name in ("image", "boi", "eoi"):
        token = {"image": "<image_soft_token>", "boi": "<start_of_image>", "eoi": "<end_of_image>"}[name]
        setattr(hf, f"{name}_token", token)
        setattr(hf, f"{name}_token_id", hf.convert_tokens_to_ids(token))
    asked = text.replace("IS", "<start_of_image>")
    images = [picture(20, 30, seed) for seed in range(asked.count("<start_of_image>"))]
    want = Gemma3Processor(processor, hf, image_seq_length=4)(text=asked, images=images)["input_ids"][0]
    with LLM(bundle_of(VLM), runtime="reference") as llm:
        assert llm.frontend.reader.read({"prompt": asked, "images": images}).ids == list(want)


def test_more_tokens_side_by_side_than_a_call_takes() -> None:
    with LLM(bundle_of(VLM), runtime="reference") as llm, pytest.raises(RequestError) as caught:
        llm.generate(prompt("a", *range(9)), GREEDY)
    assert str(caught.value) == (
        "images: 36 tokens of neighbouring images see each other, and a call takes 32\n"
        "fix: separate the images by text, or build with a larger `llm.max_prefill_length`"
    )


def test_an_engine_whose_calls_hold_no_image(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(f"source: {{hf: {folder_of(VLM)}}}\nllm: {{max_prefill_length: 3}}\n")
    with pytest.raises(ConfigError) as caught:
        open_vision(load_config(str(tmp_path / "m.yaml"), ()))
    assert "llm.max_prefill_length: 3 is below the 4 tokens of an image, which see each other" in str(caught.value)
    assert "raise it to 4 or more" in str(caught.value)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("", {"mm_tokens_per_image": 5}, "`mm_tokens_per_image` is 5, and 5 x 5 patches cannot be pooled"),
        ("", {"mm_tokens_per_image": 9}, "`mm_tokens_per_image` is 9, and 5 x 5 patches cannot be pooled"),
        ("vision_config", {"model_type": "clip_vision_model"}, "known: siglip_vision_model"),
        ("text_config", {"final_logit_softcapping": 3.0}, "`text_config.final_logit_softcapping` is 3.0"),
    ],
)
def test_configs_that_are_refused(part: str, change: dict[str, Any], said: str) -> None:
    fields = whole_config(folder_of(VLM))
    inner = {part: {**fields[part], **change}} if part else change
    with pytest.raises(SourceError, match=said):
        vision_spec({**fields, **inner}, VisionLimits(4, 100))


def test_a_call_that_cuts_an_image_is_refused() -> None:
    places = np.array([2, 3, 4, 7])
    soft = SoftTokens(places, torch.zeros(4, 1), places, ends=run_ends(places))
    assert [(part.start, part.stop) for part in pieces(9, 2, soft)] == [(0, 2), (2, 5), (5, 7), (7, 9)]
    assert [(part.start, part.stop) for part in pieces(9, 4, soft)] == [(0, 2), (2, 6), (6, 9)]
    whole = Call(0, np.zeros((2, 5), np.int64), np.array([1, 0]), np.array([4, 5]), {0: soft})
    assert whole.visible_lengths().tolist() == [[2, 5, 5, 5, 6], [1, 2, 3, 4, 5]]
    cut = Call(0, np.zeros((1, 4), np.int64), np.array([0]), np.array([4]), {0: soft})
    with pytest.raises(ExecutionError, match="slot 0: a call ends within an image whose tokens see each other"):
        cut.visible_lengths()
