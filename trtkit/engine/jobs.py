"""The jobs of a build."""

from __future__ import annotations

from typing import Any

from trtkit.jobs.job import Job

DIGEST = Job("trtkit.engine.digest:digest", dict[str, Any], dict[str, Any], activity="reading the model")
PREPARE = Job("trtkit.engine.prepare:prepare", dict[str, Any], dict[str, Any], activity="reading the model")
PREPARE_HYBRID = Job("trtkit.engine.hybrid_prepare:prepare_hybrid", dict[str, Any], dict[str, Any])
DESCRIBE = Job("trtkit.engine.compile:describe_only", dict[str, Any], dict[str, Any], uses_tensorrt=True)
COMPILE = Job("trtkit.engine.compile:compile_engine", dict[str, Any], dict[str, Any], uses_tensorrt=True)
COMPILE_DECODER = Job(
    "trtkit.engine.decoder_compile:compile_decoder", dict[str, Any], dict[str, Any], uses_tensorrt=True
)
COMPILE_STAGE = Job("trtkit.engine.hybrid_compile:compile_stage", dict[str, Any], dict[str, Any], uses_tensorrt=True)
# It parses too, but only to explain what another job has refused: its own crash is not explained.
DIAGNOSE = Job("trtkit.engine.diagnose:diagnose", dict[str, Any], dict[str, Any])
