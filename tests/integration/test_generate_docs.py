"""Every command and program of docs/generate.md runs, on a tiny model that reads SmolLM2's tokens.

What SmolLM2 itself answers stands in test_generate_command_smollm2.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_chat import build_smollm2_words

# The block that makes the real bundle, and asks it.
MADE = """\
trtkit build --config llama --set llm.logits=all
trtkit generate bundles/llama --prompt "What is the capital of France?"
"""


@pytest.mark.slow
def test_every_command_and_program_of_the_docs_runs(tmp_path: Path, workspace: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/generate.md").read_text(encoding="utf-8")
    (workspace / "bundles").mkdir()
    (workspace / "bundles/llama").symlink_to(build_smollm2_words(tmp_path))
    blocks = re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"bash", "python"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    made, *blocks = blocks
    assert made == ("bash", MADE)
    for kind, block in blocks:
        words = ["bash", "-ec"] if kind == "bash" else [sys.executable, "-c"]
        environment = {**os.environ, "PATH": path}
        done = subprocess.run([*words, block], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, block + done.stderr
    answers = [json.loads(line) for line in (workspace / "answers.jsonl").read_text().splitlines()]
    assert [one["id"] for one in answers if one["finish_reason"] == "error"] == []
    assert {one["id"] for one in answers} == {"capital", 1, 2, 3}
