"""The job of planning."""

from __future__ import annotations

from typing import Any

from trtkit.jobs.job import Job

COUNT_DECODER = Job("trtkit.planning.count_decoder:count_decoder", dict[str, Any], dict[str, Any])
