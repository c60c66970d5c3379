"""`trtkit serve` with several models: which option is whose."""

from __future__ import annotations

from typing import Any

import click
import pytest

from trtkit.cli.serve import _of_each_model

NONE: dict[str, Any] = {"name": (), "lora": (), "tool_call_parser": (), "reasoning_parser": ()}
UNSET = dict.fromkeys(NONE)


def test_the_values_of_one_model_are_taken_as_they_are() -> None:
    options = NONE | {"name": ("a=b",), "lora": ("fr=x=y", "de=z"), "tool_call_parser": ("hermes",)}
    own = {"name": "a=b", "lora": {"fr": "x=y", "de": "z"}, "tool_call_parser": "hermes", "reasoning_parser": None}
    assert _of_each_model(["bundles/llama"], options) == [own]


def test_the_values_of_several_models_name_theirs() -> None:
    options = NONE | {"name": ("qwen=chat",), "lora": ("qwen=fr=x", "bundles/llama=fr=y", "qwen=de=z=1")}
    assert _of_each_model(["bundles/llama", "Qwen/qwen"], options) == [
        UNSET | {"lora": {"fr": "y"}},
        UNSET | {"name": "chat", "lora": {"fr": "x", "de": "z=1"}},
    ]


def test_folders_of_one_name_are_told_apart_by_their_paths() -> None:
    assert _of_each_model(["a/llama", "b/llama"], NONE | {"name": ("b/llama=b",)}) == [UNSET, UNSET | {"name": "b"}]
    with pytest.raises(click.UsageError, match="MODEL is one of a/llama, b/llama"):
        _of_each_model(["a/llama", "b/llama"], NONE | {"name": ("llama=b",)})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ("a=x", "b=y", "a=z")}, "--name has 2 values for a: give one"),
        ({"reasoning_parser": ("qwen3",)}, "--reasoning-parser qwen3: with several models, write MODEL=VALUE"),
        ({"lora": ("a=fr",)}, "`fr` is not NAME=FOLDER"),
        ({"lora": ("a=fr=x", "a=fr=y")}, "two adapters have the same name"),
    ],
)
def test_values_that_fit_no_model_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(click.UsageError, match=error):
        _of_each_model(["a", "b"], NONE | options)
