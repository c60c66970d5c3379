"""Runs the commands and programs of a docs page, and compares their output with what the page shows.

A page's ```bash and ```python blocks run in order, in one shell and one folder. A block after them shows their stdout:

```text    exact; a line `...` matches any lines. Bundles that an earlier test built are restored, which prints `built`.
```output  likewise, but numbers are measurements: only the words around them are compared.

```console and ```py blocks are not run: they need the reader's machine, or are parts of a program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "--- end of block {} ---"
_FIGURE = re.compile(r"\d[\d,.]*(e[-+]\d+)?")
_STOP_ALL = "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"
_RESTORED = "restored (cache hit):"
_RUN = ("bash", "python")
_SHOWN = ("text", "output")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return a page's blocks in `languages`, or all of them."""
    fenced = [Block(language, text) for language, text in _FENCE.findall(page.read_text(encoding="utf-8"))]
    return [block for block in fenced if not languages or block.language in languages]


def queried_metrics(row: int) -> set[str]:
    """Return the metrics in the queries of a row of docs/grafana.json."""
    panels = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))["panels"]
    starts = [index for index, panel in enumerate(panels) if panel["type"] == "row"] + [len(panels)]
    queries = [target["expr"] for panel in panels[starts[row] + 1 : starts[row + 1]] for target in panel["targets"]]
    return {name for query in queries for name in re.findall(r"\b(?:dynamo|nv|trtkit)_\w+", query)}


def exported_metrics(text: str) -> set[str]:
    """Return the names of all series in the text of /metrics, including those without values yet."""
    declared = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    series = set(re.findall(r"^(\w+)(?:\{| )", text, re.MULTILINE))
    return series | {name + end for name, kind in declared for end in (["_bucket"] if kind == "histogram" else [""])}


def run_script(script: str, folder: Path) -> str:
    """Run `script` in `folder`, with a link to the checkout's `examples`, until its first failure. Returns stdout."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
    command = ["bash", "-ec", script]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return ran.stdout


def run_page(page: Path, folder: Path, changes: dict[str, str] | None = None) -> str:
    """Run a page in `folder` and compare the output with what it shows. Returns all output.

    changes: texts of the page to replace, such as a port that is in use or a model that the test lacks.
    """
    story = blocks(page, *_RUN, *_SHOWN)
    lines = [_STOP_ALL]
    for number, block in enumerate(story):
        text = block.text
        for old, new in (changes or {}).items():
            text = text.replace(old, new)
        if block.language == "bash":
            lines += [text, f'echo "{_MARK.format(number)}"']
        elif block.language == "python":
            (folder / f"block_{number}.py").write_text(text, encoding="utf-8")
            lines += [f"python block_{number}.py", f'echo "{_MARK.format(number)}"']
    printed = run_script("\n".join(lines), folder).replace(_RESTORED, "built")
    _compare(page, story, printed)
    return printed


def _compare(page: Path, story: list[Block], printed: str) -> None:
    """Check every shown block against the output of the block before it."""
    last = ""
    for number, block in enumerate(story):
        if block.language in _RUN:
            last, _, printed = printed.partition(f"{_MARK.format(number)}\n")
        else:
            missing = first_missing(block.text, last, is_measured=block.language == "output")
            assert missing is None, f"{page.name} shows {missing!r}, its command printed:\n{last}"


def first_missing(shown: str, printed: str, *, is_measured: bool) -> str | None:
    """Return the first line of `shown` that `printed` lacks at its position; None if all are there."""
    have = [_plain(line, is_measured) for line in printed.splitlines()]
    place, is_gap = 0, True
    for line in shown.splitlines():
        if line.strip() == "...":
            is_gap = True
            continue
        want = _plain(line, is_measured)
        allowed = have[place:] if is_gap else have[place : place + 1]
        if want not in allowed:
            return line
        place, is_gap = place + allowed.index(want) + 1, False
    return None


def _plain(line: str, is_measured: bool) -> str:
    """Return a stripped line; if measured, without numbers and widths of columns."""
    if not is_measured:
        return line.rstrip()
    words = _FIGURE.sub("#", line).replace("~", " ").replace("-", " ")
    return " ".join(words.split())
