"""One rank's weights, sliced from the whole model's as they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trtkit.arrays import Array, compact
from trtkit.errors import ConfigError, Problem, SourceError
from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.models.parallel import SECTION, kv_heads_of
from trtkit.models.recurrent import RecurrentWeight
from trtkit.models.share import Share
from trtkit.models.spec import DecoderSpec, LayerSpec
from trtkit.models.weights import StoredWeight, WeightArrays, model_weights
from trtkit.quantized_matrix import QuantizedMatrix

Weight = Array | QuantizedMatrix
MatrixShare = tuple[Array | None, range | None]
"""Which outputs (rows) and inputs (columns) of a matrix a rank holds; None for all."""


class RankWeights(Mapping[str, Weight]):
    """One rank's weights by path, each sliced from the whole model's when it is read.

    spec: the whole model's. own_spec: the rank's, from `rank_spec`. weights: the whole model's, by path.
    """

    def __init__(self, spec: DecoderSpec, own_spec: DecoderSpec, weights: Mapping[str, Weight]) -> None:
        self._spec, self._weights = spec, weights
        self._shapes = {weight.path: weight.shape for weight in model_weights(own_spec)}
        self._layers = dict(zip((number for number, _ in own_spec.numbered_layers), own_spec.layers, strict=True))
        self._vocab = own_spec.vocab_share

    def __getitem__(self, path: str) -> Weight:
        """Return the rank's slice of a weight. Raises ConfigError if it would split elements that share a scale."""
        shape = self._shapes[path]
        cut = self._cut(path)
        array, cut = self._read(self._source_path(path), cut)
        is_in_out = self._spec.is_in_out and len(shape) == 2 and path.startswith("layers.")
        try:
            part = cut.of(array, is_in_out=is_in_out)
        except SourceError as error:
            raise ConfigError(f"`{SECTION}.tensor` splits `{path}`", [Problem(error.what)], error.fix) from error
        is_turned = is_in_out and isinstance(array, QuantizedMatrix)
        assert tuple(part.shape) == (shape[::-1] if is_turned else shape), f"{path}: {part.shape} for {shape}"
        return part

    def name_of(self, path: str) -> str:
        source = self._source_path(path)
        return self._weights.name_of(source) if isinstance(self._weights, WeightArrays) else source

    def share_of(self, path: str) -> MatrixShare:
        """Return which rows and columns of the matrix at `path` this rank holds; None for all."""
        cut = self._cut(f"{path}.weight")
        return cut.rows, cut.columns

    def _read(self, path: str, cut: _Cut) -> tuple[Weight, _Cut]:
        """Return a weight and the slice to take of it; if it is stored in parts, only the part that holds the slice."""
        stored = self._weights.stored(path) if isinstance(self._weights, WeightArrays) else None
        while stored is not None and stored.parts:
            narrowed = cut.within(stored)
            if narrowed is None:
                break
            stored, cut = narrowed
        return self._weights[path] if stored is None else stored.read(), cut

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def _source_path(self, path: str) -> str:
        """Return a weight's path in the whole model: separately named heads have other numbers there."""
        matched = _LISTED_HEAD.match(path)
        if matched is None:
            return path
        number, name, head, rest = matched.groups()
        q_heads, kv_heads = self._heads(int(number))
        first = (q_heads if name == "q_norm" else kv_heads).start
        return f"layers.{number}.attention.{name}.heads.{first + int(head)}.{rest}"

    def _heads(self, number: int) -> tuple[range, range]:
        """Return this rank's query heads and key/value heads of a layer."""
        share, whole = self._layers[number].attention.share, self._spec.layers[number].attention
        return share.of(whole.num_attention_heads), kv_heads_of(share, whole.num_key_value_heads)

    def _cut(self, path: str) -> _Cut:
        """Return this rank's slice of a weight of the whole model."""
        matched = _LAYER.match(path)
        if matched is None:
            is_by_vocabulary = path.startswith(("embedding.", "lm_head."))
            return _Cut(rows=_vocab_rows(self._vocab, self._spec.vocab_size)) if is_by_vocabulary else _Cut()
        number, part, name = int(matched[1]), matched[2], matched[3]
        own_layer, whole = self._layers[number], self._spec.layers[number]
        if part in ("mlp", "moe"):
            return _feed_forward_cut(own_layer, whole, f"{part}.{name}")
        if part == "attention":
            is_whole = own_layer.attention.share.count == 1
            return _Cut() if is_whole else _attention_cut(whole.attention, *self._heads(number), name)
        if own_layer.recurrent is None or whole.recurrent is None or own_layer.recurrent.share.count == 1:
            return _Cut()
        weights = whole.recurrent.weights(self._spec.hidden_size)
        return _recurrent_cut(next(weight for weight in weights if weight.name == name), own_layer.recurrent.share)


