"""Read an ONNX file that nobody has vouched for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import SourceError

if TYPE_CHECKING:
    import onnx


def read_graph(path: Path) -> onnx.ModelProto:
    """Parse `path` without its external data. Raises SourceError where it is no whole ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    if path.is_dir():
        raise SourceError("this is a folder, not an ONNX file", str(path), "give the .onnx file in it")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError as error:
        raise SourceError(
            f"not an ONNX model, or a truncated one: {error}", str(path), "export or copy it again"
        ) from None
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", str(path)) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output) or not model.opset_import:
        raise SourceError("not an ONNX model: it holds no graph", str(path), "export or copy it again")
    return model


def read_model(path: Path) -> onnx.ModelProto:
    """Parse `path` with its external data, once every location is known to be safe and complete."""
    import onnx

    model = read_graph(path)
    external_files(model, path)
    onnx.load_external_data_for_model(model, str(path.parent))
    return model


def external_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Return the external data files of `model`, checked.

    Raises SourceError for a location outside the model's folder, a missing file, or one too short for its tensor.
    """
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    files: dict[str, Path] = {}
    for tensor in _get_all_tensors(model):
        if not uses_external_data(tensor):
            continue
        info = ExternalDataInfo(tensor)
        where = f"{path}: tensor `{tensor.name}`"
        if info.location not in files:
            files[info.location] = _inside(path.parent, info.location, where)
        end = (info.offset or 0) + (info.length or 0)
        size = files[info.location].stat().st_size
        if end > size:
            raise SourceError(f"external data `{info.location}` is truncated: {size} bytes, {end} needed", where)
    return sorted(set(files.values()))


def _inside(folder: Path, location: str, where: str) -> Path:
    """Return the data file at `location`, which must lie in `folder`."""
    file = folder / location
    if Path(location).is_absolute() or not file.resolve().is_relative_to(folder.resolve()):
        raise SourceError(
            f"external data `{location}` points outside the model's folder", where, "move the data beside the model"
        )
    if not file.is_file():
        raise SourceError(f"external data `{location}` is missing", where, f"put it into {folder}")
    return file
