"""Write the parts of the docs that follow from the code: `python docs/generate.py`."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter

from trtkit.benchmarking.variants import VERSION, VariantComparison
from trtkit.bundle.manifest import json_schema
from trtkit.config.llm import LlmOptions, LoraOptions, ParallelOptions, VisionOptions
from trtkit.config.quantize import Calibration, QuantizeOptions
from trtkit.config.schema import (
    BuildOptions,
    CustomOpOptions,
    DimRange,
    ModelConfig,
    ModuleInput,
    ShapeRange,
    Source,
    TorchSource,
)
from trtkit.config.targets import Target
from trtkit.config.task import Boxes, Preprocess, Resize, Task, VerifyOptions
from trtkit.deployment.triton.options import DeployOptions, LlmServing, QueueOptions
from trtkit.llm.sampling.generation_config import NO_EFFECT, OTHER_NAME, REFUSED, SAME_NAME
from trtkit.quantization_methods import BLOCKS, FORMATS, METHODS, Method, Use, methods_for
from trtkit.serving_options import ServingOptions, default_of, flag_of, option_of

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.serving_options import ServingField, Surface

DOCS = Path(__file__).parent


def _quantiles(histogram: str) -> dict[str, str]:
    """Return queries for the median and the 95th percentile of a histogram."""
    rate = f"sum by (le) (rate({histogram}_bucket[$__rate_interval]))"
    return {f"p{percent}": f"histogram_quantile({percent / 100}, {rate})" for percent in (50, 95)}


# Each config model under the key it stands at.
_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("top level", ModelConfig),
    ("source", Source),
    ("source.torch", TorchSource),
    ("source.torch.inputs.NAME", ModuleInput),
    ("profiles: range of a dimension", DimRange),
    ("profiles: range of an input", ShapeRange),
    ("build", BuildOptions),
    ("custom_ops", CustomOpOptions),
    ("quantize", QuantizeOptions),
    ("quantize.calibration", Calibration),
    ("llm", LlmOptions),
    ("llm.lora", LoraOptions),
    ("parallel", ParallelOptions),
    ("vision", VisionOptions),
    ("preprocess", Preprocess),
    ("preprocess.resize", Resize),
    ("task", Task),
    ("task.boxes", Boxes),
    ("verify", VerifyOptions),
    ("a file in configs/targets/", Target),
)

_INTRO = """\
# Config reference

Written by `python docs/generate.py` from `trtkit/config/`. Unknown keys are errors, with their line and the nearest
known key. Relative paths start at the config's folder, those in `--set` at the current one.
`package://module/path` is a file inside an installed package.
"""


_DEPLOY_INTRO = """\
# Options of trtkit deploy

Written by `python docs/generate.py` from `trtkit/deployment/triton/options.py`: the keys of
`trtkit deploy --set KEY=VALUE`.
"""


_SERVING_INTRO = """\
# Options of language models

Written by `python docs/generate.py` from `trtkit/serving_options.py`, the one record of them: keywords of `LLM` and
`AsyncLLM`, flags of `trtkit generate`, `chat`, `bench` and `serve`, and keys of `trtkit deploy --set`. Cells are
defaults; an empty cell means that the option cannot be set there.
"""


def config_reference() -> str:
    """Return docs/config.md."""
    return "\n".join([_INTRO, *(_section(title, model) for title, model in _SECTIONS)])


def deploy_options() -> str:
    """Return docs/deploy-options.md."""
    sections = (("top level", DeployOptions), ("queue", QueueOptions), ("llm", LlmServing))
    return "\n".join([_DEPLOY_INTRO, *(_section(title, model) for title, model in sections)])


def serving_options() -> str:
    """Return docs/serving-options.md."""
    rows = ["| key | flag | runs a bundle | `trtkit serve` | Triton: `llm.KEY` | meaning |", "| --- " * 6 + "|"]
    for item in dataclasses.fields(ServingOptions):
        option = option_of(item)
        surfaces: tuple[Surface, ...] = ("run", "serve", "triton")
        shown = [_shown(item, surface) if surface in option.surfaces else "" for surface in surfaces]
        flag = f"`{flag_of(item)}`" if {"run", "serve"} & option.surfaces else "Python only"
        rows.append(f"| `{item.name}` | {flag} | {' | '.join(shown)} | {option.help} |")
    return "\n".join([_SERVING_INTRO, *rows, ""])


def _shown(item: ServingField, surface: Surface) -> str:
    """Return a field's default in a cell."""
    value = default_of(item, surface)
    return (option_of(item).default_text or "none") if value is None else f"`{value}`"


