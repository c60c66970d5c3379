"""Prompts out of options and files; every bad line at once, with its place."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from trtkit.errors import RequestError
from trtkit.llm import PromptLines, PromptsError, read_prompts

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, text: str, name: str = "p.jsonl") -> PromptLines:
    (folder / name).write_text(text)
    return read_prompts(folder / name)


def fault(folder: Path, line: str) -> str:
    """Return what is wrong with a line, and how to fix it."""
    with pytest.raises(PromptsError) as raised:
        read(folder, line + "\n").check()
    assert raised.value.exit_code == 2
    (problem,) = raised.value.problems
    assert problem.where == f"{folder / 'p.jsonl'}:1"
    return f"{problem.what} | {problem.fix}"


def test_options_and_lines_become_prompts_in_order(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "b", "id": "x", "temperature": 0.5}\n\n{"messages": [{"role": "user", "content": "c"}]}\n'
        '{"prompt_token_ids": [3, 4]}'
    )
    lines = read_prompts(tmp_path / "p.jsonl", ("a",))
    lines.check()
    assert [(one.id, one.kind, one.content, one.line, one.settings) for one in lines.prompts] == [
        (0, "prompt", "a", 0, {}),
        ("x", "prompt", "b", 1, {"temperature": 0.5}),
        (2, "messages", [{"role": "user", "content": "c"}], 3, {}),
        (3, "prompt_token_ids", [3, 4], 4, {}),
    ]


def test_a_text_files_lines_are_prompts_as_they_stand(tmp_path: Path) -> None:
    prompts = read(tmp_path, 'one\r\n\n{"prompt": 2}\n  three\n', "p.txt").prompts
    assert [one.content for one in prompts] == ["one", '{"prompt": 2}', "  three"]


def test_stdin_is_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO('\ufeff{"prompt": "é"}\n[]'.encode())))
    lines = read_prompts("-")
    assert [one.content for one in lines.prompts] == ["é"]
    assert [problem.where for _, problem in lines.problems] == ["stdin:2"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Gravity is",
            "invalid JSON: Expecting value: line 1 column 1 (char 0) | write one object per line: "
            '{"prompt": "Gravity is"}; plain lines need a name that ends in .txt',
        ),
        ('["a"]', '`["a"]` is not an object | write {"prompt": ...}'),
        ('{"temperature": 1}', "has no prompt | give one of `prompt`, `messages`, `prompt_token_ids`, `audio`"),
        (
            '{"prompt": "a", "prompt_token_ids": [1]}',
            "has `prompt` and `prompt_token_ids` | give one of `prompt`, `messages`, `prompt_token_ids`, `audio`",
        ),
        ('{"prompt": " "}', "the prompt is empty | "),
        ('{"prompt": 5}', "`prompt` is 5, not text | "),
        ('{"messages": []}', "`messages` is not a list of at least one message | "),
        (
            '{"messages": [{"role": "user"}]}',
            'message 0 has no `role` or no `content` | write {"role": "user", "content": "..."}',
        ),
        ('{"prompt_token_ids": []}', "`prompt_token_ids` is not a list of at least one token id | "),
        ('{"prompt_token_ids": [1, -2]}', "`prompt_token_ids` has -2, which is not a token id | "),
        ('{"prompt": "a", "id": [1]}', "`id` is [1], neither text nor a whole number | "),
    ],
)
def test_a_bad_line_says_why(line: str, expected: str, tmp_path: Path) -> None:
    assert fault(tmp_path, line) == expected


def test_all_bad_lines_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(PromptsError) as raised:
        read(tmp_path, '{"prompt": "a", "id": 1}\n{\n{"prompt": "b", "id": 1}\n{"prompt": ""}').check()
    path = tmp_path / "p.jsonl"
    assert str(raised.value) == (
        "the prompts cannot be used; nothing was run\n"
        f"  {path}:2: invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
        '    fix: write one object per line: {"prompt": "Gravity is"}; plain lines need a name that ends in .txt\n'
        f"  {path}:3: the id 1 is also used by {path}:1\n"
        "    fix: give each prompt a unique id\n"
        f"  {path}:4: the prompt is empty"
    )


def test_an_empty_option_is_refused() -> None:
    with pytest.raises(PromptsError, match="--prompt: the prompt is empty"):
        read_prompts(texts=("a", "")).check()


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match="the file holds no prompts"):
        read(tmp_path, "\n\n").check()


@pytest.mark.parametrize(
    ("data", "expected"),
    [(None, "the prompts cannot be read: No such file or directory"), (b"\xff", "the prompts cannot be read: 'utf-8'")],
)
def test_a_file_that_cannot_be_read_says_why(data: Any, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(RequestError, match=expected) as raised:
        read_prompts(path)
    assert raised.value.where == str(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"prompt": "a\\nb"}', "a"),
        ('{"prompt_token_ids": [1, 2]}', "2 token ids"),
        ('{"messages": [{"role": "user", "content": "Hi"}]}', "Hi"),
        (f'{{"prompt": "{"x" * 80}"}}', "x" * 72 + "..."),
    ],
)
def test_a_heading_is_one_short_line(line: str, expected: str, tmp_path: Path) -> None:
    assert read(tmp_path, line).prompts[0].heading == expected
