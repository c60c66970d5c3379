"""`trtkit build`: what it writes, and when it reuses a bundle."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.conftest import tree
from tests.support import models
from trtkit import __version__
from trtkit.backends import load_backend
from trtkit.builder import build as building
from trtkit.builder import cache
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.folder_lock import atomic_folder, locked
from trtkit.bundle.manifest import json_schema
from trtkit.config import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture
def config(workspace: Path, own_cache: Path) -> Path:
    models.save(models.classifier(), workspace / "m.onnx")
    path = workspace / "m.yaml"
    path.write_text("source:\n  onnx: m.onnx\n")
    return path


@pytest.fixture
def build(config: Path, trtkit: Callable[..., Ran]) -> Callable[..., Any]:
    """Build the classifier with `--json` and return the answer."""

    def run(*words: object) -> Any:
        ran = trtkit("build", config, "--json", *words)
        assert ran.code == 0, ran.err
        return ran.json()

    return run


def test_two_lines_make_a_whole_bundle(workspace: Path, build: Callable[..., Any]) -> None:
    answer = build()
    assert (answer["origin"], answer["path"]) == ("built", "bundles/m")
    assert tree(workspace / "bundles") == [
        "m",
        "m/engines",
        "m/engines/m.layers.json",
        "m/engines/m.plan",
        "m/engines/m.weights",
        "m/manifest.json",
        "m/network",
        "m/network.json",
        "m/network/model.onnx",
    ]
    manifest = answer["manifest"]
    assert manifest == json.loads((workspace / "bundles/m/manifest.json").read_text())
    assert (manifest["name"], manifest["schema_version"]) == ("m", 4)
    assert manifest["backend"] == {"name": "tensorrt_rtx", "version": load_backend("tensorrt_rtx").version}
    assert manifest["tools"]["trtkit"] == __version__
    images, logits = (manifest[kind][0] for kind in ("inputs", "outputs"))
    assert (images["name"], images["dtype"], images["shape"]) == ("images", "fp32", [-1, 3, 16, 16])
    assert (logits["name"], logits["dtype"], logits["shape"]) == ("logits", "fp32", [-1, 5])
    assert images["feeder"] == "request"
    shapes = {"min": [1, 3, 16, 16], "opt": [1, 3, 16, 16], "max": [8, 3, 16, 16]}
    assert manifest["profiles"] == [{"images": shapes}]
    assert manifest["totals"]["weight_bytes"]["fp32"] == 4 * (8 * 3 * 9 + 5 * 8 + 5)


def test_manifest_holds_the_digest_of_every_file(workspace: Path, build: Callable[..., Any]) -> None:
    manifest = build()["manifest"]
    bundle = workspace / "bundles/m"
    for record, path in (
        (manifest["engines"][0], bundle / "engines/m.plan"),
        (manifest["stages"][0]["onnx"]["files"][0], bundle / "network/model.onnx"),
        (manifest["sources"][0], workspace / "m.onnx"),
    ):
        assert record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert record["size_bytes"] == path.stat().st_size


def test_manifest_fits_its_published_schema(build: Callable[..., Any]) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(build()["manifest"])


def test_plan_is_one_that_tensorrt_made(workspace: Path, build: Callable[..., Any]) -> None:
    build("--target", "sm89")
    plan = (workspace / "bundles/m/engines/m.plan").read_bytes()
    assert plan[:4] == b"vtrt"
    assert plan[32] == 0x08, "the header's target mask is not that of SM89"


def test_progress_goes_to_stderr_and_the_result_to_stdout(config: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", config)
    assert [line.split("] ")[1] for line in ran.err.splitlines() if line.startswith("[")] == [
        "read source",
        "prepare",
        "parse",
        "build",
    ]
    assert "  fold          " in ran.err
    assert "batch not given: [1, 1, 8] assumed" in ran.err
    assert ran.out.startswith("built bundles/m\n")
    assert "images fp32 [?, 3, 16, 16]" in ran.out
    assert trtkit("build", config, "--no-cache", "--quiet").err == ""


def test_json_is_one_object_and_nothing_else(config: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", config, "--json")
    assert (ran.err, ran.out.count("\n")) == ("", 1)
    assert set(ran.json()) == {"origin", "path", "manifest"}


def test_same_build_again_does_nothing_and_says_so(
    workspace: Path, config: Path, build: Callable[..., Any], trtkit: Callable[..., Ran]
) -> None:
    built = build()
    stamp = (workspace / "bundles/m/engines/m.plan").stat().st_mtime_ns
    assert build() == {**built, "origin": "unchanged"}
    assert (workspace / "bundles/m/engines/m.plan").stat().st_mtime_ns == stamp
    ran = trtkit("build", config)
    assert ran.out.startswith("up to date (cache hit): bundles/m\n")


def test_deleted_bundle_comes_back_from_the_cache(
    workspace: Path, config: Path, build: Callable[..., Any], trtkit: Callable[..., Ran]
) -> None:
    built = build()
    plan = (workspace / "bundles/m/engines/m.plan").read_bytes()
    shutil.rmtree(workspace / "bundles")
    assert build() == {**built, "origin": "restored"}
    assert (workspace / "bundles/m/engines/m.plan").read_bytes() == plan
    ran = trtkit("build", config, "-o", "elsewhere")
    assert ran.out.startswith("restored (cache hit): elsewhere\n")


def test_no_cache_builds_again_and_keeps_nothing(own_cache: Path, build: Callable[..., Any]) -> None:
    assert build("--no-cache")["origin"] == "built"
    assert not own_cache.exists()
    assert build()["origin"] == "unchanged"
    assert build("--no-cache")["origin"] == "built"


def test_changed_plan_is_noticed_and_built_again(workspace: Path, own_cache: Path, build: Callable[..., Any]) -> None:
    build()
    plan = workspace / "bundles/m/engines/m.plan"
    with plan.open("r+b") as file:  # in place: the cache's hard link changes with it
        file.seek(1000)
        file.write(b"changed")
    assert build()["origin"] == "built"
    assert b"changed" not in plan.read_bytes()


def test_path_with_brackets_is_shown_as_it_is(config: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", config, "-o", "run[bold]1")
    assert ran.out.startswith("built run[bold]1\n")


def test_one_bundle_replaces_another(workspace: Path, build: Callable[..., Any]) -> None:
    build("-o", "out", "--set", "name=first")
    build("-o", "out", "--set", "name=second")
    assert [path for path in tree(workspace / "out") if "plan" in path] == ["engines/second.plan"]
    assert [path for path in tree(workspace) if path.startswith(".")] == []


@pytest.fixture
def second_config(workspace: Path) -> Path:
    """A config of another model."""
    models.save(models.matmul(), workspace / "second.onnx")
    (workspace / "second.yaml").write_text("name: second\nsource: {onnx: second.onnx}\n")
    return workspace / "second.yaml"


def test_a_build_that_follows_at_once_into_the_same_folder_stays_whole(
    config: Path, second_config: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first build's result, and what the cache keeps of it, are not the second's, whose files stand there then."""
    first, second = (load_config(str(path)) for path in (config, second_config))
    out, other = workspace / "out", build_bundle(second, workspace / "other", new_runner()).bundle

    @contextmanager
    def followed(path: Path, *, replaces: str) -> Iterator[Path]:
        with atomic_folder(path, replaces=replaces) as folder:
            yield folder
        shutil.rmtree(path)
        shutil.copytree(other.path, path)

    monkeypatch.setattr(building, "atomic_folder", followed)
    result = build_bundle(first, out, new_runner())
    assert (result.bundle.path, result.bundle.manifest.config) == (out, first)
    assert open_bundle(out).manifest == other.manifest
    open_bundle(out).check_files()
    (kept,) = (path for path in cache.cached_bundles() if path.name == result.bundle.manifest.build_key)
    assert open_bundle(kept).manifest.config == first
    open_bundle(kept).check_files()


