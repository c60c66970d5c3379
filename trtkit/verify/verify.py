"""Verify a config or a bundle: prepare what is needed, run the job, keep the result."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit import __version__
from trtkit.engine.bundle import MANIFEST, write_json
from trtkit.engine.jobs import run
from trtkit.engine.onnx_build import prepare_network
from trtkit.engine.plan import plan_build

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.config.schema import ModelConfig
    from trtkit.engine.bundle import Bundle

Json = dict[str, Any]
JOB = "trtkit.verify.job:verify"


@dataclass(frozen=True)
class Request:
    """What to verify on. inputs: files or folders, the config's own when empty. against: "onnxruntime" or "torch"."""

    inputs: tuple[str, ...] = ()
    against: str | None = None
    layers: bool = False
    corners: bool = True

    def arguments(self) -> Json:
        """Return the job's arguments that say so."""
        inputs = [path if "://" in path else str(Path(path).resolve()) for path in self.inputs]
        return {"inputs": inputs, "against": self.against, "layers": self.layers, "corners": self.corners}


def verify_config(config: ModelConfig, request: Request, on_event: Callable[[Json], None]) -> Json:
    """Prepare and verify the network of `config` without building it; return the report's data."""
    plan = plan_build(config, on_event)
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        prepared, parse = prepare_network(plan, Path(folder), on_event)
        network = {"onnx": parse["onnx"], "backend": plan.backend, "profiles": prepared["profiles"]}
        arguments = {"config": config.model_dump(mode="json"), **network, **request.arguments()}
        return {"name": config.name, **run(JOB, arguments, on_event)}


def verify_bundle(bundle: Bundle, request: Request, on_event: Callable[[Json], None]) -> Json:
    """Verify the network that a bundle's engine was built from, note the result in its manifest, return the data.

    Raises BundleError where a file is not the one that was built.
    """
    bundle.check_files()
    manifest = bundle.manifest
    stored = manifest.model_dump(mode="json")
    network = {"onnx": str(bundle.onnx_path), "backend": manifest.backend.name, "profiles": stored["profiles"]}
    network |= {"plan": str(bundle.engine_path()), "sources": [file.sha256 for file in manifest.sources]}
    arguments = {"config": stored["config"], **network, **request.arguments()}
    found = {"name": manifest.name, **run(JOB, arguments, on_event)}
    write_json(bundle.path / MANIFEST, {**stored, "verify": _summary(found)})
    return found


def _summary(found: Json) -> Json:
    """Return what a manifest keeps of a report: all but the layers."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    kept = {key: value for key, value in found.items() if key not in {"layers", "name"}}
    return {"verified_at": now, "trtkit": __version__, **kept}
