from __future__ import annotations

import pytest

from trtkit.bundle.records import BackendRecord
from trtkit.deployment.triton.compatibility import (
    check_release,
    check_tensorrt,
    choose_release,
    newer_server,
    release_warning,
    running_release,
    server_warning,
)
from trtkit.deployment.triton.releases import find_release, newest_release
from trtkit.errors import DeployError

RTX = BackendRecord(name="tensorrt_rtx", version="1.7.1.116")


def full(version: str) -> BackendRecord:
    return BackendRecord(name="tensorrt", version=version)


def test_a_plan_goes_to_the_release_with_its_tensorrt() -> None:
    assert choose_release(full("11.1.0.106"), "tensorrt").name == "26.07"
    check_release(full("11.1.0.106"), find_release("26.07"), "tensorrt")


def test_a_plan_of_another_version_is_refused_with_the_release_that_fits() -> None:
    with pytest.raises(DeployError) as error:
        check_release(full("11.1.0.106"), find_release("26.02"), "tensorrt")
    assert str(error.value) == (
        "26.02: the plan needs TensorRT 11.1.0.106; this release has 10.15.1\n"
        "fix: serve it from nvcr.io/nvidia/tritonserver:26.07-py3"
    )


def test_a_plan_that_no_known_release_fits_is_built_again() -> None:
    with pytest.raises(DeployError) as error:
        check_release(full("12.0.0.1"), find_release("26.07"), "tensorrt")
    assert error.value.fix == "build the bundle again with TensorRT 11.1.0.106"
    with pytest.raises(DeployError, match=r"no known Triton release includes TensorRT 12\.0\.0\.1") as error:
        choose_release(full("12.0.0.1"), "tensorrt")
    assert error.value.fix.startswith("build with one of 11.1.0.106 (26.07), or find the release: https://docs.nvidia")


def test_a_release_whose_tensorrt_nobody_states_is_not_guessed() -> None:
    with pytest.raises(DeployError) as error:
        check_release(full("11.1.0.106"), find_release("26.09"), "tensorrt")
    assert str(error.value) == "26.09: the TensorRT version of Triton 26.09 is unknown\nfix: use 26.07"


@pytest.mark.parametrize(
    ("server", "is_fit"),
    [("11.1.0.106", True), ("11.2.0.1", True), ("11.0.0.1", False), ("12.0.0.1", False)],
)
def test_a_version_compatible_plan_fits_later_versions_of_its_major(server: str, is_fit: bool) -> None:
    if is_fit:
        check_tensorrt(full("11.1.0.106"), server, "here", is_version_compatible=True)
    else:
        with pytest.raises(DeployError, match="the plan needs TensorRT 11"):
            check_tensorrt(full("11.1.0.106"), server, "here", is_version_compatible=True)


def test_rtx_plans_are_for_the_python_backend_of_any_release() -> None:
    with pytest.raises(DeployError) as error:
        choose_release(RTX, "tensorrt")
    assert str(error.value) == (
        "Triton's `tensorrt` backend loads plans of full TensorRT, not of tensorrt_rtx 1.7.1.116\n"
        "fix: serve it with the Python backend, on trtkit's runtime"
    )
    assert choose_release(RTX, "python") == newest_release()
    check_release(RTX, find_release("26.03"), "python")


def test_an_old_release_is_warned_of() -> None:
    warning = release_warning(find_release("26.02"))
    assert warning == "Triton 26.02 is older than 26.03; NVIDIA's security bulletins name faults of its like"
    assert release_warning(find_release("26.03")) is None


def test_an_old_server_is_kept_to_its_machine() -> None:
    assert server_warning("2.51.0") == (
        "Triton 2.51.0 lacks known fixes, such as for requests that end the server: keep it to this machine, and "
        "serve others from the newest, nvcr.io/nvidia/tritonserver:26.09-py3"
    )
    assert server_warning("2.67.0") is None
    assert server_warning("2.73.0") is None
    assert (
        newer_server("2.67.0") == "Triton 2.67.0 is not the newest: 2.73.0 is in nvcr.io/nvidia/tritonserver:26.09-py3"
    )
    assert newer_server("2.73.0") is None


def test_the_container_says_which_release_it_is() -> None:
    assert running_release({"NVIDIA_TRITON_SERVER_VERSION": "26.07"}) == find_release("26.07")
    assert running_release({"NVIDIA_TRITON_SERVER_VERSION": "99.01"}) is None
    assert running_release({}) is None
