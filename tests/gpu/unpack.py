"""Stores a piece of the kit, and unpacks the kit once all are stored: `python3 PIECE/unpack.py FOLDER`. No network."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = (3, 12)
ALWAYS = ("tensorrt_rtx_cu13", "tensorrt_rtx_cu13_bindings", "tensorrt_rtx_cu13_libs", "rapidocr_onnxruntime")


def main() -> None:
    """Store this piece; after the last one, unpack trtkit and the packages that this Python lacks."""
    if sys.version_info[:2] != PYTHON:
        wanted, present = (".".join(map(str, version)) for version in (PYTHON, sys.version_info[:2]))
        raise SystemExit(f"the kit's packages are for Python {wanted}; this is {present}: run it with python{wanted}")
    here, folder = Path(__file__).resolve().parent, Path(sys.argv[1]).resolve()
    kit = json.loads((here / "kit.json").read_text(encoding="utf-8"))
    kept = folder / f"parts-{kit['sha256'][:12]}"
    kept.mkdir(parents=True, exist_ok=True)
    for part in here.glob("part*"):
        shutil.copy(part, kept)
    parts = sorted(kept.glob("part*"), key=lambda part: int(part.name[4:]))
    if len(parts) < kit["parts"]:
        print(f"{len(parts)} of {kit['parts']} pieces are in {folder}; run the unpack.py of the others, too")
        return
    archive = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(archive).hexdigest() != kit["sha256"]:
        raise SystemExit(f"the pieces in {kept} are damaged: copy them again")
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive))) as tar:
        tar.extractall(folder, filter="data")
    chosen = install(folder / "wheels", folder / "site")
    path = f"{folder}/tree:{folder}/site"
    (folder / "env.sh").write_text(f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}\n", encoding="utf-8")
    print(f"unpacked into {folder}, with {', '.join(chosen)}")
    print(f"run it: . {folder}/env.sh && cd {folder}/tree && python3 -m tests.gpu")


def install(wheels: Path, site: Path) -> list[str]:
    """Link required packages that are missing or too old into `site`; return their names."""
    packed = {path.name.lower().replace("-", "_"): path for path in wheels.iterdir()}
    chosen, waiting = list[str](), [*ALWAYS, *(name for name, _ in requirements(wheels.parent / "tree"))]
    bounds = dict(requirements(wheels.parent / "tree"))
    while waiting:
        name = waiting.pop().lower().replace("-", "_")
        if name in chosen or name not in packed or (name not in ALWAYS and is_here(name, bounds.get(name, ""))):
            continue
        chosen.append(name)
        shutil.copytree(packed[name], site, dirs_exist_ok=True, copy_function=os.link)
        for needed, bound in needs(packed[name]):
            bounds[needed] = bound
            waiting.append(needed)
    return sorted(chosen)


def requirements(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield the requirements of trtkit, and of its ONNX models, including ModelOpt's conversion to fp16."""
    import tomllib

    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["onnx"], *extras["torch"], *extras["quantize"]]:
        yield from _parsed(line)


def needs(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield a package's requirements."""
    for info in wheel.glob("*.dist-info"):
        for line in metadata.PathDistribution(info).requires or ():
            yield from _parsed(line)


def is_here(name: str, bound: str) -> bool:
    """Whether this Python has the package in a sufficient version."""
    from packaging.specifiers import SpecifierSet

    try:
        return SpecifierSet(bound).contains(metadata.version(name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _parsed(line: str) -> Iterator[tuple[str, str]]:
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        yield requirement.name.lower().replace("-", "_"), str(requirement.specifier)


if __name__ == "__main__":
    main()
