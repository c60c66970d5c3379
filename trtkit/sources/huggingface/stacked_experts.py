"""Experts that a checkpoint stores in one array, as separate arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import StoredArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from trtkit.arrays import Array


@dataclass(frozen=True)
class Stack:
    """An array [E, out, in] or [E, out] of all experts in a layer. name: its suffix.

    parts: the parts of an expert's rows, in order, by their own names with `{e}`. is_interleaved: whether rows of the
    parts alternate; otherwise the parts are concatenated. is_in_out: whether an expert's matrix is stored as [in, out].
    hidden_axis: if set, files of the family store [in, out] or [out, in], and this is the axis with the hidden size in
    the latter.
    """

    name: str
    parts: tuple[str, ...]
    is_interleaved: bool = False
    is_in_out: bool = False
    hidden_axis: int = 0


_ROUTER = re.compile(r"\.mlp\.gate\.weight$")


def _stacks(prefix: str, gate_up: str, down: str) -> tuple[Stack, ...]:
    """Return the two arrays of gated experts without biases, gates before ups."""
    expert = f"{prefix}.experts.{{e}}."
    both = (f"{expert}gate_proj.weight", f"{expert}up_proj.weight")
    return Stack(f"{prefix}.{gate_up}", both), Stack(f"{prefix}.{down}", (f"{expert}down_proj.weight",))


GATE_UP = ("mlp.experts.{e}.gate_proj.weight", "mlp.experts.{e}.up_proj.weight")
LLAMA4_GATE_UP = ("feed_forward.experts.{e}.gate_proj.weight", "feed_forward.experts.{e}.up_proj.weight")
GATE_UP_BIASES = ("mlp.experts.{e}.gate_proj.bias", "mlp.experts.{e}.up_proj.bias")
# As transformers 5 holds experts in memory.
_MODULES = _stacks("mlp", "experts.gate_up_proj", "experts.down_proj")
_GRANITE = _stacks("block_sparse_moe", "input_linear.weight", "output_linear.weight")
_STACKS = {
    "gemma4_text": (
        Stack("experts.gate_up_proj", ("experts.{e}.gate_proj.weight", "experts.{e}.up_proj.weight")),
        Stack("experts.down_proj", ("experts.{e}.down_proj.weight",)),
    ),
    "granitemoe": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "granitemoeshared": _GRANITE,
    "granitemoe_swa": _stacks("block_sparse_moe", "experts.gate_up_proj", "experts.down_proj"),
    "llama4_text": (
        Stack("feed_forward.experts.gate_up_proj", LLAMA4_GATE_UP, is_in_out=True),
        Stack("feed_forward.experts.down_proj", ("feed_forward.experts.{e}.down_proj.weight",), is_in_out=True),
    ),
    "gpt_oss": (
        Stack("mlp.experts.gate_up_proj", GATE_UP, is_interleaved=True, is_in_out=True),
        Stack("mlp.experts.gate_up_proj_bias", GATE_UP_BIASES, is_interleaved=True),
        Stack("mlp.experts.down_proj", ("mlp.experts.{e}.down_proj.weight",), is_in_out=True),
        Stack("mlp.experts.down_proj_bias", ("mlp.experts.{e}.down_proj.bias",)),
    ),
    "mistral4": _MODULES,
    "qwen3_vl_moe_text": (
        Stack("mlp.experts.gate_up_proj", GATE_UP, hidden_axis=2),
        Stack("mlp.experts.down_proj", ("mlp.experts.{e}.down_proj.weight",), hidden_axis=1),
    ),
}

# Name parts in files and in memory. transformers also stores MLPs without experts like Kimi's mixtures.
_RENAMED = {
    "axk1": ((r"(?<!\.mlp)\.post_mlp_layernorm\.", ".mlp.post_mlp_layernorm."),),
    "kimi_linear": (
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.self_attn\.(f_[ab]_proj\.|dt_bias$|A_log$)", r".self_attn.forget_gate.\1"),
    ),
    "laguna": (
        (r"\.mlp\.experts\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
        (r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),
    ),
    "mimo_v2_flash": ((r"\.attention_sink_bias$", ".sinks"),),
    "nemotron_h": ((r"^backbone\.", "model."),),
}
# Families whose checkpoints may omit the router's selection bias, which is then 0.
_OPTIONAL_BIAS = ("axk1",)
# Rows that are separate in files: the suffix of the joined name, and those of the parts.
_JOINED = {"kimi_linear": (".conv1d.weight", tuple(f".{name}_conv1d.weight" for name in "qkv"))}


def memory_name(name: str, model_type: str) -> str:
    """Return transformers' in-memory name of a weight in a file."""
    for stored, replacement in _RENAMED.get(model_type, ()):
        name = re.sub(stored, replacement, name)
    return name


def unstack_experts(arrays: Mapping[str, StoredArray], model_type: str) -> dict[str, StoredArray]:
    """Return arrays by name, with those of all experts split by expert. Raises SourceError for shapes that do not fit.

    Names are transformers' in-memory names, except for experts. `mlp.experts.gate_up_proj` [E, 2F, D] becomes
    `mlp.experts.0.gate_proj.weight` [F, D] and so on.
    """
    unstacked: dict[str, StoredArray] = {}
    arrays = _with_joined(arrays, *_JOINED[model_type]) if model_type in _JOINED else arrays
    arrays = {**_without_bias(arrays), **arrays} if model_type in _OPTIONAL_BIAS else arrays
    for stored_name, array in arrays.items():
        name = memory_name(stored_name, model_type)
        stack = next((known for known in _STACKS.get(model_type, _MODULES) if name.endswith(f".{known.name}")), None)
        if stack is not None and stack.hidden_axis:
            router = arrays.get(f"{stored_name.removesuffix(stack.name)}mlp.gate.weight")
            stack = stack if router is None else _oriented(stack, array, router.shape[-1])
        unstacked |= {name: array} if stack is None else dict(_experts(name, array, stack))
    return unstacked


