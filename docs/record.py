"""Draw the output of `make demo` as docs/images/demo.svg: `FORCE_COLOR=1 make demo | python docs/record.py`.

Paths of installed packages in it were cut to the names of files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "demo.svg"
# What is shown, by the beginning of a command, and how many lines of its output at most.
SHOWN = {
    "trtkit build efficientnet-lite0": 8,
    "trtkit verify bundles/efficientnet-lite0": 19,
    "trtkit run bundles/efficientnet-lite0": 2,
    "trtkit generate bundles/llama": 3,
    "curl": 3,
}
_COLUMNS = 104
_PROMPT = re.compile(r"\n\x1b\[1m\$ (.*?)\x1b\[0m\n")
# rich's picture would fetch a font; a reader's own does.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture(recording: str) -> str:
    """Return the SVG of a recording's chosen commands, each once."""
    console = Console(record=True, width=_COLUMNS, file=open("/dev/null", "w"), force_terminal=True)  # noqa: PTH123, SIM115
    sections = _PROMPT.split("\n" + recording)[1:]
    outputs: dict[str, str] = {}
    for command, output in zip(sections[::2], sections[1::2], strict=True):
        outputs.setdefault(command, output)
    for start, lines in SHOWN.items():
        command, output = next(pair for pair in outputs.items() if pair[0].startswith(start))
        console.print(Text.from_ansi(f"\x1b[1;36m$\x1b[0m \x1b[1m{command}\x1b[0m"))
        kept = [line.rstrip() for line in output.strip("\n").splitlines()]
        console.print(Text.from_ansi("\n".join([*kept[:lines], *(["..."] if len(kept) > lines else []), ""])))
    return _FONTS.sub("", console.export_svg(title="make demo", unique_id="demo"))


if __name__ == "__main__":
    PICTURE.write_text(picture(sys.stdin.read()), encoding="utf-8")
