"""The LoRA adapters of an engine: loaded by name, and resident in shared ranks while requests use them."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trtkit.builder.decoders import llm_options
from trtkit.errors import GenerationError, RequestError, SourceError, did_you_mean
from trtkit.llm.sequences import KEY_BITS, AdapterId
from trtkit.lora.adapter import open_adapter
from trtkit.lora.targets import adapted_layers, check_adapter
from trtkit.models.spec_file import read_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trtkit.arrays import Array
    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.execution.adapters import Matrices
    from trtkit.llm.execution.execution import AdapterSlots
    from trtkit.lora.adapter import Adapter, LowRank
    from trtkit.models.spec import DecoderSpec


_NAME = re.compile(r"(?!.*\.\.)\w[\w.:@/+-]{0,127}")


class Adapters:
    """Adapters by name. Host memory holds the matrices of all loaded ones, the device those in use.

    slots: of the network. spec: its model. paths: of layers that take adapters.
    """

    def __init__(self, slots: AdapterSlots, spec: DecoderSpec, paths: frozenset[str]) -> None:
        self._slots: AdapterSlots | None = slots
        self._most, self._dtype = slots.most, slots.dtype
        self._spec, self._paths = spec, paths
        self._table = RankTable(slots.most)
        self._loaded: dict[str, LoadedAdapter] = {}
        self._numbers: dict[str, int] = {}
        self._count = 0
        self._unloaded: set[int] = set()

    @property
    def names(self) -> list[str]:
        """The names that requests may use."""
        return list(self._loaded)

    @property
    def residents(self) -> list[int]:
        """Numbers of the adapters on the device, least recently used first."""
        return self._table.residents

    @property
    def free_ranks(self) -> int:
        """Number of ranks without an adapter."""
        return self._table.free

    def read(self, folder: Path | str) -> PreparedAdapter:
        """Read and check an adapter, from any thread: nothing here changes. Raises SourceError, ProblemsError."""
        adapter = open_adapter(Path(folder), self._spec)
        check_adapter(adapter, self._paths, self._most)
        return PreparedAdapter(adapter.digest, adapter.adapter_rank, prepared_matrices(adapter, self._dtype))

    def load(self, name: str, adapter: PreparedAdapter | Path | str) -> LoadedAdapter:
        """Load an adapter for requests to use. Raises RequestError if the name is taken, and what `read` raises."""
        check_adapter_name(name)
        if name in self._loaded:
            fix = "unload it first, or use another name"
            raise RequestError(f"an adapter `{name}` is loaded already", "adapter", fix)
        adapter = adapter if isinstance(adapter, PreparedAdapter) else self.read(adapter)
        if adapter.digest not in self._numbers:
            self._count += 1
            self._numbers[adapter.digest] = self._count
        adapter_id = AdapterId(self._numbers[adapter.digest], adapter.key)
        self._loaded[name] = LoadedAdapter(name, adapter_id, adapter.rank, adapter.matrices)
        return self._loaded[name]

    def unload(self, name: str, running: Collection[int]) -> None:
        """Unload an adapter: new requests are refused, running ones finish. Raises RequestError for unknown names.

        running: numbers of adapters in use.
        """
        number = self.get(name).id.number
        del self._loaded[name]
        if not self._is_loaded(number):
            self._numbers = {digest: kept for digest, kept in self._numbers.items() if kept != number}
            self._unloaded.add(number)
        self.evict_unloaded(running)

    def evict_unloaded(self, running: Collection[int]) -> None:
        """Free the ranks of unloaded adapters that no request uses any longer."""
        for number in [number for number in self._unloaded if number not in running]:
            self._unloaded.remove(number)
            if self._table.use(number):
                self._evict(number)

    def get(self, name: str) -> LoadedAdapter:
        """Return the adapter of a name. Raises RequestError if there is none."""
        if name not in self._loaded:
            known = ", ".join(f"`{loaded}`" for loaded in self._loaded) or "none"
            fix = f"{did_you_mean(name, self._loaded)}loaded: {known}"
            raise RequestError(f"no adapter `{name}` is loaded", "adapter", fix)
        return self._loaded[name]

    def can_hold(self, adapter: LoadedAdapter, running: Collection[int]) -> bool:
        """Whether an adapter is on the device, or fits there if idle ones are evicted.

        running: numbers of adapters in use, which stay.
        """
        is_resident = adapter.id.number in self._table.residents
        return is_resident or self._table.to_evict(adapter.rank, running) is not None

    def beside(self, adapter: LoadedAdapter, running: Collection[int]) -> set[int]:
        """Return the adapters that new requests may use while `adapter` waits for room, without delaying it.

        running: numbers of adapters in use.
        """
        return self._table.to_keep(adapter.rank, running)

    def hold(self, adapter: LoadedAdapter, running: Collection[int]) -> None:
        """Load an adapter that `can_hold` onto the device, evicting the least recently used."""
        if self._table.use(adapter.id.number):
            return
        for number in self._table.to_evict(adapter.rank, running) or ():
            self._evict(number)
        if not self._is_loaded(adapter.id.number):  # it was unloaded while the request waited
            self._unloaded.add(adapter.id.number)
        rows = self._table.take(adapter.id.number, adapter.rank)
        assert self._slots is not None
        self._slots.write(rows, adapter.id.number, adapter.matrices)

    def sleep(self) -> None:
        """Drop the device's memory; adapters stay loaded."""
        self._slots, self._table = None, RankTable(self._most)
        self._unloaded.clear()

    def wake(self, slots: AdapterSlots) -> None:
        """Use new device memory."""
        self._slots = slots

    def _is_loaded(self, number: int) -> bool:
        return any(adapter.id.number == number for adapter in self._loaded.values())

    def _evict(self, number: int) -> None:
        assert self._slots is not None
        self._slots.erase(self._table.release(number))


