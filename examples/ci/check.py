"""Checks a model for TensorRT: builds it, verifies it, plans it, and compares with an earlier report. Needs no GPU.

Writes a report as JSON, and as a Markdown table for a comment. Exits with 1 if the model fails, with 2 for wrong
arguments.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True)
class Step:
    """A finished trtkit command. result: its JSON; error: its error message if it failed."""

    name: str
    result: dict[str, Any]
    error: str


def trtkit(name: str, *words: str) -> Step:
    """Run a trtkit command with --json. Its log goes to this script's stderr."""
    print(f"trtkit {name} {' '.join(words)}", file=sys.stderr)
    command = [sys.executable, "-m", "trtkit", name, *words, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        result = json.loads(ran.stdout)
    except json.JSONDecodeError:
        result = {}
    return Step(name, result, "" if ran.returncode == 0 else ran.stderr.strip() or f"exit code {ran.returncode}")


def measure(model: str, bundle: str, gpu: str) -> dict[str, Any]:
    """Return the report on a model: whether it passes, its figures, and the first error."""
    built = trtkit("build", model, "-o", bundle)
    if built.error:
        return {"model": model, "fit": False, "figures": {}, "error": f"it does not build:\n{built.error}"}
    verified, planned = trtkit("verify", bundle), trtkit("plan", bundle, "--gpu", gpu)
    figures = {
        "precision": built.result["manifest"]["config"]["precision"],
        "engine, MiB": round(sum(item["size_bytes"] for item in built.result["manifest"]["engines"]) / MIB, 2),
        **_accuracy(verified.result),
        **_plan(planned.result, gpu),
    }
    passed = verified.result.get("passed", False)
    error = "" if passed else f"it differs from the original:\n{verified.error or 'see trtkit verify'}"
    return {"model": model, "fit": passed, "figures": figures, "error": error or planned.error}


def _accuracy(verified: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of `trtkit verify`."""
    errors = [output["relative_rms_error"] for output in verified.get("outputs", {}).values()]
    figures: dict[str, Any] = {"error, relative RMS": max(errors)} if errors else {}
    task = verified.get("task")
    if task and task["measure"]:
        figures[f"{task['measure']}, agreement"] = task["agreement"]
    return figures


def _plan(planned: dict[str, Any], gpu: str) -> dict[str, Any]:
    """Return the best-case time per call or token on a GPU, and whether its memory suffices."""
    if not planned:
        return {}
    best = planned["gpus"][0]
    time_ms = best["latency_ms"] if planned["kind"] == "vision" else best["tpot"]["ms"]
    what = "a call" if planned["kind"] == "vision" else "a token"
    return {
        f"{what} on {gpu} at best, ms": float(f"{time_ms:.3g}"),
        f"memory on {gpu}, MiB": round(best["memory"]["total_bytes"] / MIB),
        f"fits {gpu}": best["fits"],
    }


def markdown(report: dict[str, Any], before: dict[str, Any]) -> str:
    """Return the comment's Markdown. before: an earlier report; empty if there is none."""
    verdict = "is fit for TensorRT" if report["fit"] else "is not fit for TensorRT"
    lines = [f"### `{report['model']}` {verdict}", ""]
    if report["figures"]:
        lines += ["| | this commit | before | change |", "| --- | --- | --- | --- |"]
        old = before.get("figures", {})
        lines += [f"| {name} | {_text(now)} | {_text(old.get(name))} | {_change(now, old.get(name))} |"
                  for name, now in report["figures"].items()]  # fmt: skip
    if report["error"]:
        lines += ["", "```text", report["error"], "```"]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) and value < 0.01 else str(value)


def _change(now: Any, old: Any) -> str:
    """Return a number's change in percent, or as a factor if it is of another order of magnitude."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (now, old))
    if not numbers or not old:
        return "" if old is None or now == old else "changed"
    if now == old:
        return ""
    return f"{now / old:.3g} times" if not 0.1 < now / old < 10 else f"{now / old - 1:+.1%}"


def main() -> None:
    """Parse the command line, measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="an .onnx or .gguf file, a config, or a folder that transformers saved")
    parser.add_argument("--gpu", default="l4", help="what to plan for; `trtkit list` names all")
    parser.add_argument("--bundle", default="bundles/checked", help="where the bundle goes")
    parser.add_argument("--report", type=Path, default=Path("trtkit-report.json"), help="JSON to write")
    parser.add_argument("--markdown", type=Path, default=Path("trtkit-report.md"), help="the comment to write")
    parser.add_argument("--before", type=Path, help="the JSON of an earlier commit, if there is one")
    options = parser.parse_args()
    before = json.loads(options.before.read_text()) if options.before and options.before.is_file() else {}
    report = measure(options.model, options.bundle, options.gpu)
    options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    options.markdown.write_text(markdown(report, before), encoding="utf-8")
    print(options.markdown.read_text(encoding="utf-8"))
    sys.exit(0 if report["fit"] else 1)


if __name__ == "__main__":
    main()
