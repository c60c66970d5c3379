"""Packs the kit for a machine with a GPU but without trtkit: `make gpu-kit`.

That machine has Linux, Python 3.12, torch with CUDA 13, triton, transformers and NumPy, but no network. The kit has
TensorRT-RTX, trtkit with its tests, and wheels of trtkit's other dependencies, in pieces that are carried one by one.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tests.gpu.answers import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "gpu-kit"
SIMULATION = ROOT / "build" / "gpu-simulation"
"""Models and bundles for machines that cannot load TensorRT."""
PIECE_BYTES = 47 * 2**20
"""Below 48 MiB, the limit of what can be carried at once, with room for `unpack.py`."""
PYTHON = "3.12"
RTX = ("tensorrt_rtx_cu13_bindings", "tensorrt_rtx_cu13_libs")
WHEELS = (
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions"),
    *("click", "rich", "markdown_it_py", "mdurl", "Pygments", "PyYAML", "safetensors", "ml_dtypes"),
    *("onnx", "onnxscript", "onnx_ir", "onnxslim", "protobuf", "colorama", "onnxruntime", "flatbuffers"),
    "rapidocr_onnxruntime==1.4.4",  # with PP-OCR's networks
    *("nvidia_modelopt", "nvidia_ml_py", "onnx_graphsurgeon", "onnxconverter_common", "polygraphy", "lief"),
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TREE = ("trtkit", "tests", "benchmarks", "configs", "plugins", "examples/detr3d", "pyproject.toml")


def main() -> None:
    """Write build/gpu-kit/1, 2, ...: each has a part of the archive, and the script that unpacks all parts."""
    prepare_simulation()
    with tempfile.TemporaryDirectory() as scratch:
        wheels = download(Path(scratch))
        archive = lzma.compress(tar_bytes(wheels), preset=2)
    pieces = write_pieces(archive)
    sizes = ", ".join(f"{sum(file.stat().st_size for file in piece.iterdir()) / 2**20:.1f} MiB" for piece in pieces)
    print(f"{len(pieces)} pieces in {OUT.relative_to(ROOT)}: {sizes}")
    print("on the machine with the GPU, for each piece: python3 PIECE/unpack.py FOLDER; the last one says how to go on")


def prepare_simulation() -> None:
    """Build the bundles for the simulated TensorRT by running the simulated steps. Raises CalledProcessError."""
    shutil.rmtree(SIMULATION, ignore_errors=True)
    with tempfile.TemporaryDirectory() as answers:
        words = ["tests.gpu", "--simulated-tensorrt", f"--scratch={SIMULATION}", f"--out={answers}", "--minutes=60"]
        subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True)
        states = {record.step: record.state for record in read_all(Path(answers))}
    if failed := sorted(step for step, state in states.items() if state != "done"):
        raise SystemExit(f"{', '.join(failed)} failed on the simulated TensorRT: mend that before you carry the kit")


def simulation() -> Iterator[Path]:
    """Yield the files of these models and bundles, without this machine's caches."""
    for path in sorted(SIMULATION.rglob("*")):
        if path.is_file() and path.relative_to(SIMULATION).parts[0] != "cache":
            yield path


def download(folder: Path) -> list[Path]:
    """Download wheels for the other machine's Python, with the versions in constraints.txt."""
    words = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={PYTHON}"]
    words += ["--implementation=cp", *(f"--platform={platform}" for platform in PLATFORMS)]
    words += [f"--constraint={ROOT / 'constraints.txt'}", f"--dest={folder}", *RTX, *WHEELS]
    subprocess.run([sys.executable, "-m", *words], check=True)
    return sorted(folder.glob("*.whl"))


def tar_bytes(wheels: list[Path]) -> bytes:
    """Return a tar with `wheels/NAME/` for each wheel, unpacked, and the `tree` of trtkit."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as packed:
                for name in (name for name in packed.namelist() if not name.endswith("/")):
                    _add(tar, f"wheels/{wheel.name.split('-')[0]}/{name}", packed.read(name))
        for file in front():
            _add(tar, f"wheels/tensorrt_rtx_cu13/{file}", Path(str(file.locate())).read_bytes())
        for path in (*tree(), *simulation()):
            _add(tar, f"tree/{path.relative_to(ROOT)}", path.read_bytes())
    return memory.getvalue()


def front() -> Iterator[metadata.PackagePath]:
    """Yield this environment's files of `tensorrt_rtx`, plain Python around the bindings, which has no wheel."""
    for file in metadata.files("tensorrt_rtx_cu13") or ():
        if "__pycache__" not in file.parts and ".." not in file.parts:
            yield file


def tree() -> list[Path]:
    """Return the repository's files, without results and pictures."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TREE]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    left_out = (PurePosixPath("tests/golden"), PurePosixPath("benchmarks/results"), PurePosixPath("benchmarks/gpu"))
    wanted = [name for name in listed if not any(PurePosixPath(name).is_relative_to(each) for each in left_out)]
    return [ROOT / name for name in wanted if (ROOT / name).is_file()]


def write_pieces(archive: bytes) -> list[Path]:
    """Split the archive into equal parts, each in a folder with unpack.py."""
    count = -(-len(archive) // PIECE_BYTES)
    size = -(-len(archive) // count)
    shutil.rmtree(OUT, ignore_errors=True)
    pieces = []
    for index in range(count):
        piece = OUT / str(index + 1)
        piece.mkdir(parents=True)
        (piece / f"part{index + 1}").write_bytes(archive[index * size : (index + 1) * size])
        kit = {"parts": count, "sha256": hashlib.sha256(archive).hexdigest()}
        (piece / "kit.json").write_text(json.dumps(kit) + "\n", encoding="utf-8")
        shutil.copy(Path(__file__).with_name("unpack.py"), piece)
        pieces.append(piece)
    return pieces


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