def test_a_manifest_is_not_rewritten_while_another_build_has_the_folder(
    workspace: Path, build: Callable[..., Any], config: Path, trtkit: Callable[..., Ran]
) -> None:
    build("-o", "out")
    before = (workspace / "out/manifest.json").read_bytes()
    words = ("build", config, "-o", "out", "--set", "description=another")
    with locked(workspace / "out"):
        assert trtkit("build", config, "-o", "out").code == 0  # nothing changes
        assert "out: another build is writing this folder" in trtkit(*words).err
    assert (workspace / "out/manifest.json").read_bytes() == before
    assert trtkit(*words).code == 0
    assert open_bundle(workspace / "out").manifest.config.description == "another"


@pytest.mark.children
def test_two_builds_at_once_leave_one_whole_bundle(
    config: Path, second_config: Path, workspace: Path, start_trtkit: Callable[..., subprocess.Popen[str]]
) -> None:
    before = set(tree(workspace))
    for _ in ("built", "restored"):
        builds = [start_trtkit("build", path, "-o", "out") for path in (config, second_config)]
        ends = [(*build.communicate(timeout=120), build.returncode) for build in builds]
        for _, err, code in ends:
            assert code == 0 or "another build is writing this folder" in err
        bundle = open_bundle(workspace / "out")
        bundle.check_files()
        assert bundle.manifest.name in [name for name, end in zip(("m", "second"), ends, strict=True) if end[-1] == 0]
        assert bundle.manifest.config.source.onnx == str(workspace / f"{bundle.manifest.name}.onnx")
        assert [path for path in set(tree(workspace)) - before if path.startswith(".")] == []
