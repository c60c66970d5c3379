"""Find the safetensors files of a model folder: `model.safetensors`, else shards with their index, as transformers."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from trtkit.errors import AGAIN, SourceError
from trtkit.files import json_fault, read_text
from trtkit.sources.safetensors_file import read_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trtkit.sources.checkpoint import StoredArray

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth")


def read_folder(folder: Path) -> tuple[dict[str, StoredArray], tuple[Path, ...]]:
    """Return all arrays of a folder by name, and the files that were read.

    If the folder has both `model.safetensors` and an index, the index is ignored, as transformers does.
    Raises SourceError for missing shards, an index that its shards contradict, an array that two shards hold, and for
    a folder of pickles.
    """
    single, index = folder / _SINGLE, folder / INDEX
    if index.is_file() and not single.is_file():
        weight_map = _weight_map(index)
        shards = _shards(index, sorted(set(weight_map.values())))
        by_shard = {path.name: read_safetensors(path) for path in shards}
        _check_index(index, weight_map, by_shard)
        return _joined(folder, by_shard), (index, *shards)
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise _without_safetensors(folder)
    return _joined(folder, {path.name: read_safetensors(path) for path in files}), tuple(files)


def has_usual_names(folder: Path) -> bool:
    """Whether the weights are in files of the names that transformers looks for."""
    return (folder / INDEX).is_file() or (folder / _SINGLE).is_file()


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises SourceError."""
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not valid JSON: {json_fault(error)}", str(path), AGAIN) from None
    except OSError as error:
        raise SourceError(f"cannot be read: {(error.strerror or str(error)).lower()}", str(path), AGAIN) from None
    if not isinstance(data, dict):
        raise SourceError("not a JSON object", str(path), AGAIN)
    return data


def json_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, empty if there is none to read: whoever needs it says so."""
    try:
        return read_json(path)
    except SourceError:
        return {}


def _weight_map(index: Path) -> dict[str, str]:
    """Return the shard of each array."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError("`weight_map` is missing", str(index), "copy or download the file again")
    return {str(name): str(shard) for name, shard in weight_map.items()}


def _shards(index: Path, names: Sequence[str]) -> list[Path]:
    """Return the shards' paths, all there and all in the folder."""
    outside = [name for name in names if "/" in name or "\\" in name or name in (".", "..")]
    if outside:
        raise SourceError(f"shard `{outside[0]}` is outside the folder", str(index), "put all shards next to the index")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        what = f"{len(missing)} of {len(names)} shards are missing: {listed}"
        raise SourceError(what, str(index), f"put them into {index.parent}")
    return [index.parent / name for name in names]


def _check_index(index: Path, weight_map: dict[str, str], by_shard: dict[str, dict[str, StoredArray]]) -> None:
    """Raise SourceError where the index names an array that its shard lacks."""
    lacking = [name for name, shard in weight_map.items() if name not in by_shard[shard]]
    if lacking:
        first, count = lacking[0], len(lacking)
        what = f"{count} tensors are not in the shard that the index names, the first is `{first}`"
        raise SourceError(f"{what} in `{weight_map[first]}`", str(index), "take index and shards from the same source")


def _joined(folder: Path, by_shard: dict[str, dict[str, StoredArray]]) -> dict[str, StoredArray]:
    """Return the arrays of all shards. Raises SourceError for a name that two of them have."""
    shard_of: dict[str, str] = {}
    for shard, arrays in by_shard.items():
        for name in arrays:
            if name in shard_of:
                what = f"tensor `{name}` is in two files: `{shard_of[name]}` and `{shard}`"
                raise SourceError(what, str(folder), "remove the file that is not the model's")
            shard_of[name] = shard
    return {name: stored for arrays in by_shard.values() for name, stored in arrays.items()}


def _without_safetensors(folder: Path) -> SourceError:
    """Return the error for a folder that has no safetensors, with the way to make them out of pickles."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if not pickles:
        return SourceError("no safetensors file in the folder", str(folder), "download the model's *.safetensors too")
    what = f"the weights are pickles ({_listed(pickles)}), which can run code when they are read"
    code = "import sys, transformers as t; f = sys.argv[1]; "
    code += "t.AutoModelForCausalLM.from_pretrained(f).save_pretrained(f)"
    command = shlex.join(["python", "-c", code, str(folder)])
    return SourceError(what, str(folder), f"convert them to safetensors: {command}")


def _listed(names: Iterable[str]) -> str:
    """Return up to three names for a message."""
    all_names = list(names)
    return ", ".join(f"`{name}`" for name in all_names[:3]) + (", ..." if len(all_names) > 3 else "")
