"""Quantized vision models against their fp32 originals: loss on images not calibrated on, size, build time."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import quantize_vision_data as data
from benchmarks.measure import RESULTS, write, write_between
from trtkit.backends import load_backend
from trtkit.builder.build_inputs import gather_inputs
from trtkit.builder.jobs import BUILD_STAGE, PREPARE, PrepareRequest
from trtkit.builder.write_stages import prepare_stages, stage_request
from trtkit.config import load_config
from trtkit.inputs.images import image_input
from trtkit.jobs.runner import ChildRunner
from trtkit.network.onnx.io import graph_inputs
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, constants_from_onnx, read_layers, to_array
from trtkit.runtime.page import find_lines
from trtkit.runtime.tasks import ctc_characters, ctc_text, top_classes
from trtkit.sources import onnx_file
from trtkit.verification.references import OnnxRuntimeReference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.schema import ModelConfig

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
DOCUMENT = Path(__file__).parents[1] / "docs/quantization-costs.md"
TARGET = "sm89"
DEFAULT = ("mse", 0.2)
# Method, algorithm, and share of matrix products that may stay unquantized.
ROWS = (("none", *DEFAULT), ("int8", *DEFAULT), ("fp8", *DEFAULT), ("int8_wo", *DEFAULT))
MORE = (*ROWS, ("int8", "mse", 0.0), ("int8", "max", 0.0))
WIDE = (*ROWS, ("int4_wo", *DEFAULT))
MODELS = {"efficientnet-lite0": MORE, "mobilenet-v2": MORE, "ppocr-rec": ROWS, "ppocr-det": ROWS, "vit": WIDE}
# In the fp32 model, the best class leads by at least five percentage points: not a tie.
SURE = 0.05


def calibration(name: str, folder: Path) -> Path:
    """Write and return the folder of images that a model is calibrated on."""
    made = {"ppocr-det": data.pages, "ppocr-rec": data.lines}
    return data.save(made[name]() if name in made else data.views(data.CALIBRATION, 3), folder / "calibration")


def inputs(name: str, config: ModelConfig) -> list[Array]:
    """Return a model's evaluation inputs: views of photographs, a page, or the lines of that page."""
    assert config.preprocess is not None
    page = data.photograph("page.png")
    if name == "ppocr-rec":
        detector = load_config("ppocr-det")
        assert detector.preprocess is not None
        with tempfile.TemporaryDirectory() as folder:
            ChildRunner().run(PREPARE, PrepareRequest(detector, Path(folder)))
            reference = OnnxRuntimeReference(Path(folder) / "network/model.onnx", "")
            (found,) = reference.run({"x": image_input(page, detector.preprocess)}).values()
        images = [page.crop(box) for box in find_lines(found[0, 0], page.size)]
    else:
        images = [page] if name == "ppocr-det" else list(data.views(data.MEASURED, 4 if name == "vit" else 16))
    return [image_input(image, config.preprocess) for image in images]


def built(config: ModelConfig, folder: Path) -> tuple[Path, Json]:
    """Prepare and build; return the network's ONNX file and the figures of both steps."""
    folder.mkdir()
    inputs = gather_inputs(config, ChildRunner())
    prepared = prepare_stages(inputs, folder, ChildRunner())
    (stage,) = prepared.stages
    request = stage_request(config, inputs.target, inputs.backend, stage, folder)
    result = ChildRunner().run(BUILD_STAGE, replace(request, plan=folder / "model.plan"))
    assert stage.onnx is not None
    assert result.plan is not None
    seconds = {step.name: step.seconds for step in prepared.steps}
    figures = {
        "weights_mib": round(sum(result.network.totals().weight_bytes.values()) / 2**20, 2),
        "engine_mib": round((folder / "model.plan").stat().st_size / 2**20, 2),
        "quantize_s": round(seconds.get("quantize", 0.0) + seconds.get("keep", 0.0), 1),
        "build_s": round(result.plan.build_s, 1),
    }
    return stage.onnx.path, figures


def executed(path: Path, feeds: Sequence[Array]) -> list[Array]:
    """Return the first output of the network that TensorRT parses, for each feed."""
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, path, "ERROR")
    executor = Executor(read_layers(backend, network.definition, constants_from_onnx(path)))
    (spec,) = executor.inputs
    return [to_array(next(iter(executor.run({spec.name: feed}).values()))) for feed in feeds]


def loss(name: str, found: Sequence[Array], wanted: Sequence[Array], path: Path) -> Json:
    """Return the relative RMS error over all outputs, and how many answers agree."""
    apart = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in zip(found, wanted, strict=True))
    size = sum(float((b.astype(np.float64) ** 2).sum()) for b in wanted)
    return {"relative_rms_error": round(float(np.sqrt(apart / size)), 4), **answers(name, found, wanted, path)}


