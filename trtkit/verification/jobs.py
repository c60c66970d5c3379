"""The jobs of verification: one for each kind of model."""

from __future__ import annotations

from typing import Any

from trtkit.jobs.job import Job

VERIFY = Job("trtkit.verification.job:verify", dict[str, Any], dict[str, Any])
VERIFY_HYBRID = Job("trtkit.verification.hybrid_job:verify", dict[str, Any], dict[str, Any])
VERIFY_DECODER = Job("trtkit.verification.decoder_job:verify", dict[str, Any], dict[str, Any])
VERIFY_VISION_LANGUAGE = Job("trtkit.verification.vision_language_job:verify", dict[str, Any], dict[str, Any])
