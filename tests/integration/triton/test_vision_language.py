"""A vision-language model on a real tritonserver answers about images as the same bundle in this process."""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.served_llm import answers, generate
from tests.support.tiny_vlm import VLMS, bundle_of, picture
from tests.support.triton import serving
from trtkit import LLM, SamplingParams
from trtkit.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL import Image

    from tests.support.triton import Served

VLM, MODEL, NEW = VLMS["llava"], "llava", 6
QUESTION = "What is in the picture?"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("models")
    main(["deploy", str(bundle_of(VLM)), "--repository", str(repository), "--name", MODEL, "-q"])
    with serving(repository) as server:
        yield server


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def expected(text: str, image: Image.Image) -> str:
    """Return this process' greedy answer, which other tests compare with transformers'."""
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    with LLM(bundle_of(VLM), runtime="reference") as llm:
        return llm.generate({"prompt": text, "images": [image]}, params)[0].outputs[0].text


def test_the_bytes_of_an_image_beside_a_text(served: Served) -> None:
    image, text = picture(40, 33, 0), f"{VLM.image_text}{QUESTION}"
    (found,) = answers(served, MODEL, text_input=text, image=png(image), max_tokens=NEW, ignore_eos=True)
    assert found["text_output"][0].decode() == expected(text, image)


def test_json_has_the_image_in_base64(served: Served) -> None:
    image = picture(21, 64, 1)
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    messages = json.dumps([{"role": "user", "content": content}])
    encoded = base64.b64encode(png(image)).decode()
    asked = {"messages": messages, "max_tokens": NEW, "ignore_eos": True}
    text = f"<|im_start|>user\n{VLM.image_text}{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    for form in (encoded, f"data:image/png;base64,{encoded}"):
        status, found = generate(served, MODEL, **asked, image=form)
        assert (status, found["text_output"]) == (200, expected(text, image))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("aGVsbG8=", "image 0: not a readable image: its format is none of BMP,"),
        (None, "image"),
    ],
    ids=["no image", "none for the placeholder"],
)
def test_an_image_that_is_none_is_the_clients_fault(served: Served, image: str | None, said: str) -> None:
    given = {} if image is None else {"image": image}
    status, found = generate(served, MODEL, text_input=f"{VLM.image_text}hi", max_tokens=2, **given)
    assert status == 400
    assert said in found["error"]