def answers(name: str, found: Sequence[Array], wanted: Sequence[Array], path: Path) -> Json:
    """Return the numbers of answers and of equal ones: classes, texts or boxes; random models have none."""
    if name == "vit":
        return {}
    if name == "ppocr-det":
        ours, theirs = (find_lines(maps[0][0, 0], (736, 736)) for maps in (found, wanted))
        same = sum(any(_overlap(a, b) > 0.7 for a in ours) for b in theirs)
        return {"measure": "lines found", "same": same, "of": len(theirs), "too_many": len(ours) - same}
    if name == "ppocr-rec":
        characters = ctc_characters(path)
        pairs = [(ctc_text(a, characters)[0], ctc_text(b, characters)[0]) for a, b in zip(found, wanted, strict=True)]
        whole = [SequenceMatcher(None, a.replace(" ", ""), b.replace(" ", ""), autojunk=False) for a, b in pairs]
        letters = round(sum(match.ratio() for match in whole) / len(whole), 4)
        return {"measure": "texts", "same": sum(a == b for a, b in pairs), "of": len(pairs), "letters": letters}
    best = [(top_classes(a, 1) == top_classes(b, 1), is_sure(b)) for a, b in zip(found, wanted, strict=True)]
    sure = {"sure_same": sum(same and known for same, known in best), "sure": sum(known for _, known in best)}
    return {"measure": "top-1", "same": sum(same for same, _ in best), "of": len(best), **sure}


def is_sure(logits: Array) -> bool:
    """Whether the most likely class leads the next by SURE. logits: [1, classes]."""
    shares = np.sort(np.exp(logits[0].astype(np.float64) - logits.max()))
    return bool((shares[-1] - shares[-2]) / shares.sum() >= SURE)


def _overlap(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the intersection over union of two boxes."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return shared / (sum(areas) - shared)


def figures_of(name: str) -> list[Json]:
    """Measure every method on one model against ONNX Runtime on its fp32 model."""
    rows: list[Json] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        images = calibration(name, folder)
        feeds, wanted = inputs(name, load_config(name)), None
        for method, algorithm, keep in MODELS[name]:
            asked = [f"quantize.{key}" for key in (f"method={method}", f"algorithm={algorithm}", f"keep={keep}")]
            overrides = [*asked, f"quantize.calibration.data={images}"] if method != "none" else []
            path, figures = built(load_config(name, overrides, TARGET), folder / f"{method}-{algorithm}-{keep}")
            if wanted is None:
                reference = OnnxRuntimeReference(path, "")
                (first,) = [spec.name for spec in graph_inputs(onnx_file.read_graph(path))]
                wanted = [next(iter(reference.run({first: feed}).values())) for feed in feeds]
            row = {
                "method": method,
                "algorithm": algorithm,
                "keep": keep,
                **figures,
                **loss(name, executed(path, feeds), wanted, path),
            }
            print(name, row, flush=True)
            rows.append(row)
    return rows


def table(figures: dict[str, list[Json]]) -> str:
    """Return the table in the docs."""
    lines = ["| model | method | answers | relative RMS error | weights MiB | engine MiB | quantize s | build s |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, rows in figures.items():
        for row in rows:
            is_default = (row["algorithm"], row["keep"]) == DEFAULT
            method = row["method"] if is_default else f"{row['method']}, {row['algorithm']}, keep {row['keep']:g}"
            answer = f"{row['measure']} {row['same']} of {row['of']}" if "measure" in row else ""
            answer += f", sure {row['sure_same']} of {row['sure']}" if "sure" in row else ""
            answer += f", letters {row['letters']:.1%}" if "letters" in row else ""
            error, sizes = f"{row['relative_rms_error']:.2%}", f"{row['weights_mib']:.1f} | {row['engine_mib']:.1f}"
            times = f"{row['quantize_s'] or ''} | {row['build_s']}"
            lines.append(f"| {name} | {method.replace('none', 'fp32')} | {answer} | {error} | {sizes} | {times} |")
    return "\n".join(lines) + "\n"


def main(names: Sequence[str] = ()) -> None:
    """Measure the named models, or all; write the results and the table, keeping earlier results of the others."""
    path = RESULTS / "quantize_vision.json"
    figures: dict[str, list[Json]] = json.loads(path.read_text())["models"] if path.is_file() and names else {}
    for name in names or MODELS:
        figures[name] = figures_of(name)
        write("quantize_vision", {"target": TARGET, "models": figures})
    write_between(DOCUMENT, "figures of vision", table(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