def _without_bias(arrays: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    zeros = {}
    for start, router in [(name.removesuffix("weight"), arrays[name]) for name in arrays if _ROUTER.search(name)]:
        size = router.shape[:1]
        zeros[f"{start}e_score_correction_bias"] = StoredArray(size, partial(np.zeros, size, np.float32))
    return zeros


def _with_joined(arrays: Mapping[str, StoredArray], end: str, ends: tuple[str, ...]) -> dict[str, StoredArray]:
    """Return arrays, with those that have these suffixes joined into one if all are present."""
    joined = dict(arrays)
    for start in [name.removesuffix(ends[0]) for name in arrays if name.endswith(ends[0])]:
        if all(start + end in arrays for end in ends):
            parts = tuple(joined.pop(start + end) for end in ends)
            shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
            joined[start + end] = StoredArray(shape, _Joined(parts), parts=parts)
    return joined


def stack_experts(arrays: Mapping[str, Array], model_type: str) -> dict[str, Array]:
    """Return arrays in the form of the family's checkpoints: the inverse of `unstack_experts`."""
    stacked = dict(arrays)
    for stack in _STACKS.get(model_type, ()):
        matched = re.compile(r"(.*\.)" + re.escape(stack.parts[0]).replace(r"\{e\}", "0"))
        for start in [match[1] for name in arrays if (match := matched.fullmatch(name)) and name in stacked]:
            stacked[start + stack.name] = _joined(stacked, start, stack)
    return stacked


def _oriented(stack: Stack, array: StoredArray, hidden_size: int) -> Stack:
    """Return the stack with an array's actual orientation. HF: `Transpose` with `check_dims`."""
    is_three = len(array.shape) == 3
    return replace(stack, is_in_out=is_three and array.shape[stack.hidden_axis] != hidden_size)


def _experts(name: str, array: StoredArray, stack: Stack) -> Iterator[tuple[str, StoredArray]]:
    start, parts = name.removesuffix(stack.name), len(stack.parts)
    shape = (array.shape[0], *array.shape[:0:-1]) if stack.is_in_out else array.shape
    if len(shape) not in (2, 3) or shape[1] % parts:
        raise SourceError(f"`{name}` has shape {list(array.shape)}; expected one array for each expert")
    for expert in range(shape[0]):
        for index, part in enumerate(stack.parts):
            part_shape = (shape[1] // parts, *shape[2:])
            yield start + part.format(e=expert), StoredArray(part_shape, _Part(array, stack, expert, index))


@dataclass(frozen=True)
class _Joined:
    """Reads several arrays as one, along the first axis."""

    parts: tuple[StoredArray, ...]

    def __call__(self) -> Array:
        return np.concatenate([part.read() for part in self.parts])


@dataclass(frozen=True)
class _Part:
    """Reads one part of one expert's array from the array of all experts."""

    array: StoredArray
    stack: Stack
    expert: int
    index: int

    def __call__(self) -> Array:
        whole: Array = self.array.read()[self.expert]
        whole = whole.T if self.stack.is_in_out else whole
        count = len(self.stack.parts)
        if self.stack.is_interleaved:
            return np.ascontiguousarray(whole[self.index :: count])
        size = len(whole) // count
        return np.ascontiguousarray(whole[self.index * size : (self.index + 1) * size])


def _joined(arrays: dict[str, Array], start: str, stack: Stack) -> Array:
    """Remove the arrays of all experts from `arrays`, and return them as one."""
    experts: list[Array] = []
    first = start + stack.parts[0]
    while first.format(e=len(experts)) in arrays:
        parts = [np.asarray(arrays.pop(start + part.format(e=len(experts)))) for part in stack.parts]
        whole = np.stack(parts, 1).reshape(-1, *parts[0].shape[1:]) if stack.is_interleaved else np.concatenate(parts)
        experts.append(whole.T if stack.is_in_out else whole)
    return np.stack(experts)


_LAYER = re.compile(r"\blayers\.(\d+)\.")
_FIRST = ("gate_up_proj", "up_proj")
"""transformers' names of the first expert array: gates and ups, or only ups without gates."""


@dataclass(frozen=True, eq=False)
class JoinedExperts:
    """The experts of one layer. path: of their module; first: the name of the first array [E, F or 2 F, D].

    The other array is `down_proj` [E, D, F]; the module multiplies by one expert's part of each in turn.
    """

    path: str
    module: torch.nn.Module
    first: str


def joined_experts(model: torch.nn.Module) -> dict[int, JoinedExperts]:
    """Return, by layer, the experts stored this way in a transformers model; other forms are omitted."""
    experts = {}
    for path, module in model.named_modules():
        layer = _LAYER.search(path)
        first = next((name for name in _FIRST if getattr(module, name, None) is not None), None)
        if layer is None or first is None:
            continue
        shapes = [tuple(getattr(getattr(module, name, None), "shape", ())) for name in (first, "down_proj")]
        is_known = all(len(shape) == 3 for shape in shapes) and shapes[0][2] == shapes[1][1]
        if is_known and not hasattr(module, f"{first}_bias"):
            experts[int(layer[1])] = JoinedExperts(path, module, first)
    return experts
