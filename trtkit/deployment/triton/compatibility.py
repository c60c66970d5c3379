"""Whether a server can load a bundle's engine, by NVIDIA's table of Triton containers (`releases.yaml`)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trtkit.backends import same_version
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.bundle.records import BackendRecord

_OTHER_LIBRARY = "Triton's `tensorrt` backend loads plans of full TensorRT, not of {library}"
_REBUILD = "build the bundle again with TensorRT {version}"


def check_backend(library: BackendRecord, backend: str) -> None:
    """Raise DeployError if Triton's `backend` never loads plans of `library`, such as RTX plans in `tensorrt`."""
    if backend == "tensorrt" and library.name != "tensorrt":
        what = _OTHER_LIBRARY.format(library=f"{library.name} {library.version}")
        raise DeployError(what, fix="serve it with the Python backend, on trtkit's runtime")


def check_tensorrt(library: BackendRecord, version: str, where: str, *, is_version_compatible: bool = False) -> None:
    """Raise DeployError if the `tensorrt` backend of a server with TensorRT `version` cannot load the plan.

    A plan loads with the same major, minor and patch version; one built as version compatible also loads with later
    versions of the same major version. where: what has that version, such as the release.
    """
    check_backend(library, "tensorrt")
    if is_version_compatible:
        is_fit = _major_minor(version)[0] == _major_minor(library.version)[0] and (
            _major_minor(version) >= _major_minor(library.version)
        )
    else:
        is_fit = same_version(library.version, version)
    if not is_fit:
        what = f"the plan needs TensorRT {library.version}; this release has {version}"
        fitting = with_tensorrt(library.version)
        fix = f"serve it from {fitting[0].image}" if fitting else _REBUILD.format(version=version)
        raise DeployError(what, where, fix)


def check_release(
    library: BackendRecord, release: Release, backend: str, *, is_version_compatible: bool = False
) -> None:
    """Raise DeployError if the release's `backend` cannot load the plan, or if that is unknown."""
    check_backend(library, backend)
    if backend != "tensorrt":
        return
    if release.tensorrt is None:
        what = f"the TensorRT version of Triton {release.name} is unknown"
        fitting = with_tensorrt(library.version)
        fix = f"use {fitting[0].name}" if fitting else f"look it up: {SUPPORT_MATRIX}"
        raise DeployError(what, release.name, fix)
    check_tensorrt(library, release.tensorrt, release.name, is_version_compatible=is_version_compatible)


def choose_release(library: BackendRecord, backend: str) -> Release:
    """Return the newest release that can serve the plan. Raises DeployError if none is known."""
    check_backend(library, backend)
    if backend != "tensorrt":
        return newest_release()
    fitting = with_tensorrt(library.version)
    if not fitting:
        known = ", ".join(
            f"{release.tensorrt} ({release.name})" for release in releases() if release.tensorrt and release.is_safe
        )
        what = f"no known Triton release includes TensorRT {library.version}"
        fix = f"build with one of {known}, or find the release: {SUPPORT_MATRIX}"
        raise DeployError(what, fix=fix)
    return fitting[0]


def release_warning(release: Release) -> str | None:
    """Return why the release should not be used, None if it may."""
    if release.is_safe:
        return None
    return f"Triton {release.name} is older than {MINIMUM_RELEASE}; NVIDIA's security bulletins name faults of its like"


def server_warning(version: str) -> str | None:
    """Return why a server with Triton `version` should not be exposed to untrusted clients, None if it may be."""
    minimum = find_release(MINIMUM_RELEASE).triton
    if minimum is None or _major_minor(version) >= _major_minor(minimum):
        return None
    return (
        f"Triton {version} lacks known fixes, such as for requests that end the server: keep it to this machine, and "
        f"serve others from the newest, {newest_release().image}"
    )


def newer_server(version: str) -> str | None:
    """Return a remark on a server whose Triton `version` is not the newest known, None for the newest."""
    newest = newest_release()
    if newest.triton is None or _major_minor(version) >= _major_minor(newest.triton):
        return None
    return f"Triton {version} is not the newest: {newest.triton} is in {newest.image}"


def running_release(environment: Mapping[str, str] = os.environ) -> Release | None:
    """Return the release whose container this is; None outside of containers and for unknown releases."""
    name = environment.get("NVIDIA_TRITON_SERVER_VERSION", "")
    try:
        return find_release(name)
    except DeployError:
        return None


def _major_minor(version: str) -> tuple[int, int]:
    major, minor, *_ = (*version.split("."), "0")
    return int(major), int(minor)


# The oldest release considered safe: NVIDIA's security bulletins of 2025 and 2026 list vulnerabilities of older ones.
MINIMUM_RELEASE = "26.03"
SUPPORT_MATRIX = "https://docs.nvidia.com/deeplearning/frameworks/support-matrix/index.html"


@dataclass(frozen=True)
class Release:
    """A container release, such as `26.07`, and the versions in it; None if no consulted page states one.

    sources: by field, the page that states it. read: when the pages were read, as `2026-11-21`.
    """

    name: str
    triton: str | None
    tensorrt: str | None
    cuda: str | None
    python: str | None
    sources: dict[str, str] = field(hash=False)
    read: str

    @property
    def image(self) -> str:
        """The container with all of Triton's own backends, including TensorRT's."""
        return f"nvcr.io/nvidia/tritonserver:{self.name}-py3"

    @property
    def is_safe(self) -> bool:
        """Whether it is at least the oldest safe release."""
        return self.name >= MINIMUM_RELEASE


@cache
def releases() -> tuple[Release, ...]:
    """Return all known releases, oldest first."""
    data = yaml.safe_load(Path(__file__).with_name("releases.yaml").read_text(encoding="utf-8"))
    return tuple(_release(name, figures, str(data["read"])) for name, figures in sorted(data["releases"].items()))


def newest_release() -> Release:
    """Return the newest known release."""
    return releases()[-1]


def find_release(name: str) -> Release:
    """Return the release called `name`. Raises DeployError that lists the known ones."""
    matches = [release for release in releases() if release.name == name]
    if not matches:
        known = ", ".join(release.name for release in releases())
        raise DeployError(f"unknown Triton release `{name}`", "--release", f"known releases: {known}")
    return matches[0]


def with_tensorrt(version: str) -> tuple[Release, ...]:
    """Return the releases, newest first, with TensorRT `version`, compared to the precision that both have."""
    return tuple(
        release for release in reversed(releases()) if release.tensorrt and same_version(release.tensorrt, version)
    )


def _release(name: str, figures: dict[str, Any], read: str) -> Release:
    versions = {key: figures.get(key, {}).get("version") for key in ("triton", "tensorrt", "cuda", "python")}
    return Release(name, **versions, sources={key: figure["source"] for key, figure in figures.items()}, read=read)
