"""The job that fingerprints what a config's source reads. It imports nothing that reads models: any extra has it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trtkit.config.schema import ModelConfig
from trtkit.jobs.events import Phase
from trtkit.sources.digest import digest_data, digest_source

if TYPE_CHECKING:
    from trtkit.jobs.job import Context

Json = dict[str, Any]


def digest(arguments: Json, context: Context) -> Json:
    """Return the files that the source of `config` reads, and those of its calibration data, with their SHA-256."""
    config = ModelConfig.model_validate(arguments["config"])
    context.report(Phase("read source"))
    data = digest_data(config.quantize)
    return {"files": [asdict(file) for file in digest_source(config.source)], "data": [asdict(file) for file in data]}
