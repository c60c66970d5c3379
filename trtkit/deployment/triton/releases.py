"""NVIDIA's Triton containers: which versions each carries. The figures and their sources are in `releases.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from trtkit.errors import DeployError

# The oldest that trtkit takes for safe: NVIDIA's security bulletins of 2025 and 2026 name faults of older releases.
MINIMUM_RELEASE = "26.03"
SUPPORT_MATRIX = "https://docs.nvidia.com/deeplearning/frameworks/support-matrix/index.html"


@dataclass(frozen=True)
class Release:
    """A container release, such as `26.07`, and the versions in it; None if no page that was read states one.

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
        """The container with all of Triton's own backends, TensorRT's among them."""
        return f"nvcr.io/nvidia/tritonserver:{self.name}-py3"

    @property
    def is_safe(self) -> bool:
        """Whether it is at least the release that trtkit asks for."""
        return self.name >= MINIMUM_RELEASE


@cache
def releases() -> tuple[Release, ...]:
    """Return all known releases, oldest first."""
    data = yaml.safe_load(Path(__file__).with_name("releases.yaml").read_text(encoding="utf-8"))
    return tuple(_release(name, figures, str(data["read"])) for name, figures in sorted(data["releases"].items()))


def newest_release() -> Release:
    """Return the newest release that is known."""
    return releases()[-1]


def find_release(name: str) -> Release:
    """Return the release called `name`. Raises DeployError with those that are known."""
    matches = [release for release in releases() if release.name == name]
    if not matches:
        known = ", ".join(release.name for release in releases())
        raise DeployError(f"unknown Triton release `{name}`", "--release", f"known releases: {known}")
    return matches[0]


def with_tensorrt(version: str) -> tuple[Release, ...]:
    """Return the releases, newest first, that carry TensorRT `version`, compared as far as both are given."""
    return tuple(
        release for release in reversed(releases()) if release.tensorrt and same_version(release.tensorrt, version)
    )


def same_version(first: str, second: str) -> bool:
    """Whether two versions agree in major, minor and patch, as far as both name them."""
    return all(a == b for a, b in zip(first.split(".")[:3], second.split(".")[:3], strict=False))


def _release(name: str, figures: dict[str, Any], read: str) -> Release:
    versions = {key: figures.get(key, {}).get("version") for key in ("triton", "tensorrt", "cuda", "python")}
    return Release(name, **versions, sources={key: figure["source"] for key, figure in figures.items()}, read=read)
