from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from trtkit.deployment.triton.server_files import INSTALL, VARIABLE, ServerFiles, find_server
from trtkit.errors import DeployError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A folder as nvidia-pytriton is laid out, of empty files."""
    root = tmp_path / "wheel" / "pytriton" / "tritonserver"
    program(root / "bin" / "tritonserver")
    for file in ("backends/python/libtriton_python.so", f"python_backend_stubs/{PYTHON}/triton_python_backend_stub"):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("")
    return tmp_path / "wheel"


def test_the_one_that_was_asked_for_comes_first(wheel: Path) -> None:
    for given in (wheel, wheel / "pytriton" / "tritonserver" / "bin" / "tritonserver"):
        files = find_server(str(given), {VARIABLE: "/nowhere"})
        assert files.binary == wheel / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        assert (files.origin, files.wheel) == ("--server", wheel)


def test_then_the_variables_then_the_paths(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(tmp_path / "root" / "bin" / "tritonserver")
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=os.pathsep)
    assert find_server(None, {VARIABLE: str(wheel)}).wheel == wheel
    found = find_server(None, {})
    assert (found.binary, found.origin, found.wheel, found.root) == (on_path, "on PATH", None, tmp_path / "root")


@pytest.mark.parametrize("is_option", [True, False])
def test_what_is_no_server_is_refused(tmp_path: Path, is_option: bool) -> None:
    (tmp_path / "tritonserver").write_text("not to be run")
    given = str(tmp_path / "tritonserver")
    with pytest.raises(DeployError) as error:
        find_server(given if is_option else None, {} if is_option else {VARIABLE: given})
    assert error.value.where == ("--server" if is_option else VARIABLE)
    assert error.value.what == f"`{given}` is neither a tritonserver nor a folder with one"


def test_none_at_all_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    if Path("/opt/tritonserver").exists():
        pytest.skip("this is NVIDIA's container")
    with pytest.raises(DeployError) as error:
        find_server(None, {})
    assert str(error.value) == (
        "no tritonserver on this machine\n"
        f"fix: `pip install --no-deps --target {tmp_path}/venv/triton-server nvidia-pytriton==0.7.0 numpy==1.26.4`"
    )


def test_the_makefile_installs_what_the_error_names() -> None:
    makefile = (Path(__file__).parents[4] / "Makefile").read_text()
    line = next(line for line in makefile.splitlines() if line.startswith("TRITON_SERVER := "))
    assert INSTALL.endswith(line.removeprefix("TRITON_SERVER := "))


def test_a_wheels_python_backend_is_put_together_for_this_python(wheel: Path, tmp_path: Path) -> None:
    files = find_server(str(wheel))
    assert files.backends == ("ensemble", "python")
    folder = files.write_backends(tmp_path / "scratch")
    assert folder is not None
    there = sorted(path.name for path in (folder / "python").iterdir())
    assert there == ["libtriton_python.so", "triton_python_backend_stub"]


def test_a_wheel_without_a_stub_for_this_python_is_refused(wheel: Path, tmp_path: Path) -> None:
    stubs = wheel / "pytriton" / "tritonserver" / "python_backend_stubs"
    (stubs / PYTHON).rename(stubs / "3.8")
    with pytest.raises(DeployError) as error:
        find_server(str(wheel)).write_backends(tmp_path / "scratch")
    assert error.value.what == f"the server has no Python stub for Python {PYTHON}; it has 3.8"


def test_a_containers_backends_serve_as_they_are(tmp_path: Path) -> None:
    binary = program(tmp_path / "opt" / "bin" / "tritonserver")
    for name in ("tensorrt", "python"):
        library = tmp_path / "opt" / "backends" / name / f"libtriton_{name}.so"
        library.parent.mkdir(parents=True)
        library.write_text("")
    (tmp_path / "opt" / "backends" / "empty").mkdir()
    files = find_server(str(binary))
    assert files.backends == ("ensemble", "python", "tensorrt")
    assert files.write_backends(tmp_path / "scratch") is None


def test_the_environment_lets_models_import_what_this_python_has(wheel: Path) -> None:
    (wheel / "numpy").mkdir()
    (wheel / "numpy" / "version.py").write_text('version = "1.26.4"\n')
    variables = find_server(str(wheel)).environment()
    assert variables["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(wheel / "nvidia_pytriton.libs")
    assert variables["TRTKIT_OVERLAY"] == str(wheel)
    assert find_server(str(wheel)).warning is None
    sites = variables["TRTKIT_SITE"].split(os.pathsep)
    assert str(Path(pytest.__file__).parents[1]) in sites


@pytest.mark.parametrize("version", ["2.4.6", "10.0"])
def test_only_numpy_1_is_laid_over(wheel: Path, version: str) -> None:
    (wheel / "numpy").mkdir()
    (wheel / "numpy" / "version.py").write_text(f'version = "{version}"\n')
    files = find_server(str(wheel))
    assert "TRTKIT_OVERLAY" not in files.environment()
    assert files.warning is not None
    assert files.warning.startswith("this server's Python was made for NumPy 1, and text crashes it with NumPy 2")


@pytest.mark.parametrize(("linked", "is_same"), [(PYTHON, True), ("3.7", False)])
def test_a_container_with_this_python_sees_its_packages(tmp_path: Path, linked: str, is_same: bool) -> None:
    stub = tmp_path / "backends" / "python" / "triton_python_backend_stub"
    stub.parent.mkdir(parents=True)
    stub.write_bytes(b"\x7fELF\0libpython" + linked.encode() + b".so.1.0\0")
    files = ServerFiles(tmp_path / "bin" / "tritonserver", "here", tmp_path)
    assert ("TRTKIT_SITE" in files.environment()) is is_same
