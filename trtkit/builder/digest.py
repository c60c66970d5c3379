"""The job that fingerprints a config's source files.

It imports no model readers, so it runs with any extra installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.builder.jobs import Digests
from trtkit.jobs.events import Phase
from trtkit.sources.digest import digest_data, digest_model

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.job import JobContext


def digest(request: ModelConfig, context: JobContext) -> Digests:
    """Return the files of a config's source and of its calibration data, with their SHA-256."""
    context.report(Phase("read source"))
    return Digests(tuple(digest_model(request)), tuple(digest_data(request.quantize)))
