"""Lines of servers as JSON objects, and keys that no log shows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from trtkit.cli.logs import without_keys
from trtkit.cli.say import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DYNAMO = "2026-11-28T09:30:00.123456Z  WARN dynamo_llm::http: a slow \u201cclient\u201d"


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        (DYNAMO, "WARNING", "dynamo_llm::http: a slow \u201cclient\u201d"),
        ("2026-11-28T09:30:00Z ERROR x: y", "ERROR", "x: y"),
        ("I1128 09:30:00.123456 77 server.cc:1] started", "INFO", "I1128 09:30:00.123456 77 server.cc:1] started"),
        ("W1128 09:30:00.123456 77 pinned.cc:1] no GPU", "WARNING", "W1128 09:30:00.123456 77 pinned.cc:1] no GPU"),
        ("Error in the middle of a text", "INFO", "Error in the middle of a text"),
        ('{"of": "a worker"}', "INFO", '{"of": "a worker"}'),
        ("", "INFO", ""),
    ],
)
def test_a_line_is_one_object(line: str, level: str, message: str) -> None:
    text = record("worker 0", line)
    assert "\n" not in text
    fields = json.loads(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", fields.pop("time"))
    assert fields == {"level": level, "process": "worker 0", "message": message}


def test_a_line_keeps_its_own_time() -> None:
    assert json.loads(record("frontend", DYNAMO))["time"] == "2026-11-28T09:30:00.123456Z"


def test_an_error_that_ends_the_command_is_in_the_log(trtkit: Callable[..., object], workspace: Path) -> None:
    (workspace / "models").mkdir()
    ran = trtkit("serve", "models", "--log-format", "json")
    assert (ran.code, ran.out) == (1, "")
    fields = json.loads(ran.err)
    assert (fields["level"], fields["process"]) == ("ERROR", "trtkit")
    assert fields["message"].startswith("models: no models: no folder has a `config.pbtxt`\nfix: ")


def test_a_path_that_does_not_exist_is_no_repository(trtkit: Callable[..., object], workspace: Path) -> None:
    for words in ([], ["--replicas", "2"]):  # options of bundles are not refused here
        ran = trtkit("serve", "bundles/resnet50", *words)
        error = "bundles/resnet50: no such bundle, model or repository\nfix: build it: `trtkit build resnet50`"
        assert (ran.code, ran.err) == (1, f"error: {error}\n")


def test_two_forms_at_once_are_refused(trtkit: Callable[..., object], workspace: Path) -> None:
    ran = trtkit("serve", "models", "--log-format", "json", "--verbose")
    assert ran.code == 2
    assert "--log-format json and --verbose cannot be used together" in ran.err


@pytest.mark.parametrize("words", [["--api-key", "secret"], ["--api-key=secret"]])
def test_no_log_shows_a_key(
    words: list[str], trtkit: Callable[..., object], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "secret" not in " ".join(without_keys(["serve", *words, "--name", "api-key"]))
    trtkit("serve", "models", *words, "--log-file", "log.txt")
    log = (workspace / "log.txt").read_text()
    assert "trtkit serve models --api-key" in log.replace("=", " ")
    assert "secret" not in log


def test_a_key_is_for_language_models(
    trtkit: Callable[..., object], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton would serve without asking for it."""
    monkeypatch.setenv("TRTKIT_API_KEY", "secret")
    (workspace / "models").mkdir()
    ran = trtkit("serve", "models")
    assert ran.code == 2
    assert "--api-key is for a bundle: unset TRTKIT_API_KEY, or put a proxy before Triton" in ran.err
