"""OpenAI's client sends images: answers equal the bundle's in this process, and no URL is fetched."""

from __future__ import annotations

import base64
import io
import socket
from typing import TYPE_CHECKING, Any

import pytest
from openai import BadRequestError
from PIL import Image

from tests.support.dynamo import MODEL, Served, serving
from tests.support.tiny_vlm import VLMS, bundle_of, picture
from trtkit import LLM, SamplingParams
from trtkit.deployment.dynamo import fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai import OpenAI

GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.9, "top_p": 0.8, "seed": 5}
WIDE, TALL = picture(40, 33, 0), picture(21, 64, 1)
CASES: list[tuple[Any, dict[str, float]]] = [
    ((WIDE, "What is it?"), GREEDY),
    (("What is it?", TALL), SEEDED),
    ((TALL, WIDE, "Which one?"), GREEDY),
    (("First:", WIDE, "then:", TALL, "?"), SEEDED),
    (("No picture.",), GREEDY),
]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in VLMS if name != "llava"]


@pytest.fixture(scope="module", params=["llava", *SLOW])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(family: str) -> Iterator[Served]:
    """A worker, and a frontend that by its own rules might fetch from this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fleet._FRONTEND, "DYN_MM_ALLOW_INTERNAL", "1")
        with serving(bundle_of(VLMS[family])) as running:
            yield running


@pytest.fixture(scope="module")
def client(served: Served) -> OpenAI:
    return served.client()


def data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def sent(part: Image.Image | str) -> dict[str, Any]:
    """Return a part of a message as OpenAI's clients write it."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


def own(part: Image.Image | str) -> dict[str, Any]:
    """Return a part of a message as `LLM` takes it."""
    return sent(part) if isinstance(part, str) else {"type": "image", "image": part}


def ask(client: OpenAI, content: Any, **settings: Any) -> Any:
    messages: Any = [{"role": "user", "content": content}]
    settings = {"max_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}, **settings}
    return client.chat.completions.create(model=MODEL, messages=messages, **settings)


def ask_about(client: OpenAI, url: str) -> Any:
    return ask(client, [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}])


def test_pictures_before_between_and_after_text(client: OpenAI, family: str) -> None:
    with LLM(bundle_of(VLMS[family])) as llm:
        for parts, settings in CASES:
            params = SamplingParams(max_tokens=6, ignore_eos=True, **settings)  # type: ignore[arg-type]
            wanted = llm.generate([{"messages": [{"role": "user", "content": [*map(own, parts)]}]}], params)[0]
            answer = ask(client, [*map(sent, parts)], **settings)
            assert answer.choices[0].message.content == wanted.outputs[0].text
            assert answer.usage.prompt_tokens == len(wanted.prompt_token_ids)
            pieces = ask(client, [*map(sent, parts)], stream=True, **settings)
            assert "".join(each.choices[0].delta.content or "" for each in pieces) == wanted.outputs[0].text
        text = client.completions.create(model=MODEL, prompt="No picture.", max_tokens=6, temperature=0).choices[0].text
        assert text == llm.generate(["No picture."], SamplingParams(max_tokens=6, temperature=0.0))[0].outputs[0].text


def test_addresses_are_refused_and_nothing_is_fetched(client: OpenAI) -> None:
    """The frontend would look at the picture's size for its router."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(BadRequestError, match=r"`http://localhost:.*cat\.png` is not an image in a data URL"):
            ask_about(client, f"http://localhost:{listener.getsockname()[1]}/cat.png")
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file:///etc/passwd", "`file:///etc/passwd` is not an image in a data URL"),
        ("data:text/plain;base64,aGVsbG8=", "is not an image in a data URL"),
        (
            "data:image/png;base64,aGVsbG8=",
            "image 0: not a readable image: its format is none of BMP,",
        ),
        (data_url(WIDE)[:422], "image 0: not a readable image: image file is truncated"),
        ("data:image/png;base64,%%%", "the image is not base64"),
        (Image.new("1", (9500, 9500)), "the images have more than 89478485 pixels in total"),
        (Image.new("1", (20_000, 20_000)), "image 0: an image of more than 178956970 pixels"),
    ],
    ids=["a file", "a text", "no image", "a part", "no base64", "large", "a bomb"],
)
def test_what_is_no_picture_is_refused_by_name(client: OpenAI, url: str | Image.Image, text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        ask_about(client, url if isinstance(url, str) else data_url(url))
    assert ask(client, "still there?").choices[0].finish_reason == "length"


def test_what_the_model_does_not_take_is_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="a slot holds 160"):
        ask(client, [sent(WIDE)] * 20)
    with pytest.raises(BadRequestError, match="`video_url` is not supported"):
        ask(client, [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,aGVsbG8="}}])
