"""Quantize a model into its own folder, atomically."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.builder.jobs import DIGEST, QUANTIZE_VISION, FloatModel, QuantizedVision
from trtkit.bundle.folder_lock import atomic_folder
from trtkit.config.targets import load_target
from trtkit.errors import ConfigError, Problem, TrtkitError
from trtkit.files import open_regular
from trtkit.jobs.json_form import from_json, to_json
from trtkit.quantization.by_part import SUMMARY, check_names, check_options, check_types
from trtkit.quantization.jobs import (
    QUANTIZE_LLM,
    QuantizedLlm,
    QuantizeRequest,
    ScoringRequest,
)
from trtkit.quantization_methods import METHODS
from trtkit.resolve import resolve
from trtkit.sources.package_file import SCHEME
from trtkit.version import __version__

if TYPE_CHECKING:
    from trtkit.config.quantize import QuantizeOptions
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner
    from trtkit.models.model import StagedModel
    from trtkit.quantization.scoring.report import Scores

RECORD = "quantization.json"
_LARGEST_RECORD_BYTES = 16 << 20
NOT_SCORED = ScoringRequest()


def read_float_model(quantized: Path) -> FloatModel | None:
    """Return the record of the float model, stored next to a quantized ONNX file; None if it is missing or damaged."""
    record = quantized.with_name(RECORD)
    try:
        with open_regular(record) as file:
            data = json.loads(file.read(_LARGEST_RECORD_BYTES))
        return from_json(FloatModel, data["float_model"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError, TrtkitError):
        return None


@dataclass(frozen=True)
class QuantizeResult:
    """A quantized model. path: its folder. options: of the quantization. quantized: details.

    float_model: the original of a vision model, which `verify` compares it with.
    """

    path: Path
    options: QuantizeOptions
    quantized: QuantizedLlm | QuantizedVision
    size_bytes: int
    float_model: FloatModel | None = None

    @property
    def sensitivity(self) -> Scores | None:
        """The cost of quantizing each layer, if it was measured."""
        return self.quantized.sensitivity if isinstance(self.quantized, QuantizedLlm) else None

    def to_json(self) -> dict[str, Any]:
        """Return the contents of quantization.json."""
        done = {name: value for name, value in to_json(self.quantized).items() if name != "sensitivity" or value}
        data = {"trtkit": __version__, "quantize": to_json(self.options), **done, "size_bytes": self.size_bytes}
        return data if self.float_model is None else data | {"float_model": to_json(self.float_model)}

    @property
    def source(self) -> dict[str, str]:
        """The `source` section of a config that builds it: `hf` with a checkpoint, or `onnx` with a file."""
        is_checkpoint = (self.path / "config.json").is_file()
        return {"hf": str(self.path)} if is_checkpoint else {"onnx": str(self.path / "model.onnx")}

    def __str__(self) -> str:
        """Return its path, method and size."""
        return f"{self.path}: {self.options.method}, {self.size_bytes / 2**20:.1f} MiB"


def quantize_model(
    config: ModelConfig, out: Path | None, runner: Runner, scoring: ScoringRequest = NOT_SCORED
) -> QuantizeResult:
    """Quantize the model of `config` by its `quantize` section, into the folder `out`.

    out: `quantized/NAME-METHOD` if None. An LLM becomes a Hugging Face checkpoint in ModelOpt's form, a vision model an
    ONNX file with Q/DQ.
    Raises TrtkitError; `out` is then left unchanged.
    """
    model = resolve(config)
    config = model.config
    if config.quantize is None or config.quantize.keeps_stored:
        problem = Problem("no quantization method", "quantize.method", "choose one, e.g. `--method int8_wo`")
        raise ConfigError("nothing to quantize", [problem])
    _check_whole(model)
    if not scoring.is_empty:
        _check_scored(model, scoring.fallback)
    _check_target(model, scoring.fallback)
    out = out or Path("quantized") / f"{config.name}-{config.quantize.method}"
    with atomic_folder(out, replaces=RECORD) as folder:
        request = QuantizeRequest(config, folder, scoring)
        is_llm = model.interface == "tokens"
        done: QuantizedLlm | QuantizedVision
        done = runner.run(QUANTIZE_LLM, request) if is_llm else runner.run(QUANTIZE_VISION, request)
        size = sum(path.stat().st_size for path in folder.iterdir())
        origin = None if is_llm else _float_model(config, runner)
        result = QuantizeResult(out, config.quantize, done, size, origin)
        (folder / RECORD).write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    return result


def _float_model(config: ModelConfig, runner: Runner) -> FloatModel:
    """Return the record of the original model, with absolute paths."""
    assert config.quantize is not None
    source, calibration = config.source, config.quantize.calibration
    paths = {key: _absolute(getattr(source, key)) for key in ("onnx", "hf")}
    data = calibration.model_copy(update={"data": _absolute(calibration.data)})
    kept = {
        "source": source.model_copy(update=paths),
        "quantize": config.quantize.model_copy(update={"calibration": data}),
    }
    digests = tuple(file.sha256 for file in runner.run(DIGEST, config).files)
    return FloatModel(config.model_copy(update=kept), digests)


def _absolute(path: str | None) -> str | None:
    return path if path is None or path.startswith(SCHEME) else str(Path(path).resolve())


def _check_scored(model: StagedModel, fallback: str | None) -> None:
    """Refuse models whose layers cannot be scored, and unknown fallbacks. Raises ConfigError."""
    if model.interface == "arrays":
        fix = "remove --sensitivity, --budget and --html; `trtkit verify --layers` shows a vision model's losses"
        raise ConfigError(SUMMARY, [Problem("only language models can be scored layer by layer", "quantize", fix)])
    fallbacks = [name for name, method in METHODS.items() if method.is_fallback]
    if fallback is not None and fallback not in fallbacks:
        what, fix = f"`{fallback}` is no method for layers that are left", f"use one of {', '.join(fallbacks)}"
        raise ConfigError(SUMMARY, [Problem(what, "--fallback", fix)])


def _check_target(model: StagedModel, fallback: str | None) -> None:
    """Refuse types that the target's GPUs, if it names any, do not support. Raises ConfigError."""
    options, target = model.config.quantize, load_target(model.config.target)
    assert options is not None
    if model.interface == "arrays":
        check_options(options)
    check_types(options, target, fallback)


def _check_whole(model: StagedModel) -> None:
    """Refuse models of several parts, which cannot be quantized into one folder. Raises ConfigError."""
    options = model.config.quantize
    assert options is not None
    if len(model.part_names) == 1:
        check_names(options, ())
        return
    fix = "run `trtkit build`, which quantizes each part as it is built; "
    if model.takes_images:
        fix += "`--set vision.enabled=false` quantizes the language model alone"
    else:
        fix += "`--set route=onnx` quantizes the whole"
    raise ConfigError(
        SUMMARY, [Problem("models of several parts cannot be written as one quantized model", "quantize", fix)]
    )
