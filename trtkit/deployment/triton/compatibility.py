"""Whether a server can load a bundle's engine: known before it starts, not from its log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trtkit.deployment.triton.releases import (
    MINIMUM_RELEASE,
    SUPPORT_MATRIX,
    find_release,
    newest_release,
    releases,
    same_version,
    with_tensorrt,
)
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.bundle.records import BackendRecord
    from trtkit.deployment.triton.releases import Release

_OTHER_LIBRARY = "Triton's `tensorrt` backend loads plans of full TensorRT, not of {library}"
_REBUILD = "build the bundle again with TensorRT {version}"


def check_backend(library: BackendRecord, backend: str) -> None:
    """Raise DeployError where Triton's `backend` never loads plans of `library`: RTX plans in `tensorrt`."""
    if backend == "tensorrt" and library.name != "tensorrt":
        what = _OTHER_LIBRARY.format(library=f"{library.name} {library.version}")
        raise DeployError(what, fix="serve it with the Python backend, on trtkit's runtime")


def check_tensorrt(library: BackendRecord, version: str, where: str, *, is_version_compatible: bool = False) -> None:
    """Raise DeployError where the `tensorrt` backend of a server with TensorRT `version` cannot load the plan.

    A plan fits the same major, minor and patch; one built version compatible fits later ones of its major version.
    where: what has that version, such as the release.
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
    """Raise DeployError where the release's `backend` cannot load the plan, or nothing says that it can."""
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
    """Return the newest release that serves the plan. Raises DeployError where none is known."""
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
    """Return why a server with Triton `version` should stay where strangers do not reach it, None if it need not."""
    minimum = find_release(MINIMUM_RELEASE).triton
    if minimum is None or _major_minor(version) >= _major_minor(minimum):
        return None
    return (
        f"Triton {version} lacks known fixes, such as for requests that end the server: keep it to this machine, and "
        f"serve others from the newest, {newest_release().image}"
    )


def newer_server(version: str) -> str | None:
    """Return what to know of a server with Triton `version` that is not the newest known, None for the newest."""
    newest = newest_release()
    if newest.triton is None or _major_minor(version) >= _major_minor(newest.triton):
        return None
    return f"Triton {version} is not the newest: {newest.triton} is in {newest.image}"


def running_release(environment: Mapping[str, str] = os.environ) -> Release | None:
    """Return the release whose container this is, None outside of one or where it is not known."""
    name = environment.get("NVIDIA_TRITON_SERVER_VERSION", "")
    try:
        return find_release(name)
    except DeployError:
        return None


def _major_minor(version: str) -> tuple[int, int]:
    major, minor, *_ = (*version.split("."), "0")
    return int(major), int(minor)
