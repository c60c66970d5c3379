"""Every vision-language family against transformers: soft tokens, logits, greedy tokens, texts with placeholders."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import Idefics3Processor, InternVLProcessor, LlavaProcessor

from tests.support.tiny_vlm import VLMS, Reference, Vlm, bundle_of, folder_of, picture, tokenizer
from trtkit import LLM, SamplingParams
from trtkit.bundle.bundle import open_bundle

if TYPE_CHECKING:
    from PIL.Image import Image

SIZES = {"square": (30, 30), "wide": (90, 33), "high": (21, 64), "small": (9, 11)}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
TOLERANCE = 2e-5
VARIANTS = {"internvl-shallow", "gemma3-odd", "qwen3-vl-plain", "qwen3-vl-deep", "qwen3-vl-moe", "qwen3.5-moe"}
families = pytest.mark.parametrize(
    "vlm",
    [
        pytest.param(each, marks=pytest.mark.slow if each.name in VARIANTS else (), id=each.name)
        for each in VLMS.values()
    ],
)


@cache
def llm_of(vlm: Vlm) -> LLM:
    """Return the model on the reference executor."""
    return LLM(bundle_of(vlm), runtime="reference")


@cache
def reference_of(vlm: Vlm) -> Reference:
    return Reference(vlm)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def prompts_of(vlm: Vlm) -> dict[str, tuple[str, list[Image]]]:
    """Return texts with their images: each size alone, two in one prompt, none."""
    image = vlm.image_text
    one = {name: (f"What is {image} here?", [picture(*size)]) for name, size in SIZES.items()}
    two = {"two": (f"{image}the first and {image} the second", [picture(90, 33), picture(21, 64, seed=1)])}
    return {**one, **two, "none": ("Gravity is", [])}


@families
def test_soft_tokens_are_those_of_transformers(vlm: Vlm) -> None:
    frontend = llm_of(vlm).frontend
    for name, (text, images) in prompts_of(vlm).items():
        if images:
            read = frontend.reader.read({"prompt": text, "images": images})
            soft = frontend.soft_tokens(read)
            assert soft is not None
            assert relative_error(soft.vectors, reference_of(vlm).features(images)) <= TOLERANCE, name


@families
def test_logits_are_those_of_transformers(vlm: Vlm) -> None:
    """Through `prompt_logprobs`: what the engine saw at every position of the prompt, in chunks."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, ignore_eos=True)
    for name, (text, images) in prompts_of(vlm).items():
        output = llm_of(vlm).generate({"prompt": text, "images": images}, params)[0]
        ids, found = list(output.prompt_token_ids), output.prompt_logprobs
        assert found is not None
        want = torch.log_softmax(reference_of(vlm).logits(ids, images), -1)[:-1]
        expected = want[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        got = torch.tensor([place.logprob for place in found])
        assert relative_error(got, expected) <= TOLERANCE, name


@families
def test_greedy_tokens_are_those_of_transformers(vlm: Vlm) -> None:
    """All prompts in one batch of three slots: with one image, with two, without."""
    prompts = prompts_of(vlm)
    asked = [{"prompt": text, "images": images} for text, images in prompts.values()]
    for output, (text, images) in zip(llm_of(vlm).generate(asked, GREEDY), prompts.values(), strict=True):
        want = reference_of(vlm).greedy(output.prompt_token_ids, images, 12)
        assert list(output.outputs[0].token_ids) == want, text


@families
def test_messages_hold_images_and_text(vlm: Vlm) -> None:
    image = picture(90, 33)
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": content}]
    filled = [{"role": "user", "content": [{"type": "image", "image": image}, content[1]]}]
    text = f"<|im_start|>user\n{vlm.image_text}What is it?<|im_end|>\n<|im_start|>assistant\n"
    asked = [{"messages": messages, "images": [image]}, {"messages": filled}, {"prompt": text, "images": image}]
    outputs = llm_of(vlm).generate(asked, GREEDY)
    assert len({output.prompt_token_ids for output in outputs}) == 1
    assert len({output.outputs[0].token_ids for output in outputs}) == 1
    assert llm_of(vlm).chat([{"role": "user", "content": "Hi"}], GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize("name", ["llava", "llava-siglip", "idefics3", "smolvlm"])
def test_placeholders_are_those_of_transformers_processors(name: str) -> None:
    """SmolVLM's processor wants a package that is not here; it writes what that of Idefics3 does."""
    vlm = VLMS[name]
    hf, processor = tokenizer(vlm).hf, vlm.processor
    if vlm.model_type == "llava":
        patch, strategy = vlm.config["vision_config"]["patch_size"], vlm.config.get("vision_feature_select_strategy")
        more = {"num_additional_image_tokens": int(strategy is None)}
        whole = LlavaProcessor(processor, hf, patch, strategy or "default", **more)
    else:
        whole = Idefics3Processor(VLMS["idefics3"].processor, hf, image_seq_len=4)
    for text, images in prompts_of(vlm).values():
        if images:
            want = whole(text=text, images=[images] if vlm.model_type != "llava" else images)["input_ids"][0]
            read = llm_of(vlm).frontend.reader.read({"prompt": text, "images": images})
            assert read.ids == list(want)


def test_crops_are_marked_as_transformers_processor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos' part of it wants a package that is not here."""
    monkeypatch.setattr(InternVLProcessor, "check_argument_for_proper_class", lambda *_: None)
    vlm = VLMS["internvl"]
    hf = tokenizer(vlm).hf
    for name, token in {"start_image": "<img>", "end_image": "</img>", "context_image": "<IMG_CONTEXT>"}.items():
        setattr(hf, f"{name}_token", token)
        setattr(hf, f"{name}_token_id", hf.convert_tokens_to_ids(token))
    hf.video_token = "<|video_pad|>"
    whole = InternVLProcessor(vlm.processor, hf, image_seq_length=4)
    for text, images in prompts_of(vlm).values():
        if images:
            want = whole(text=text, images=images)["input_ids"][0]
            assert llm_of(vlm).frontend.reader.read({"prompt": text, "images": images}).ids == list(want)


@families
def test_a_bundle_holds_both_engines_and_what_runs_them(vlm: Vlm) -> None:
    bundle = open_bundle(bundle_of(vlm))
    bundle.check_files()
    assert [file.path for file in bundle.manifest.engines] == ["engines/vision.plan", "engines/llm.plan"]
    vision, decoder = bundle.manifest.images, bundle.manifest.decoder
    assert vision is not None
    assert decoder is not None
    assert decoder.embeddings is not None
    names = {tensor.name for tensor in bundle.manifest.inputs}
    assert ("prompt_visible_lengths" in names) == (vlm.model_type == "gemma3")
    assert ("rope_position_ids" in names) == vision.has_grid_positions == vlm.model_type.startswith("qwen")
    assert "input_ids" not in names
    assert (folder_of(vlm) / "preprocessor_config.json").read_bytes() == (
        bundle.path / "model" / "preprocessor_config.json"
    ).read_bytes()
