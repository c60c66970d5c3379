from __future__ import annotations

import re

import pytest

from trtkit.deployment.triton.releases import find_release, newest_release, releases, same_version, with_tensorrt
from trtkit.errors import DeployError

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
