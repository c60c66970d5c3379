"""Quantize a model into a folder of its own, whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trtkit import __version__
from trtkit.engine.folder_lock import atomic_folder
from trtkit.engine.hybrids import is_hybrid
from trtkit.engine.jobs import run
from trtkit.engine.plan import is_decoder
from trtkit.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

Json = dict[str, Any]
RECORD = "quantization.json"
LLM_JOB, VISION_JOB = "trtkit.engine.quantization.llm:quantize_llm", "trtkit.engine.quantization.vision:quantize_vision"


def quantize_model(config: ModelConfig, out: Path, on_event: Callable[[Json], None], asked: Json | None = None) -> Json:
    """Quantize the model of `config` as its `quantize` section asks, into the folder `out`.

    An LLM becomes a Hugging Face checkpoint in ModelOpt's form, a vision model an ONNX file with Q/DQ. asked: what
    else the job is to do. Returns the record that is kept there as quantization.json. Raises TrtkitError; `out` is
    then as it was.
    """
    if config.quantize is None or config.quantize.method == "as_stored":
        problem = Problem("no method is given", "quantize.method", "name one: `--method int8_wo`")
        raise ConfigError("nothing to quantize", [problem])
    if is_hybrid(config):
        problem = Problem(
            "a hybrid's parts are not quantized", "quantize", "set `route: onnx`, which quantizes it whole"
        )
        raise ConfigError("the model cannot be quantized so", [problem])
    job = LLM_JOB if is_decoder(config) else VISION_JOB
    with atomic_folder(out, replaces=RECORD) as folder:
        arguments = {"config": config.model_dump(mode="json"), "folder": str(folder), **(asked or {})}
        made = run(job, arguments, on_event)
        size = sum(path.stat().st_size for path in folder.iterdir())
        record: Json = {"trtkit": __version__, "quantize": arguments["config"]["quantize"], **made, "size_bytes": size}
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record