def quantization() -> str:
    """Return docs/quantization.md with its table of methods."""
    return _with_tables("quantization.md", {"methods of language models": _methods("llm", "text", _llm_weights)})


def quantization_vision() -> str:
    """Return docs/quantization-vision.md with its table of methods."""
    return _with_tables(
        "quantization-vision.md", {"methods of vision models": _methods("vision", "data", _vision_weights)}
    )


def quantization_hybrids() -> str:
    """Return docs/quantization-hybrids.md with its table of methods."""
    return _with_tables("quantization-hybrids.md", {"methods of parts": _parts()})


def generation_settings() -> str:
    """Return docs/generation-settings.md with its table of the fields of transformers' GenerationConfig."""
    rows = {name: f"works, as `{OTHER_NAME.get(name, name)}`" for name in (*SAME_NAME, *OTHER_NAME)}
    rows |= dict.fromkeys(NO_EFFECT, "changes no token")
    rows |= {name: f"refused: {field.fix}" for name, field in REFUSED.items()}
    table = ["| field | here |", "| --- | --- |", *(f"| `{name}` | {rows[name]} |" for name in sorted(rows))]
    return _with_tables("generation-settings.md", {"fields of GenerationConfig": "\n".join(table)})


def _with_tables(file: str, tables: dict[str, str]) -> str:
    """Return a page with its tables, each between two comments that name it."""
    text = (DOCS / file).read_text(encoding="utf-8")
    for mark, table in tables.items():
        first, last = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        before, rest = text.split(first)
        text = f"{before}{first}\n{table}\n{last}{rest.split(last)[1]}"
    return text


