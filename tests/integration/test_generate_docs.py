"""Every command and program of the docs on generating text runs, on a tiny model with SmolLM2's tokenizer.

What SmolLM2 itself answers stands in test_generate_command_smollm2.py.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.support.docs import DOCS, Block, blocks, run_script
from tests.support.tiny_chat import build_smollm2_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran

PAGES = ("generate.md", "generate-files.md", "generate-python.md", "speculation.md", "generation-settings.md")
# The block that makes the real bundle, and asks it.
MADE = """\
trtkit build llama --set llm.logits=all
trtkit generate bundles/llama "What is the capital of France?"
"""


@pytest.mark.slow
def test_every_command_and_program_of_the_docs_runs(
    tmp_path: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    (workspace / "bundles").mkdir()
    (workspace / "bundles/llama").symlink_to(build_smollm2_words(tmp_path))
    made, *others = [block for page in PAGES for block in blocks(DOCS / page, "bash", "python")]
    assert made == Block("bash", MADE)
    assert {block.language for block in others} == {"bash", "python"}
    for script in (script for block in others for script in _scripts(block)):
        words = shlex.split(script)
        if words[0] == "trtkit" and not {"|", ">"} & set(words):
            assert trtkit(*words[1:]).code == 0, script  # in this process: each of its own would import torch
        else:
            run_script(script, workspace)
    answers = [json.loads(line) for line in (workspace / "answers.jsonl").read_text().splitlines()]
    assert [one["id"] for one in answers if one["finish_reason"] == "error"] == []
    assert {one["id"] for one in answers} == {"capital", 1, 2, 3}


def _scripts(block: Block) -> Iterator[str]:
    """Yield a program whole, of a shell's block each command, with what stands before it."""
    if block.language == "python":
        yield f"python - <<'END'\n{block.text}END\n"
        return
    before = ""
    for line in block.text.splitlines(keepends=True):
        if line.startswith("trtkit "):
            if before:
                yield before
            yield line
            before = ""
        else:
            before += line
    if before:
        yield before