def bundle_adapters(bundle: Bundle, slots: AdapterSlots | None) -> Adapters | None:
    """Return the adapters of a bundle's engine; None if it takes none."""
    options = llm_options(bundle.manifest.config).lora
    if slots is None or options is None:
        return None
    spec = read_spec(bundle.path)
    return Adapters(slots, spec, adapted_layers(spec, options))


def check_adapters(bundle: Bundle, folders: Mapping[str, str | Path], model: str) -> None:
    """Raise RequestError if a bundle's engine takes no adapters or a name is not one, ProblemsError, SourceError for an
    adapter that does not fit.
    """
    options = llm_options(bundle.manifest.config).lora
    if not folders:
        return
    if options is None:
        raise no_adapters()
    for name in folders:
        check_adapter_name(name, model)
    spec = read_spec(bundle.path)
    for folder in folders.values():
        check_adapter(open_adapter(Path(folder), spec), adapted_layers(spec, options), options.max_rank_sum)


def check_adapter_name(name: str, model: str | None = None) -> None:
    """Raise RequestError for an invalid name. model: the name under which the adapter's model is served."""
    if name == model:
        raise RequestError(f"`{name}` is the name of the model", "adapter", "give the adapter another name")
    if not _NAME.fullmatch(name):
        what = f"{name[:80]!a} cannot be an adapter's name"
        fix = "use 1 to 128 letters, digits and `._:@/+-`, a letter or digit first, and no `..`"
        raise RequestError(what, "adapter", fix)


def no_adapters() -> GenerationError:
    """Return the error for an adapter if the engine takes none."""
    fix = "build with `--set llm.lora.max_rank_sum=64`, or merge one adapter: `--set source.lora=FOLDER`"
    return RequestError("the engine takes no LoRA adapters", "adapter", fix)


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter under the name that requests use."""

    name: str
    id: AdapterId
    rank: int
    matrices: Matrices = field(hash=False, compare=False)


@dataclass(frozen=True)
class PreparedAdapter:
    """An adapter that was read and checked. digest: of its files. key: see AdapterId."""

    digest: str
    rank: int
    matrices: Matrices = field(hash=False, compare=False)

    @property
    def key(self) -> int:
        """A number of KEY_BITS bits from the digest."""
        return int.from_bytes(sha256(self.digest.encode()).digest()[:8], "little") % ((1 << KEY_BITS) - 1) + 1


def prepared_matrices(adapter: Adapter, dtype: torch.dtype) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return an adapter's matrices a [r, in] and b [r, out] by layer, b times the scale.

    Raises SourceError for values that are not finite in `dtype`.
    """
    matrices = {}
    for path, part in adapter.parts.items():
        a, b = (torch.from_numpy(matrix).to(dtype).contiguous() for matrix in _by_rank(part))
        if not (a.isfinite().all() and b.isfinite().all()):
            what = f"the adapter of `{path}` has values too large for {str(dtype).removeprefix('torch.')}"
            raise SourceError(what, str(adapter.folder), "build the engine with `precision: bf16`")
        matrices[path] = a, b
    return matrices


def _by_rank(part: LowRank) -> tuple[Array, Array]:
    """Return a [r, in] and b [r, out]."""
    a, b = part.matrices()
    return a, b.T


class RankTable:
    """Ranks by adapter, least recently used first. An adapter's ranks need not be consecutive."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._ranks: OrderedDict[int, list[int]] = OrderedDict()

    @property
    def free(self) -> int:
        """Number of ranks without an adapter."""
        return len(self._free)

    @property
    def residents(self) -> list[int]:
        """The adapters that have ranks, least recently used first."""
        return list(self._ranks)

    def use(self, adapter: int) -> bool:
        """Mark an adapter as used now; return whether it has ranks."""
        if adapter in self._ranks:
            self._ranks.move_to_end(adapter)
        return adapter in self._ranks

    def to_evict(self, needed: int, running: Collection[int]) -> list[int] | None:
        """Return the adapters to evict, least recently used first, so that `needed` ranks become free.

        running: adapters that stay. None if there would be too few.
        """
        chosen: list[int] = []
        free = self.free
        for adapter, ranks in self._ranks.items():
            if free >= needed:
                break
            if adapter not in running:
                chosen.append(adapter)
                free += len(ranks)
        return chosen if free >= needed else None

    def to_keep(self, needed: int, running: Collection[int]) -> set[int]:
        """Return which of the running adapters leave room for `needed` ranks, however long they run.

        While no others start, the set in use only shrinks; an adapter that waits for the ranks therefore gets them once
        all other requests have ended.
        """
        kept, free = set(), self.count - needed
        for adapter in sorted(number for number in self._ranks if number in running):
            if len(self._ranks[adapter]) <= free:
                kept.add(adapter)
                free -= len(self._ranks[adapter])
        return kept

    def take(self, adapter: int, count: int) -> list[int]:
        """Give an adapter the lowest `count` free ranks; return them."""
        self._free.sort(reverse=True)
        self._ranks[adapter] = ranks = [self._free.pop() for _ in range(count)]
        return ranks

    def release(self, adapter: int) -> list[int]:
        """Free an adapter's ranks; return them."""
        ranks = self._ranks.pop(adapter)
        self._free += ranks
        return ranks
