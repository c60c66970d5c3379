"""Bundles to deploy: a tiny image classifier, and bundles that full TensorRT seems to have built."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support import models
from trtkit.cli.main import main
from trtkit.files import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

LABELS = ["ant", "bee", "cat", "dog", "eel"]
CONFIG = """
name: {name}
source: {{onnx: {onnx}}}
profiles: [{{batch: [1, 2, 4]}}]
preprocess: {{resize: {{exact: [16, 16]}}}}
task: {{kind: classification, labels: {labels}}}
verify: {{inputs: [package://skimage/data/chelsea.png], requires: scikit-image==0.26.0}}
"""
TENSORRT = "11.4.0.12"


def classifier(folder: Path, name: str = "tiny", seed: int = 0) -> Path:
    """Build images [batch, 3, 16, 16] -> logits [batch, 5] in `folder`; return the bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx = models.save(models.classifier(seed=seed), folder / f"{name}.onnx")
    labels = folder / "labels.json"
    labels.write_text(json.dumps(LABELS))
    config = folder / f"{name}.yaml"
    config.write_text(CONFIG.format(name=name, onnx=onnx, labels=labels))
    return build(config, folder / name)


def build(config: Path, bundle: Path, *words: str) -> Path:
    """Build a config; return the bundle."""
    main(["build", str(config), "-o", str(bundle), "--quiet", *words])
    return bundle


def relist(bundle: Path, name: str) -> Path:
    """Update the manifest's entry of a file that a test changed; return the bundle."""
    file = bundle / "manifest.json"
    manifest = json.loads(file.read_text())
    for record in manifest["files"]:
        if record["path"] == name:
            record["sha256"] = sha256_of(bundle / name)
    file.write_text(json.dumps(manifest))
    return bundle


def as_tensorrt(bundle: Path, version: str = TENSORRT, *, has_plugins: bool = False) -> Path:
    """Change the manifest so that full TensorRT seems to have built the bundle; plans are unchanged.

    has_plugins: removes the layers, as if the network had plugins, which only TensorRT can run.
    """
    file = bundle / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["backend"] = {"name": "tensorrt", "version": version}
    for stage in manifest["stages"] if has_plugins else ():
        for record in (layers["layers"], layers["weights"]) if (layers := stage.pop("layers")) else ():
            (bundle / record["path"]).unlink()
    file.write_text(json.dumps(manifest))
    return bundle


def deployed(trtkit: Callable[..., Ran], *words: object) -> Any:
    """Deploy to the repository `models`; return the JSON result."""
    ran = trtkit("deploy", *words, "--repository", "models", "--json")
    assert ran.code == 0, ran.err
    return ran.json()
