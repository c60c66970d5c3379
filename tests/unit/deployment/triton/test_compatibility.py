"""None"""

from __future__ import annotations

import re

import pytest

from trtkit.backends import same_version
from trtkit.bundle.records import BackendRecord
from trtkit.deployment.triton.compatibility import (
    check_release,
    check_tensorrt,
    choose_release,
    find_release,
    newer_server,
    newest_release,
    release_warning,
    releases,
    running_release,
    server_warning,
    with_tensorrt,
)
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


VERSIONS = ("triton", "tensorrt", "cuda", "python")


def test_every_figure_has_a_page_that_states_it_and_the_date_it_was_read() -> None:
    for release in releases():
        stated = {name for name in VERSIONS if getattr(release, name) is not None}
        assert stated
        assert set(release.sources) == stated
        assert all(source.startswith("https://") for source in release.sources.values())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", release.read)
        assert re.fullmatch(r"\d\d\.\d\d", release.name)


def test_releases_are_in_order_of_time_and_of_tritons_version() -> None:
    names = [release.name for release in releases()]
    assert names == sorted(names)
    assert newest_release().name == names[-1]
    versions = [tuple(map(int, release.triton.split("."))) for release in releases() if release.triton]
    assert versions == sorted(versions)


def test_what_is_known_to_be_safe_begins_at_26_03() -> None:
    assert next(each.name for each in releases() if each.is_safe) == "26.03"
    assert not find_release("26.02").is_safe


def test_an_image_is_found_by_its_tensorrt() -> None:
    assert [each.image for each in with_tensorrt("11.1.0.106")] == ["nvcr.io/nvidia/tritonserver:26.07-py3"]
    assert with_tensorrt("10.99.0") == ()


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("11.1.0.106", "11.1.0.99", True),  # builds of one patch
        ("11.1", "11.1.0.106", True),
        ("11.1.0", "11.1.1", False),
        ("11.1.0.106", "11.2.0.106", False),
        ("10.1.0", "11.1.0", False),
    ],
)
def test_versions_are_compared_up_to_the_patch(first: str, second: str, is_same: bool) -> None:
    assert same_version(first, second) is is_same


def test_an_unknown_release_names_those_that_are_known() -> None:
    with pytest.raises(DeployError) as error:
        find_release("27.13")
    assert error.value.what == "unknown Triton release `27.13`"
    assert "26.07, 26.08" in error.value.fix
