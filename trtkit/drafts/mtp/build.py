"""The folder of an MTP module: its model's, or one with only the module's weights and the model's config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.arrays import Array
from trtkit.builder.speculators import OpenedSpeculator
from trtkit.drafts.fit import misfits
from trtkit.drafts.mtp.spec import LM_HEAD, SHARED, TABLE, mtp_spec, one_layer_fields
from trtkit.errors import ProblemsError, SourceError
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from trtkit.builder.speculators import SpeculatorFolder
    from trtkit.models.spec import DecoderSpec

_IDLE = "rotary_emb.inv_freq"


def open_folder(folder: SpeculatorFolder, target: DecoderSpec) -> OpenedSpeculator:
    """Open the MTP module of the model `target`.

    Raises SourceError, ProblemsError for missing or unknown fields and weights, and for those of another model.
    """
    source = open_hf_folder(Path(folder.path))
    spec = mtp_spec(source.config, folder.where, target)
    checkpoint = source.checkpoint
    assert isinstance(checkpoint, Checkpoint)
    stored_arrays = {name: checkpoint.stored(name) for name in checkpoint if name.startswith(spec.start)}
    arrays = Checkpoint({name: array for name, array in stored_arrays.items() if not name.endswith(_IDLE)})
    if not arrays:
        what = f"no weights begin with `{spec.start}`: the checkpoint was saved without its MTP module"
        raise SourceError(what, folder.path, "use the files as the model's authors published them")
    network_weights = {weight.path: weight for weight in spec.network_weights()}
    of_model = {TABLE: TABLE, LM_HEAD: TABLE if target.head.is_tied else LM_HEAD}
    borrowed = {path: of_model[path] for path in SHARED if network_weights[path].name not in arrays}
    stored_weights = {path: weight for path, weight in network_weights.items() if path not in borrowed}
    if problems := list(misfits(stored_weights.values(), arrays, folder.path)):
        raise ProblemsError("the weights do not fit the MTP module of this config", problems)
    read = _Dequantized({path: weight.name for path, weight in stored_weights.items()}, arrays)
    ids = np.arange(target.vocab_size)
    return OpenedSpeculator(spec, ids, {}, read, borrowed, one_layer_fields(source.config))


class _Dequantized(Mapping[str, Array]):
    """Weights by path, read or dequantized one at a time: a whole module may not fit into memory."""

    def __init__(self, names: Mapping[str, str], arrays: Checkpoint) -> None:
        self._names, self._arrays = names, arrays

    def __getitem__(self, path: str) -> Array:
        array = self._arrays[self._names[path]]
        return array.weights() if isinstance(array, QuantizedMatrix) else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