def _methods(use: Use, data: str, weights: Callable[[Method], str]) -> str:
    """Return the table of the methods for a kind of model. data: what they are calibrated on."""
    rows = [
        f"| method | bits | weights | activations | needs {data} | built for |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in methods_for(use):
        method = METHODS[name]
        bits, least = method.dtype.bits, method.dtype.min_compute_capability
        row = FORMATS[method.format]
        scales = f"blocks of {row.block}, scaled at run time" if row.block else "one scale"
        cells = [
            f"`{name}`",
            f"W{bits}A{bits if method.rounds_inputs else 16}",
            weights(method) + (f", {method.note}" if method.note else ""),
            f"{row.words}, {scales}" if method.rounds_inputs else "not quantized",
            "yes" if method.needs_data else "no",
            f"SM{least} and newer" if least else "all targets",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


_BLOCKS = f"{', '.join(map(str, sorted(BLOCKS)[:-1]))} or {max(BLOCKS)}"


def _llm_weights(method: Method) -> str:
    row = FORMATS[method.format]
    blocks = f"blocks of {row.block}" if row.block else f"blocks of {_BLOCKS}"
    return f"{row.words}, " + {"matrix": "one scale", "row": "a scale for each row", "block": blocks}[method.scales]


def _vision_weights(method: Method) -> str:
    scales = f"each {_BLOCKS} inputs (`block`)" if method.takes_block else "each output channel"
    return f"{FORMATS[method.format].words}, a scale for {scales}"


def _parts() -> str:
    """Return the table of the methods that the parts of a model may have."""
    names = {use: ", ".join(f"`{name}`" for name in methods_for(use)) for use in ("vision", "written", "experts")}
    rows = (
        ("goes through ONNX: patches, backbones", f"those of vision models: {names['vision']}"),
        (
            "written by the network API: encoders, decoders",
            f"{names['written']}; activations are scaled at run time, by token, or by block where weights are",
        ),
        ("the language model of a vision-language model", "all methods of language models"),
        ("its vision tower, `parts.vision`", "those of vision models"),
        ("a mixture of experts", names["experts"]),
    )
    return "\n".join(["| part | methods |", "| --- | --- |", *(f"| {part} | {methods} |" for part, methods in rows)])


def manifest_schema() -> str:
    """Return docs/manifest.schema.json."""
    return json.dumps(json_schema(), indent=2) + "\n"


def compare_schema() -> str:
    """Return docs/compare.schema.json, of what `trtkit compare --json` prints."""
    schema = TypeAdapter(VariantComparison).json_schema()
    schema["properties"] |= {"version": {"const": VERSION}, "verdict": {"type": "string"}}
    schema["required"] += ["version", "verdict"]
    return json.dumps({"title": "trtkit compare", **schema, "additionalProperties": False}, indent=2) + "\n"


# A panel: its title, unit, and queries by legend. Rates are over Grafana's own interval.
_R = "[$__rate_interval]"
_BOARD: dict[str, tuple[tuple[str, str, dict[str, str]], ...]] = {
    "Language models with OpenAI's API (`trtkit serve BUNDLE`: the frontend's /metrics)": (
        ("Requests", "reqps", {"{{status}}": f"sum by (status) (rate(dynamo_frontend_requests_total{_R}))"}),
        (
            "Requests now",
            "short",
            {
                "in flight": "sum(dynamo_frontend_inflight_requests)",
                "queued": "sum(dynamo_frontend_queued_requests)",
            },
        ),
        ("Time to first token", "s", _quantiles("dynamo_frontend_time_to_first_token_seconds")),
        ("Inter-token latency", "s", _quantiles("dynamo_frontend_inter_token_latency_seconds")),
        (
            "Output tokens per second",
            "short",
            {"{{model}}": f"sum by (model) (rate(dynamo_frontend_output_tokens_total{_R}))"},
        ),
        ("Prompt tokens per request", "short", _quantiles("dynamo_frontend_input_sequence_tokens")),
    ),
    "Engines on Triton (`trtkit serve REPOSITORY`: port 8002)": (
        (
            "Requests",
            "reqps",
            {
                "{{model}}": f"sum by (model) (rate(nv_inference_request_success{_R}))",
                "{{model}} failed": f"sum by (model) (rate(nv_inference_request_failure{_R}))",
            },
        ),
        (
            "Mean time in the queue",
            "µs",
            {
                "{{model}}": f"sum by (model) (rate(nv_inference_queue_duration_us{_R}))"
                f" / sum by (model) (rate(nv_inference_request_success{_R}))"
            },
        ),
        (
            "Slots and waiting requests",
            "short",
            {"busy": "sum(trtkit_slots_busy)", "slots": "sum(trtkit_slots)", "waiting": "sum(trtkit_requests_waiting)"},
        ),
        (
            "Tokens per second",
            "short",
            {
                "generated": f"sum(rate(trtkit_generated_tokens_total{_R}))",
                "prompts, computed": f"sum(rate(trtkit_prompt_tokens_total{_R}))",
                "prompts, from caches": f"sum(rate(trtkit_reused_tokens_total{_R}))",
            },
        ),
        (
            "Draft tokens that were right",
            "percentunit",
            {"share": f"sum(rate(trtkit_accepted_tokens_total{_R})) / sum(rate(trtkit_drafted_tokens_total{_R}))"},
        ),
        ("Preemptions per second", "short", {"{{model}}": f"sum by (model) (rate(trtkit_preemptions_total{_R}))"}),
    ),
}


def grafana_board() -> str:
    """Return docs/grafana.json, to import into Grafana: one row of panels for each kind of server."""
    panels: list[dict[str, object]] = []
    for number, (title, row) in enumerate(_BOARD.items()):
        y = 17 * number
        panels.append({"type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        for place, (name, unit, queries) in enumerate(row):
            targets = [{"expr": query, "legendFormat": legend} for legend, query in queries.items()]
            panels.append(
                {
                    "type": "timeseries",
                    "title": name,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "gridPos": {"h": 8, "w": 8, "x": 8 * (place % 3), "y": y + 1 + 8 * (place // 3)},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [{"refId": chr(65 + index), **target} for index, target in enumerate(targets)],
                }
            )
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    board = {"title": "trtkit", "uid": "trtkit", "schemaVersion": 39, "refresh": "10s", "panels": panels}
    board |= {"time": {"from": "now-30m", "to": "now"}, "templating": {"list": [source]}, "tags": ["inference"]}
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


_GENERATED = ("Written by", "Generated")  # which says how a page came to be, not what it is about


def llms_txt() -> str:
    """Return docs/llms.txt: every page of the menu with its first sentence (https://llmstxt.org)."""
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    menu = yaml.safe_load(text.partition("\nnav:\n")[2])
    lines = ["# trtkit", "", f"> {_first_sentence(DOCS.parent / 'README.md')}", ""]
    for entry in menu:
        ((title, pages),) = entry.items()
        if isinstance(pages, str):
            pages = [entry]
        listed = [line for page in pages if isinstance(page, dict) for line in _menu_line(page)]
        lines += [f"## {title}", "", *listed, ""]
    return "\n".join(lines)


def _menu_line(page: dict[str, Any]) -> list[str]:
    """Return the line of a page; none for one that is written when the site is built, and for records of decisions."""
    ((title, path),) = page.items()
    if not isinstance(path, str):
        return []
    folder = path.removesuffix(".md")
    places = {DOCS / path: path, DOCS.parent / folder / "README.md": f"../{folder}/README.md"}
    listed = [(link, _first_sentence(file)) for file, link in places.items() if file.is_file()]
    return [f"- [{title}]({link})" + (f": {sentence}" if sentence else "") for link, sentence in listed]


def _first_sentence(page: Path) -> str:
    """Return the first sentence below a page's title, without links; empty if something else comes there."""
    text = " ".join(page.read_text(encoding="utf-8").split("\n\n")[1].split())
    if re.match(r"[#|>!<:-]|```|\d+\.", text) or text.startswith(_GENERATED):
        return ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")
    return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":.") + "."


def _section(title: str, model: type[BaseModel]) -> str:
    """Return one table of keys."""
    doc = " ".join((model.__doc__ or "").split())
    rows = [f"## {title}", "", doc, "", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{_default(field)}`"
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(field.annotation)} | {default} | {meaning} |")
    return "\n".join([*rows, ""])


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return "{}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _type(annotation: Any) -> str:
    """Return a type in a user's words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    if arguments:
        return " or ".join(_type(member) for member in arguments if member is not type(None))
    plain = {"str": "text", "int": "integer", "float": "number", "bool": "true, false", "Any": "any"}
    nested = {"DimRange": "range of a dimension", "ShapeRange": "range of an input"}
    return plain.get(annotation.__name__) or nested.get(annotation.__name__, "mapping, below")


def main() -> None:
    """Write all files."""
    (DOCS / "config.md").write_text(config_reference(), encoding="utf-8")
    (DOCS / "deploy-options.md").write_text(deploy_options(), encoding="utf-8")
    (DOCS / "serving-options.md").write_text(serving_options(), encoding="utf-8")
    (DOCS / "quantization.md").write_text(quantization(), encoding="utf-8")
    (DOCS / "quantization-vision.md").write_text(quantization_vision(), encoding="utf-8")
    (DOCS / "quantization-hybrids.md").write_text(quantization_hybrids(), encoding="utf-8")
    (DOCS / "generation-settings.md").write_text(generation_settings(), encoding="utf-8")
    (DOCS / "manifest.schema.json").write_text(manifest_schema(), encoding="utf-8")
    (DOCS / "llms.txt").write_text(llms_txt(), encoding="utf-8")
    (DOCS / "grafana.json").write_text(grafana_board(), encoding="utf-8")
    (DOCS / "compare.schema.json").write_text(compare_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
