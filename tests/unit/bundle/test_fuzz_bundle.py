"""Damaged and forged bundles end in one of our errors: never in another exception, a hang or much memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.deployments import classifier
from tests.support.fuzz import byte_changes, json_changes, must_end, text_of
from trtkit.bundle.bundle import open_bundle
from trtkit.cli.main import cli
from trtkit.files import sha256_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("fuzz"))


def inspect(bundle: Path) -> None:
    cli.main(["inspect", str(bundle), "--layers"], standalone_mode=False)


def test_changed_manifests(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = bundle / "manifest.json"
    text = file.read_text()
    try:
        for changed in json_changes(json.loads(text), 150):
            file.write_text(text_of(changed))
            must_end(lambda: inspect(bundle), changed)
            capsys.readouterr()
        for data in byte_changes(text.encode(), 150):
            file.write_bytes(data)
            must_end(lambda: open_bundle(bundle).check_files(), data)
    finally:
        file.write_text(text)


def test_forged_layers(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest's digest is that of the changed file, as whoever forges a bundle would write it."""
    files = {name: (bundle / name).read_text() for name in ("manifest.json", "network.json")}
    manifest: dict[str, Any] = json.loads(files["manifest.json"])
    record = next(record for record in manifest["files"] if record["path"] == "network.json")
    try:
        for changed in json_changes(json.loads(files["network.json"]), 150):
            (bundle / "network.json").write_text(text_of(changed))
            record["sha256"] = sha256_of(bundle / "network.json")
            (bundle / "manifest.json").write_text(json.dumps(manifest))
            must_end(lambda: inspect(bundle), changed)
            capsys.readouterr()
    finally:
        for name, text in files.items():
            (bundle / name).write_text(text)
