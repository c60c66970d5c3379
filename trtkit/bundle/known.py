"""Known requests: inputs with the outputs that an engine must return, to check a server with."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.bundle.bundle import check_file, open_bundle, write_json
from trtkit.bundle.records import FileRecord
from trtkit.errors import BundleError
from trtkit.files import MANIFEST, sha256_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trtkit.arrays import Array
    from trtkit.bundle.bundle import Bundle

FILE, _FIX = "known.json", "remove it and deploy the bundle again"


@dataclass(frozen=True, eq=False)
class KnownRequest:
    """Inputs and their expected outputs; text is an object array of bytes.

    tolerance: relative RMS error of floating-point outputs; all others must be equal.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    tolerance: float


def read_known(bundle: Bundle, names: Collection[str] = (), outputs: Collection[str] = ()) -> KnownRequest | None:
    """Return a request whose inputs are among `names` and whose outputs are among `outputs`; None if there is none.

    Without names, any fits. Raises BundleError if the file is damaged.
    """
    requests = read_all_known(bundle)
    return next(
        (request for request in requests if _fits(request.inputs, names) and _fits(request.outputs, outputs)), None
    )


def read_all_known(bundle: Bundle) -> list[KnownRequest]:
    """Return the bundle's known requests. Raises BundleError if the file is damaged."""
    file, record = bundle.path / FILE, open_bundle(bundle.path).manifest.known
    if not file.exists():
        return []
    if record is None:
        raise BundleError("the manifest does not list this file", str(file), _FIX)
    try:
        check_file(bundle.path, record)
    except BundleError as error:
        raise BundleError(error.what, error.where, _FIX) from None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["build_key"] != bundle.manifest.build_key:
            return []  # of an earlier engine
        return [_request(request) for request in data["requests"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"cannot be read: {error}", str(file), _FIX) from None


def write_known(bundle: Bundle, requests: list[KnownRequest]) -> None:
    """Write the known requests into the bundle."""
    encoded = [
        {"inputs": _encoded(request.inputs), "outputs": _encoded(request.outputs), "tolerance": request.tolerance}
        for request in requests
    ]
    write_json(bundle.path / FILE, {"build_key": bundle.manifest.build_key, "requests": encoded})
    list_known(bundle)


def list_known(bundle: Bundle) -> None:
    """Record the digest of the bundle's known requests in its manifest."""
    file = bundle.path / FILE
    record = FileRecord(path=FILE, size_bytes=file.stat().st_size, sha256=sha256_of(file))
    manifest = open_bundle(bundle.path).manifest.model_copy(update={"known": record})
    write_json(bundle.path / MANIFEST, manifest.model_dump(mode="json"))


def _fits(arrays: Mapping[str, Array], names: Collection[str]) -> bool:
    return not names or set(arrays) <= set(names)


def _request(data: Mapping[str, Any]) -> KnownRequest:
    return KnownRequest(_decoded(data["inputs"]), _decoded(data["outputs"]), float(data["tolerance"]))


def _encoded(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: {"shape": list(value.shape), **_contents(value)} for name, value in arrays.items()}


def _contents(value: Array) -> dict[str, Any]:
    if value.dtype == object:
        return {"text": [_base64(item) for item in value.reshape(-1)]}
    return {"dtype": value.dtype.name, "data": _base64(np.ascontiguousarray(value).tobytes())}


def _decoded(data: Mapping[str, Any]) -> dict[str, Array]:
    return {name: _array(entry).reshape(entry["shape"]) for name, entry in data.items()}


def _array(data: Mapping[str, Any]) -> Array:
    if "text" in data:
        return np.array([base64.b64decode(item) for item in data["text"]], dtype=np.object_)
    return np.frombuffer(base64.b64decode(data["data"]), dtype=np.dtype(data["dtype"]))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
