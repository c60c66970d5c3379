"""Parse lines of TensorRT's log."""

import logging
import re

# `[11/21/2026-07:44:25] [TRT] [E] text`
_LINE = re.compile(r"^\[[^\]]*\] \[TRT\] \[(?P<severity>[A-Z])\] (?P<text>.*)$")
_LEVELS = {"V": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_PARSING = re.compile(r"Parsing node: (?P<name>.*) \[(?P<op>\w+)\]")
# Errors always logged on a machine without a GPU; they are not the cause.
_NOISE = ("cudaError", "CUDA initialization failure with error: 35", "Cuda failure: 35", "no CUDA-capable device")


def error_lines(log: str) -> list[str]:
    """Return the distinct texts of error lines, without the noise of a missing GPU."""
    texts = []
    for line in log.splitlines():
        match = _LINE.match(line)
        if match and match["severity"] in "EF" and not any(noise in match["text"] for noise in _NOISE):
            texts.append(match["text"].strip())
    return list(dict.fromkeys(texts))


def level_of(line: str) -> int:
    """Return a line's severity as a `logging` level; INFO for lines that are not TensorRT's, and for noise."""
    match = _LINE.match(line)
    if match is None or any(noise in match["text"] for noise in _NOISE):
        return logging.INFO
    return _LEVELS.get(match["severity"][0], logging.INFO)


def warning_lines(log: str) -> list[str]:
    """Return the distinct texts of warning lines."""
    matches = (_LINE.match(line) for line in log.splitlines())
    return list(dict.fromkeys(m["text"].strip() for m in matches if m and m["severity"] == "W"))


def parsed_node(text: str) -> str | None:
    """Return the node name in a parser's log text; None if the text names none."""
    match = _PARSING.match(text)
    return match["name"] if match else None


def last_parsed_node(log: str) -> str:
    """Return "Op `name`" of the last parsed node in a verbose log; empty if there is none."""
    matches = list(_PARSING.finditer(log))
    return f"{matches[-1]['op']} `{matches[-1]['name']}`" if matches else ""


def last_lines(log: str, count: int = 6) -> str:
    """Return the last lines that are not blank."""
    lines = [line for line in log.splitlines() if line.strip()]
    return "\n".join(lines[-count:])
