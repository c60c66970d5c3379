"""Stores a decoder's spec in its bundle, so that running the bundle does not need the model's config."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path

from trtkit import dtypes
from trtkit.errors import BundleError
from trtkit.files import read_text
from trtkit.jobs.json_form import from_json, read_hints, to_json
from trtkit.models import attention, feed_forward, recurrent, share, spec
from trtkit.models.spec import DecoderSpec

SPEC = "model/spec.json"
_MODULES = (attention, dtypes, feed_forward, recurrent, share, spec)
_NAMES = {name: value for module in _MODULES for name, value in vars(module).items() if name[0].isupper()}
_NAMES |= {"Mapping": Mapping, "Sequence": Sequence}


def write_spec(decoder: DecoderSpec, bundle: Path) -> None:
    """Write the spec into a bundle's folder."""
    data = to_json(decoder)
    assert _read(data) == decoder, "a spec that its file does not give back"
    (bundle / SPEC).write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


def read_spec(bundle: Path) -> DecoderSpec:
    """Return the spec in a bundle's folder. Raises BundleError if it cannot be read."""
    try:
        return _read(json.loads(read_text(bundle / SPEC)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BundleError(f"cannot be read: {reason}", str(bundle / SPEC), "build the bundle again") from None


def _read(data: object) -> DecoderSpec:
    for kind in _NAMES.values():
        if isinstance(kind, type) and is_dataclass(kind):
            read_hints(kind, _NAMES)
    return from_json(DecoderSpec, data)
