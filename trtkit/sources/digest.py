"""Fingerprints of the files that a source reads, which identify a build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.config.llm import BUILT_IN
from trtkit.errors import SourceError
from trtkit.files import sha256_of
from trtkit.sources import onnx_file, package_file
from trtkit.sources.attached_folders import adapter_files, speculator_files
from trtkit.sources.package_file import find_module

if TYPE_CHECKING:
    from trtkit.config.quantize import QuantizeOptions
    from trtkit.config.schema import ModelConfig, Source


@dataclass(frozen=True)
class SourceFile:
    """A file that the model is built from."""

    path: str
    size_bytes: int
    sha256: str


def digest_source(source: Source) -> list[SourceFile]:
    """Return every file that `source` reads, with its SHA-256."""
    return [_digest(path) for path in source_files(source)]


def digest_model(config: ModelConfig) -> list[SourceFile]:
    """Return every file of a config's model: those of its source, and of the draft head if it is separate."""
    speculator = None if config.llm is None else config.llm.speculator
    attached = [] if speculator in (None, BUILT_IN) else speculator_files(Path(str(speculator)))
    return [*digest_source(config.source), *(_digest(path) for path in attached)]


def adapter_digest(folder: Path) -> str:
    """Return the SHA-256 of an adapter's config, and that of its matrices. Raises SourceError if they are missing."""
    return "".join(sha256_of(file) for file in adapter_files(folder))


def digest_data(options: QuantizeOptions | None) -> list[SourceFile]:
    """Return the files of calibration data with their SHA-256: of the whole model first, then of its parts."""
    if options is None:
        return []
    whole_and_parts = (options, *options.parts.values())
    named = dict.fromkeys(
        part_options.calibration.data for part_options in whole_and_parts if part_options.calibration.data is not None
    )
    return [file for data in named for file in _data_files(data)]


def _data_files(data: str) -> list[SourceFile]:
    """Return the files of one set of calibration data: a file, or a folder's content."""
    path = package_file.resolve(data)
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    return [_digest(file) for file in files]


def source_files(source: Source) -> list[Path]:
    """Return the files of `source`: model and external data, checkpoint and factory module, or a folder's files.

    They are followed by those of an adapter.
    """
    adapter = () if source.lora is None else adapter_files(Path(source.lora))
    return [*_model_files(source), *adapter]


def _model_files(source: Source) -> list[Path]:
    if source.onnx is not None:
        path = package_file.resolve(source.onnx, source.requires)
        return [path, *onnx_file.external_files(onnx_file.read_graph(path), path)]
    if source.gguf is not None:
        return [package_file.resolve(source.gguf, source.requires)]
    if source.hf is not None or source.trtllm is not None:
        folder = Path(str(source.trtllm)) if source.hf is None else package_file.hf_folder(source)
        if not folder.is_dir():
            key = "hf" if source.hf else "trtllm"
            raise SourceError("no such folder", str(folder), f"name the model's folder: `--set source.{key}=FOLDER`")
        inside = folder.glob("*")
        return sorted(path for path in inside if path.suffix in {".json", ".safetensors", ".pth", ".jinja", ".model"})
    assert source.torch is not None
    files = _module_files(source.torch.factory)
    if source.torch.checkpoint is not None:
        files.append(package_file.resolve(source.torch.checkpoint, source.requires))
    return files


def _module_files(factory: str) -> list[Path]:
    """Return the Python files of the package of `package.module:callable`, none if it cannot be found.

    Nothing is imported. For a module outside any package, only that module is returned.
    """
    spec = find_module(factory.partition(":")[0])
    if spec is None or spec.origin is None:
        return []
    file = Path(spec.origin)
    return sorted(file.parent.rglob("*.py")) if (file.parent / "__init__.py").is_file() else [file]


def _digest(path: Path) -> SourceFile:
    return SourceFile(str(path), path.stat().st_size, sha256_of(path))
