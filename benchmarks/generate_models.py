"""SmolLM2-135M on the reference executor and in transformers, both greedy and with caches of fixed length."""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from trtkit.backends import load_backend
from trtkit.builder.decoders import decoder_size, llm_options, open_decoder
from trtkit.config.load import load_config
from trtkit.dtypes import DTYPES
from trtkit.llm.execution import Call, ReferenceDecoder, config_network, decoder_network
from trtkit.resolve import resolve
from trtkit.sources.decoder_source import open_decoder_source

if TYPE_CHECKING:
    from trtkit.sources.decoder_source import DecoderSource

MAX_BATCH = 8
CONFIG = load_config("llama", [f"llm.max_batch_size={MAX_BATCH}"])
CACHE_LENGTH = llm_options(CONFIG).max_sequence_length

Ids = np.ndarray[Any, Any]


class Model(Protocol):
    """A model with the caches of one batch."""

    def start(self, batch: int) -> None:
        """Start `batch` empty sequences."""
        ...

    def __call__(self, ids: Ids) -> Ids:
        """Append tokens [B, S] to the sequences; return each one's most likely next token, [B]."""
        ...


class Trtkit:
    """The reference executor on the network that an engine is built from."""

    def __init__(self, precision: str) -> None:
        config = CONFIG.model_copy(update={"precision": precision})
        self._decoder = ReferenceDecoder(config_network(config, "tensorrt_rtx", "last"), MAX_BATCH)

    def start(self, batch: int) -> None:
        self._lengths = np.zeros(batch, np.int64)

    def __call__(self, ids: Ids) -> Ids:
        counts = np.full(len(ids), ids.shape[1])
        logits = self._decoder.forward(Call(0, ids, self._lengths, counts))
        self._lengths = self._lengths + counts
        return logits.argmax(-1).numpy()


def slot_memory() -> dict[str, float]:
    """Return MiB of one slot's caches: as planned, and as the process grows per additional slot."""
    opened = open_decoder(resolve(CONFIG))
    planned = decoder_size(opened).kv_bytes_per_slot
    network, resident, held = decoder_network(load_backend("tensorrt_rtx"), opened, "last"), [], []
    for slots in (1, MAX_BATCH):
        before = _resident_bytes()
        held.append(ReferenceDecoder(network, slots))
        _fill(held[-1])
        resident.append(_resident_bytes() - before)
    measured = (resident[1] - resident[0]) / (MAX_BATCH - 1)
    return {"planned_mib": round(planned / 2**20, 2), "measured_mib": round(measured / 2**20, 2)}


def _fill(decoder: ReferenceDecoder) -> None:
    """Write all entries of the caches: the system need not allocate memory that is only zero."""
    for array in decoder.cache.view(slice(0, decoder.slots)).values():
        array.fill_(1)


def _resident_bytes() -> int:
    """Return the process's resident memory, after returning freed memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


class Transformers:
    """transformers' model with its default attention and a StaticCache, entirely in the given precision."""

    def __init__(self, precision: str) -> None:
        self._model = _transformers_model(open_decoder_source(CONFIG.source), getattr(torch, DTYPES[precision].torch))

    def start(self, batch: int) -> None:
        from transformers import StaticCache

        self._cache = StaticCache(config=self._model.config, max_cache_len=CACHE_LENGTH)
        config = self._model.config
        heads, size = config.num_key_value_heads, config.head_dim
        self._cache.early_initialization(batch, heads, size, self._model.dtype, torch.device("cpu"))

    def __call__(self, ids: Ids) -> Ids:
        with torch.inference_mode():
            found = self._model(torch.from_numpy(ids), past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            tokens: Ids = found.logits[:, -1].argmax(-1).numpy()
        return tokens


def _transformers_model(opened: DecoderSource, dtype: torch.dtype) -> Any:
    """Return transformers' model with the reference executor's weights."""
    import transformers

    fields = {key: value for key, value in opened.config.items() if key not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(opened.config["model_type"], **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    weights = {name: torch.from_numpy(np.array(opened.checkpoint[name], np.float32)) for name in opened.checkpoint}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    return model.eval()