@dataclass(frozen=True, eq=False)
class _Cut:
    """A slice of a weight: outputs (rows) and inputs (columns); None for all."""

    rows: Array | None = None
    columns: range | None = None

    def within(self, stored: StoredWeight) -> tuple[StoredWeight, _Cut] | None:
        """Return the stored part that holds this slice, and the slice within it; None if it spans several parts."""
        if stored.axis == 0 and self.rows is not None:
            part = stored.part_with(0, int(self.rows.min()), int(self.rows.max()) + 1)
            return None if part is None else (part[0], replace(self, rows=self.rows - part[1]))
        if stored.axis == 1 and self.columns is not None:
            part = stored.part_with(1, self.columns.start, self.columns.stop)
            moved = None if part is None else range(self.columns.start - part[1], self.columns.stop - part[1])
            return None if part is None else (part[0], replace(self, columns=moved))
        return None

    def of(self, array: Weight, *, is_in_out: bool) -> Weight:
        """Return this slice of an array [out, in], [in, out] or [out]. Raises SourceError if it splits a block."""
        rows = None if self.rows is None else _as_slice(self.rows)
        if isinstance(array, QuantizedMatrix):
            part = array if rows is None else array.rows(rows)
            part = part if self.columns is None else part.column_range(self.columns)
            offsets = None if part.offsets is None else compact(part.offsets)
            return replace(part, codes=compact(part.codes), scales=compact(part.scales), offsets=offsets)
        columns = None if self.columns is None else slice(self.columns.start, self.columns.stop)
        if rows is not None:
            array = array[:, rows] if is_in_out else array[rows]
        if columns is not None:
            array = array[columns] if is_in_out else array[:, columns]
        return compact(array)


def _attention_cut(whole: AttentionSpec, q_heads: range, kv_heads: range, name: str) -> _Cut:
    """Return the slice of an attention weight. name: for example `q.weight`."""
    module, size = name.partition(".")[0], whole.head_dim
    if module in ("o", "o_norm"):
        size = whole.output_size // whole.num_attention_heads
        if module == "o_norm":
            return _Cut(rows=_rows(q_heads, size))
        return _Cut() if name.endswith(".bias") else _Cut(columns=_span(q_heads, size))
    if whole.latent is not None:  # projections to latent vectors are not split
        sizes = whole.latent.sizes
        return _Cut(rows=_rows(q_heads, sizes[module])) if module in sizes else _Cut()
    if module == "qkv":
        return _Cut(rows=_fused_rows(whole, q_heads, kv_heads))
    heads = kv_heads if module in ("k", "v", "k_norm") else q_heads
    size = 2 * size if whole.is_gated and module == "q" else size
    size = whole.gate_size if module == "z" else size
    size = whole.value_dim if module == "v" and whole.value_dim is not None else size
    is_norm = module.endswith("_norm")
    if module == "sinks" or (is_norm and whole.qk_norm == "each_head"):
        return _Cut(rows=np.asarray(heads))
    return _Cut() if is_norm and whole.qk_norm != "all" else _Cut(rows=_rows(heads, size))


