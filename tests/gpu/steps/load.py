"""Does an engine built without a compute capability load and compute here?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tests.gpu.models import classifier_config
from trtkit.network.trt_errors import error_recorder
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gpu.place import Place
    from tests.gpu.step import Answer


def ask(place: Place) -> Iterator[Answer]:
    """Build a tiny classifier, load it and compare it with the reference executor, in each precision."""
    for precision in ("fp32", "fp16", "bf16"):
        bundle = place.bundle(f"classifier-{precision}", lambda: classifier_config(place.scratch, precision))  # noqa: B023
        if not place.is_simulated and (refusal := place.machine.no_engines):
            answer: Answer = {"what": f"classifier in {precision}", "rule": refusal}
            yield answer | _is_refused(place, bundle.engine_path())
            continue
        started = time.perf_counter()
        engine = open_model(bundle, "tensorrt")
        loaded_ms = (time.perf_counter() - started) * 1e3
        image = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
        started = time.perf_counter()
        scores = engine(image)
        first_ms = (time.perf_counter() - started) * 1e3
        expected = open_model(bundle, "reference")(image)
        error = float(np.linalg.norm(scores - expected) / np.linalg.norm(expected))
        limit = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2}[precision]
        yield {
            "what": f"classifier in {precision}",
            "holds": error < limit,
            "relative_rms_error": error,
            "load_ms": loaded_ms,
            "first_run_ms": first_ms,
        }


def _is_refused(place: Place, plan: Path) -> Answer:
    """Return whether TensorRT refuses a plan on an unsupported GPU, as the rule expects."""
    runtime = place.backend.trt.Runtime(place.backend.logger("ERROR"))
    runtime.error_recorder = errors = error_recorder(place.backend, has_gpu=True)
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    return {"holds": engine is None, "seen": "; ".join(errors.texts)}
