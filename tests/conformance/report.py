"""Write what the conformance run found, for people and for programs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .case import Outcome

# Names and characters a row may have; benchmarks/conformance.json has all.
_EXAMPLES, _LONGEST = 3, 110

# Where a message goes over to TensorRT's source code, or to the values of one case.
_SOURCE = re.compile(
    r" ?\[?checkMacros\.cpp|\.? \[[a-z]*$| In operator\(\)| \(In |\. In \w+ at "
    r"| see details in| (?:The current input type|Type) is"
)


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """Count the stages that cases reached."""
    return {
        "cases": len(outcomes),
        "parsed": sum(outcome.parsed for outcome in outcomes),
        "built": sum(outcome.built for outcome in outcomes),
        "executed": sum(outcome.executed for outcome in outcomes),
        "matched": sum(outcome.matched for outcome in outcomes),
        "built_and_matched": sum(outcome.built and outcome.matched for outcome in outcomes),
        "parsed_not_built_but_matched": sum(outcome.matched and not outcome.built for outcome in outcomes),
        "built_and_matched_after_a_rewrite": sum(
            outcome.built and outcome.matched and bool(outcome.rewrites) for outcome in outcomes
        ),
        "built_and_matched_with_constants": sum(
            outcome.built and outcome.matched and outcome.has_constants for outcome in outcomes
        ),
    }


def write_json(path: Path, outcomes: list[Outcome], provenance: dict[str, Any]) -> None:
    """Write counts, provenance and every case that did not match or did not build."""
    shown = [asdict(outcome) for outcome in outcomes if not (outcome.matched and outcome.built)]
    document = {"provenance": provenance, "counts": counts(outcomes), "not_built_or_not_matched": shown}
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_markdown(path: Path, outcomes: list[Outcome], provenance: dict[str, Any]) -> None:
    """Write the same as a page."""
    counted = counts(outcomes)
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    lines = [
        "# ONNX conformance",
        "",
        f"Every ONNX node case in the onnx wheel ({versions}), rewritten as in `trtkit build`, parsed and built by",
        "TensorRT-RTX and run by the reference executor; outputs are compared with the case's at its own tolerance.",
        "A case that fails unchanged runs again *with constants*: its vectors and scalars (sizes, axes, thresholds),",
        "except the first input, become part of the model, as in real models. The rows of -1 after the boxes of",
        "NonMaxSuppression, whose output has a fixed size here, are ignored. Reproduce it with `make conformance`.",
        "`benchmarks/conformance.json` lists every case with TensorRT's full message.",
        "",
        "| stage | cases |",
        "| --- | --- |",
        *(f"| {name.replace('_', ' ')} | {count} |" for name, count in counted.items()),
        "",
    ]
    sections = {
        "Built, not matched": [item for item in outcomes if item.built and not item.matched],
        "Parsed, not built, not matched": [item for item in outcomes if item.parsed and not item.built | item.matched],
        "Matched, though TensorRT-RTX does not build it": [
            item for item in outcomes if item.matched and not item.built
        ],
        "Refused by the parser": [item for item in outcomes if not item.parsed],
    }
    for title, members in sections.items():
        lines += _section(title, members)
    path.write_text("\n".join(lines).rstrip() + "\n")


def _section(title: str, outcomes: list[Outcome]) -> list[str]:
    """Return a table of causes with the number of cases and a few of their names."""
    groups = _grouped(outcomes, lambda outcome: readable(outcome.cause))
    lines = [f"## {title}: {len(outcomes)}", ""]
    if groups:
        lines += ["| cause | cases | such as |", "| --- | --- | --- |"]
    for cause, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        names = ", ".join(outcome.name.removeprefix("test_") for outcome in members[:_EXAMPLES])
        lines.append(f"| {cause} | {len(members)} | {names} |")
    return [*lines, ""]


def _grouped(outcomes: list[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    """Group outcomes."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return groups


def readable(cause: str) -> str:
    """Return one line that says why, without TensorRT's source code and what differs between cases of one kind."""
    if cause == "false":
        return "no importer for this operator: TensorRT's parser answers `false`"
    cause = re.sub(r"\(Unnamed Layer\*? ?\d*\) ?(\[\w+\])?", "a layer", cause)
    cause = re.sub(r"(ElementWiseOperation) [A-Z]+", r"\1", cause)
    cause = _SOURCE.split(cause)[0]
    cause = re.sub(r"^(API Usage Error|Shape Error|Internal Error) \(", "", cause)
    cause = re.sub(r"^Parameter check failed, condition: .*?\. (?=[A-Z])", "", cause)
    quoted = re.search(r'&& "(.+?)"?$', cause)
    if quoted:
        cause = quoted[1]
    elif cause.startswith("Assertion failed: "):
        cause = re.split(r"(?<!:): (?!:)", cause, maxsplit=2)[-1]
    cause = " ".join(cause.replace("|", "/").split()).rstrip(" .,[(")
    cause = cause if "`" in cause or "output" in cause else re.sub(r"(?<![\w.-])\d+\b", "N", cause)
    return cause if len(cause) <= _LONGEST else f"{cause[: _LONGEST - 1].rsplit(' ', 1)[0]} …"