def _recurrent_cut(weight: RecurrentWeight, share: Share) -> _Cut:
    """Return the slice of a recurrent layer's weight: the rank's share of each of its groups."""
    if weight.shared is None:
        return _Cut()
    spans, start = [], 0
    for count, size in weight.shared:
        spans.append(range(start + share.of(count).start * size, start + share.of(count).stop * size))
        start += count * size
    if weight.is_by_column:
        return _Cut(columns=spans[0])
    return _Cut(rows=np.concatenate([np.asarray(span) for span in spans]))


def _feed_forward_cut(own_layer: LayerSpec, whole: LayerSpec, name: str) -> _Cut:
    """Return the slice of a feed-forward weight. name: for example `mlp.gate.weight` or `moe.router.weight`."""
    part, mixture = own_layer.feed_forward, whole.feed_forward
    if isinstance(part, MlpSpec) and isinstance(mixture, MlpSpec):
        return _mlp_cut(part.share, mixture.intermediate_size, name)
    assert isinstance(part, MoeSpec)
    assert isinstance(mixture, MoeSpec)
    if name.startswith("moe.experts."):
        return _mlp_cut(part.expert.share, mixture.expert.intermediate_size, name)
    if name.startswith("moe.shared.") and part.shared is not None and mixture.shared is not None:
        return _mlp_cut(part.shared.share, mixture.shared.intermediate_size, name)
    return _Cut()  # routers are not split


def _mlp_cut(share: Share, size: int, name: str) -> _Cut:
    """Return the slice of an MLP's matrix or bias. name: its end, such as `gate.weight` or `down.bias`, decides."""
    if share.count == 1:
        return _Cut()
    module, kind = name.split(".")[-2:]
    span = share.of(size)
    if module == "act":
        return _Cut()
    if module == "down":
        return _Cut() if kind == "bias" else _Cut(columns=span)
    rows = np.asarray(span)
    return _Cut(rows=np.concatenate([rows, rows + size]) if module == "gate_up" else rows)


def _fused_rows(whole: AttentionSpec, q_heads: range, kv_heads: range) -> Array:
    """Return a rank's rows of a fused query, key and value projection."""
    N, K, H = whole.num_attention_heads, whole.num_key_value_heads, whole.head_dim
    if whole.qkv == "concatenated":
        keys = range(N + kv_heads.start, N + kv_heads.stop)
        values = range(N + K + kv_heads.start, N + K + kv_heads.stop)
        return np.concatenate([_rows(heads, H) for heads in (q_heads, keys, values)])
    if whole.qkv == "fourths":  # a rank's own order is `[q | k | v]`
        fourth = N // 4
        starts = {
            part: [(3 * (head // fourth) + part) * fourth + head % fourth for head in q_heads] for part in range(3)
        }
        return np.concatenate([_rows(range(head, head + 1), H) for part in (0, 2, 1) for head in starts[part]])
    group = N // K  # each key/value head follows its query heads
    rows = []
    for head in kv_heads:
        first = head * (group + 2)
        rows += [_rows(range(first + q % group, first + q % group + 1), H) for q in q_heads if q // group == head]
        rows.append(_rows(range(first + group, first + group + 2), H))
    return np.concatenate(rows)


def _vocab_rows(share: Share, size: int) -> Array:
    """Return a share's rows of a table: equally many for all shares, padded by repeating the last row."""
    count = -(-size // share.count)
    return np.minimum(np.arange(share.index * count, (share.index + 1) * count), size - 1)


def _span(items: range, size: int) -> range:
    """Return the range of elements of adjacent items that have `size` elements each."""
    return range(items.start * size, items.stop * size)


def _rows(items: range, size: int) -> Array:
    return np.asarray(_span(items, size))


def _as_slice(rows: Array) -> Array | slice:
    """Return rows as a slice if they are consecutive, which avoids a copy."""
    first = int(rows[0])
    return slice(first, first + len(rows)) if np.array_equal(rows, np.arange(first, first + len(rows))) else rows


_LAYER = re.compile(r"layers\.(\d+)\.(attention|conv|delta|mamba|mlp|moe)\.(.+)$")
_LISTED_HEAD = re.compile(r"layers\.(\d+)\.attention\.([qk]_norm)\.heads\.(\d+)\.(\w+)$")
