from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.triton import python_model
from trtkit.deployment.triton.repository_check import check_repository, needed_flags, read_repository, remove_bytecode
from trtkit.deployment.triton.server_files import ServerFiles
from trtkit.errors import DeployError, ProblemsError

if TYPE_CHECKING:
    from pathlib import Path

MISSING = "{}: the version has no `deployment.json`, so its code cannot be checked"
PARAMETER = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: 1 }\n'


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    """A server with a Python backend and nothing else."""
    library = tmp_path / "server" / "backends" / "python" / "libtriton_python.so"
    library.parent.mkdir(parents=True)
    library.write_text("")
    (tmp_path / "server" / "caches").mkdir()
    return ServerFiles(tmp_path / "server" / "bin" / "tritonserver", "here", tmp_path / "server", tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model, `tiny`, deployed."""
    folder = python_model(tmp_path / "models", "tiny", "print('a model')\n", OUTPUT)
    deployed(folder / "1", "python", {"name": "tensorrt_rtx", "version": "1.7.1.116"})
    return tmp_path / "models"


def deployed(version: Path, backend: str, library: dict[str, str] | None, **changes: Any) -> None:
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in version.iterdir()
        if path.name != "deployment.json"
    }
    record = {"backend": backend, "backend_library": library, "files": digests, **changes}
    (version / "deployment.json").write_text(json.dumps(record))


def problems(repository: Path, files: ServerFiles, *only: str, allow_undeployed: bool = False) -> list[str]:
    with pytest.raises(ProblemsError) as error:
        check_repository(repository, files, only, allow_undeployed=allow_undeployed)
    assert error.value.what == f"{repository} cannot be served"
    return [f"{problem.where.removeprefix(str(repository) + '/')}: {problem.what}" for problem in error.value.problems]


def test_what_was_deployed_passes(repository: Path, files: ServerFiles) -> None:
    assert [model.name for model in check_repository(repository, files)] == ["tiny"]


def test_a_model_written_by_hand_passes_only_where_that_is_allowed(repository: Path, files: ServerFiles) -> None:
    python_model(repository, "hand", "", OUTPUT)
    found = check_repository(repository, files, allow_undeployed=True)
    assert [model.name for model in found] == ["hand", "tiny"]
    assert problems(repository, files) == [MISSING.format("hand/1")]


def test_code_without_its_record_is_refused(repository: Path, files: ServerFiles) -> None:
    version = repository / "tiny" / "1"
    (version / "deployment.json").unlink()
    (version / "model.py").write_text("print('another model')\n")
    assert problems(repository, files) == [MISSING.format("tiny/1")]


def test_code_without_its_record_is_refused_where_another_version_has_one(repository: Path, files: ServerFiles) -> None:
    shutil.copytree(repository / "tiny" / "1", repository / "tiny" / "2")
    (repository / "tiny" / "2" / "deployment.json").unlink()
    with pytest.raises(ProblemsError):
        check_repository(repository, files, allow_undeployed=True)


def test_compiled_python_is_refused_since_it_would_run_unchecked(repository: Path, files: ServerFiles) -> None:
    (repository / "tiny" / "1" / "__pycache__").mkdir()
    (repository / "tiny" / "1" / "__pycache__" / "model.cpython-311.pyc").write_text("")
    assert problems(repository, files) == ["tiny/1/__pycache__/model.cpython-311.pyc: the file was not deployed"]


def test_only_compiled_python_is_removed_before_a_start(repository: Path, files: ServerFiles, tmp_path: Path) -> None:
    cache, elsewhere = repository / "tiny" / "1" / "__pycache__", tmp_path / "elsewhere"
    for folder in (cache, elsewhere):
        folder.mkdir()
        (folder / "model.cpython-311.pyc").write_text("")
    (cache / "model.cpython-311.pyc.140021").write_text("")  # of a write that was cut short
    (cache / "notes.txt").write_text("")
    (repository / "tiny" / "__pycache__").symlink_to(elsewhere)
    remove_bytecode(repository)
    assert [path.name for path in cache.iterdir()] == ["notes.txt"]
    assert len(list(elsewhere.iterdir())) == 1
    assert "tiny/1/__pycache__/notes.txt: the file was not deployed" in problems(repository, files)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PARAMETER.format("$$TRITON_MODEL_DIRECTORY/1/env.tar.gz"), "EXECUTION_ENV_PATH"),
        ('default_model_filename: "other.py"\n', "default_model_filename"),
        ('cc_model_filenames { key: "8.0" value: "other.plan" }\n', "cc_model_filenames"),
        ('runtime: "other.so"\n', "runtime"),
        ('model_operations { op_library_filename: "op.so" }\n', "model_operations"),
        ('model_repository_agents { agents { name: "other" } }\n', "model_repository_agents"),
    ],
)
def test_a_configuration_that_chooses_other_code_is_refused(
    repository: Path, files: ServerFiles, text: str, name: str
) -> None:
    config = repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text() + text)
    assert problems(repository, files) == [
        f"tiny/config.pbtxt: `{name}` was not written by `trtkit deploy` and can make the server run code"
    ]


def test_files_beside_a_models_versions_are_refused(repository: Path, files: ServerFiles) -> None:
    (repository / "tiny" / "libtriton_python.so").write_text("")  # Triton prefers it to its own
    assert problems(repository, files) == ["tiny/libtriton_python.so: was not deployed"]


def test_models_that_a_client_may_load_later_are_checked_too(repository: Path, files: ServerFiles) -> None:
    shutil.copytree(repository / "tiny", repository / "other")
    config = repository / "other" / "config.pbtxt"
    config.write_text(config.read_text().replace('"tiny"', '"other"'))
    (repository / "other" / "1" / "model.py").write_text("print('another model')\n")
    wanted = "other/1/model.py: the file has changed since it was deployed: SHA-256 mismatch"
    assert problems(repository, files, "tiny") == [wanted]


def test_files_that_are_not_what_was_deployed(repository: Path, files: ServerFiles) -> None:
    version = repository / "tiny" / "1"
    (version / "model.py").write_text("print('another model')\n")
    (version / "extra.py").write_text("")
    assert problems(repository, files) == [
        "tiny/1/model.py: the file has changed since it was deployed: SHA-256 mismatch",
        "tiny/1/extra.py: the file was not deployed",
    ]
    (version / "model.py").unlink()
    assert "tiny/1/model.py: the file is missing" in problems(repository, files)


@pytest.mark.parametrize("name", ["../../other", "/etc/passwd", "a/../../b"])
def test_a_record_that_leads_out_is_refused(repository: Path, files: ServerFiles, name: str) -> None:
    version = repository / "tiny" / "1"
    digests = json.loads((version / "deployment.json").read_text())["files"]
    deployed(version, "python", None, files={**digests, name: "0" * 64})
    assert problems(repository, files) == [f"tiny/1/deployment.json: `{name}` is not a file of the version"]


@pytest.mark.parametrize("target", ["a file", "a folder", "nothing"])
def test_links_are_refused(repository: Path, files: ServerFiles, tmp_path: Path, target: str) -> None:
    outside = {"a file": tmp_path / "secret", "a folder": tmp_path, "nothing": tmp_path / "missing"}[target]
    (tmp_path / "secret").write_text("")
    (repository / "tiny" / "labels.txt").symlink_to(outside)
    assert problems(repository, files) == ["tiny/labels.txt: is a symbolic link"]


def test_a_linked_model_is_refused(repository: Path, files: ServerFiles) -> None:
    (repository / "again").symlink_to(repository / "tiny")
    assert problems(repository, files)[0] == "again: is a symbolic link"


def test_configurations_that_lead_out_are_refused(repository: Path, files: ServerFiles) -> None:
    up = 'default_model_filename: "../../evil.py"\n'
    up += PARAMETER.format("$$TRITON_MODEL_DIRECTORY/../env.tar.gz")
    python_model(repository, "up", "", OUTPUT + up)
    assert problems(repository, files, allow_undeployed=True) == [
        "up/config.pbtxt: `../../evil.py` is not a file of the model",
        "up/config.pbtxt: `EXECUTION_ENV_PATH` points outside the repository: `$$TRITON_MODEL_DIRECTORY/../env.tar.gz`",
    ]


def test_a_backend_that_the_server_lacks(repository: Path, files: ServerFiles) -> None:
    folder = repository / "native"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'platform: "tensorrt_plan"\n{OUTPUT}')
    assert problems(repository, files, allow_undeployed=True) == [
        "native/config.pbtxt: the server has no backend `tensorrt`; it has ensemble, python"
    ]
    found = check_repository(repository, files, ["tiny"], allow_undeployed=True)
    assert [model.name for model in found] == ["tiny"]


def test_an_rtx_plan_for_tensorrts_backend(repository: Path, files: ServerFiles) -> None:
    deployed(repository / "tiny" / "1", "tensorrt", {"name": "tensorrt_rtx", "version": "1.7.1.116"})
    assert problems(repository, files)[-1] == (
        "tiny/1: Triton's `tensorrt` backend loads plans of full TensorRT, not of tensorrt_rtx 1.7.1.116"
    )


def test_a_plan_for_another_tensorrt_than_the_containers(
    repository: Path, files: ServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "26.02")
    deployed(repository / "tiny" / "1", "tensorrt", {"name": "tensorrt", "version": "11.1.0.106"})
    assert problems(repository, files)[-1] == "tiny/1: the plan needs TensorRT 11.1.0.106; this release has 10.15.1"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": 1}', '{"files": {}, "backend": "x", "backend_library": 3}']
)
def test_a_damaged_record(repository: Path, files: ServerFiles, text: str) -> None:
    (repository / "tiny" / "1" / "deployment.json").write_text(text)
    assert problems(repository, files)[0].startswith("tiny/1/deployment.json: cannot be read: ")


def test_versions_that_are_not_there(repository: Path, files: ServerFiles) -> None:
    python_model(repository, "gone", "", OUTPUT + "version_policy { specific { versions: 1 versions: 7 } }\n")
    empty = python_model(repository, "empty", "", OUTPUT)
    (empty / "1" / "model.py").unlink()
    (empty / "1").rmdir()
    assert problems(repository, files, allow_undeployed=True) == [
        "empty: the model has no versions",
        "gone: version 7 is listed but missing",
    ]


def test_only_versions_that_are_served_count(repository: Path, files: ServerFiles) -> None:
    config = repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { specific { versions: 1 } }\n")
    (repository / "tiny" / "2").mkdir()
    (repository / "tiny" / "2" / "deployment.json").write_text("half")
    check_repository(repository, files)


def test_an_ensemble_needs_its_steps(repository: Path, files: ServerFiles) -> None:
    steps = 'ensemble_scheduling { step { model_name: "tiny" } step { model_name: "lost" } }\n'
    folder = repository / "both"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'platform: "ensemble"\n{OUTPUT}{steps}')
    wanted = ["both/config.pbtxt: the ensemble needs model `lost`, which is missing"]
    assert problems(repository, files, allow_undeployed=True) == wanted
    assert problems(repository, files, "both", allow_undeployed=True) == wanted


def test_other_faults_of_a_model(repository: Path, files: ServerFiles) -> None:
    (repository / "notes").mkdir()
    config = repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text().replace('"tiny"', '"huge"'))
    assert problems(repository, files, "tiny", "lost") == [
        "notes: the folder has no `config.pbtxt`",
        "--load: the repository has no model `lost`",
        "tiny/config.pbtxt: the configuration belongs to model `huge`",
    ]


def test_configurations_that_are_none(repository: Path) -> None:
    (repository / "tiny" / "config.pbtxt").write_text("name: 3 nonsense")
    (repository / "bad").mkdir()
    (repository / "bad" / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(ProblemsError) as error:
        read_repository(repository)
    assert [problem.what.partition(":")[0] for problem in error.value.problems] == [
        "cannot be read",
        "not a model configuration",
    ]


@pytest.mark.parametrize("make", ["nothing", "a file", "an empty folder"])
def test_what_is_no_repository(tmp_path: Path, make: str) -> None:
    folder = tmp_path / "models"
    if make == "a file":
        folder.write_text("")
    elif make == "an empty folder":
        folder.mkdir()
    with pytest.raises(DeployError) as error:
        read_repository(folder)
    assert error.value.what == (
        "no models: no folder has a `config.pbtxt`" if make == "an empty folder" else "no such repository"
    )
    assert error.value.fix == "give a folder that `trtkit deploy` wrote"


def test_a_cache_and_a_rate_limiter_are_turned_on_where_a_model_asks(repository: Path, files: ServerFiles) -> None:
    assert needed_flags(read_repository(repository), files) == ()
    config = repository / "tiny" / "config.pbtxt"
    config.write_text(
        config.read_text().replace("kind: KIND_CPU", 'rate_limiter { resources { name: "a" count: 1 } }')
        + "response_cache { enable: true }\n"
    )
    assert needed_flags(read_repository(repository), files) == (
        "--cache-config=local,size=268435456",
        f"--cache-directory={files.caches}",
        "--rate-limit=execution_count",
    )
