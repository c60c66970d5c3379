"""Tables of `trtkit verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from trtkit.cli.tables import listing, pairs, shape_text
from trtkit.verification.verdict import reason, slice_text, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

Json = dict[str, Any]

# Layers listed: the first out of tolerance and those with the largest errors.
_TOP = 10


def verify_tables(found: Json) -> Iterator[RenderableType]:
    """Yield the report's tables, the verdict last."""
    yield _overview(found)
    yield _outputs(found["outputs"], "outputs")
    if found.get("rows"):
        yield _rows(found["rows"])
    if found.get("parts"):
        yield _parts(found["parts"])
    if found["engine"]:
        yield _outputs(found["engine"]["outputs"], "the engine on this GPU against the reference executor")
    if found["task"]["measure"]:
        yield _answers(found["task"])
    if found.get("perplexity"):
        yield _perplexity(found["perplexity"])
    if found["corners"]:
        yield _corners(found["corners"])
    if found["layers"]:
        yield _layers(found["layers"])
        yield _ranges(found["layers"])
        wrong = first_out_of_tolerance(found["layers"], found["tolerance"])
        if wrong is not None:
            yield _first_wrong(wrong)
    if found.get("unreal"):
        yield Text(found["unreal"], "yellow")
    if "layers_problem" in found:
        yield _red(found["layers_problem"])
    if "fixed" in found:
        kept = ", ".join(found["fixed"]["keep_fp32"])
        yield Text.assemble(("repaired: ", "green"), f"{found['fixed']['config']} keeps in fp32: {kept}")
    said = (verdict(found), _verdict_style(found))
    yield Text.assemble(said, f": {found['name']} in {found['precision']}, {reason(found)}")


def first_out_of_tolerance(layers: list[Json], tolerance: float) -> Json | None:
    """Return the first layer whose error exceeds `tolerance` or that is not finite."""
    return next((layer for layer in layers if _error(layer) > tolerance or not layer["is_finite"]), None)


def error_text(value: float | None) -> str:
    """Return an error; None stands for infinite."""
    return "inf" if value is None else f"{value:.2e}"


def _overview(found: Json) -> Table:
    rows = pairs(f"verify {found['name']}")
    rows.add_row("network", found["executor"])
    rows.add_row("reference", found["reference"])
    rows.add_row("inputs", ", ".join(found["samples"]))
    return rows


def _outputs(outputs: Json, title: str) -> Table:
    rows = listing(title, "name", "relative RMS error", "max abs error", "cosine", "worst slice")
    for name, item in outputs.items():
        rms, largest = error_text(item["relative_rms_error"]), error_text(item["max_abs_error"])
        rows.add_row(name, rms, largest, f"{item['cosine']:.8f}", slice_text(item))
        if item["problem"]:
            rows.add_row(f"  {item['problem']}")
        if item["equal_nans"]:
            rows.add_row(f"  NaN on both sides: {item['equal_nans']} of {item['values']} values, not counted as error")
    return rows


def _rows(rows: Json) -> Text:
    """Say how many rows the other side does not have, which no error of the outputs counts."""
    said = f"rows paired; {rows['unpaired']:.1%} had no partner, at most {rows['allowed']:.1%} allowed"
    return Text(said, "" if rows["passed"] else "red")


def _parts(parts: list[Json]) -> Table:
    """List what parts of a hybrid give, beside what the reference's modules do."""
    rows = listing("parts, each with all before it", "part", "reference module", "relative RMS error", "")
    for part in parts:
        verdict = "right" if part["passed"] else _red(_fault(part))
        rows.add_row(part["name"], part["module"], error_text(part["relative_rms_error"]), verdict)
    return rows


def _answers(task: Json) -> Table:
    rows = pairs("answers")
    top_5 = "" if task["top_5"] is None else f", top-5 {task['top_5']:.1%}"
    rows.add_row(task["measure"], f"{task['agreement']:.1%} equal the reference's{top_5}")
    rows.add_row("ours", ", ".join(str(ours) for ours, _ in task["answers"][:_TOP]))
    rows.add_row("reference", ", ".join(str(theirs) for _, theirs in task["answers"][:_TOP]))
    return rows


def _perplexity(text: Json) -> Table:
    rows = pairs("perplexity per token")
    rows.add_row("text", f"{text['text']}, {text['windows']} windows, {text['tokens']} tokens")
    rows.add_row("ours", f"{text['perplexity']:.4f}")
    rows.add_row("reference", f"{text['reference']:.4f}")
    rows.add_row("change", f"{text['relative_change']:.3%}, at most {text['allowed']:.1%} allowed")
    return rows


def _corners(corners: list[Json]) -> Table:
    rows = listing("profile corners", "corner", "shapes", "relative RMS error", "")
    for corner in corners:
        shapes = "; ".join(f"{name} {shape_text(shape)}" for name, shape in corner["shapes"].items())
        error = "" if corner["relative_rms_error"] is None else error_text(corner["relative_rms_error"])
        verdict = "right" if corner["passed"] else _red(_fault(corner))
        rows.add_row(corner["name"], shapes, error, verdict)
    return rows


def _layers(layers: list[Json]) -> Table:
    """List the layers with the largest errors in the order they run."""
    worst = sorted(layers, key=_error, reverse=True)[:_TOP]
    rows = listing("largest errors against the widened network", "layer", "type", "relative RMS error", "")
    for layer in (layer for layer in layers if layer in worst):
        note = "" if layer["is_finite"] else _red("not finite")
        rows.add_row(layer["layer"], f"{layer['kind']} {layer['dtype']}", error_text(layer["relative_rms_error"]), note)
    return rows


def _ranges(layers: list[Json]) -> Table:
    """List the layers nearest to overflow in fp16, with what other types would do."""
    nearest = sorted(layers, key=lambda layer: layer["headroom_bits"]["fp16"])[:_TOP]
    rows = listing("least headroom (bits)", "layer", "largest", "fp16", "bf16", "fp8", "flushed in fp16")
    for layer in nearest:
        bits = layer["headroom_bits"]
        texts = [
            _red(f"{bits[kind]:.1f}") if bits[kind] < 0 else f"{bits[kind]:.1f}" for kind in ("fp16", "bf16", "fp8")
        ]
        rows.add_row(layer["layer"], f"{layer['largest']:.3g}", *texts, f"{layer['flushed']['fp16']:.1%}")
    return rows


def _first_wrong(layer: Json) -> Text:
    """Return where the network leaves its tolerance."""
    what = f"{layer['layer']} ({layer['kind']} {layer['dtype']}), error {error_text(layer['relative_rms_error'])}"
    return Text.assemble(("first layer out of tolerance: ", "red"), what)


def _verdict_style(found: Json) -> str:
    if not found["passed"]:
        return "bold red"
    return "bold green" if verdict(found) == "right" else "bold yellow"


def _fault(compared: Json) -> str:
    """Return what is wrong with a part or a corner."""
    return str(compared["problem"] or slice_text(compared) or "out of tolerance")


def _red(text: str) -> Text:
    return Text(text, "red")


def _error(layer: Json) -> float:
    error = layer["relative_rms_error"]
    return float("inf") if error is None else float(error)
