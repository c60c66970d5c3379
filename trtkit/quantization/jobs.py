"""The jobs of quantization."""

from __future__ import annotations

from typing import Any

from trtkit.jobs.job import Job

CHECK_TARGET = Job("trtkit.quantization.check:check_target", dict[str, Any], dict[str, Any])
QUANTIZE_LLM = Job("trtkit.quantization.llm.job:quantize_llm", dict[str, Any], dict[str, Any])
QUANTIZE_VISION = Job("trtkit.quantization.vision.job:quantize_vision", dict[str, Any], dict[str, Any])
