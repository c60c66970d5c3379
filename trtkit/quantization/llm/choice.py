"""The choice of layers to quantize in an LLM, and their methods."""

from __future__ import annotations

import difflib
import fnmatch
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trtkit.errors import ConfigError, Problem
from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.weights import model_weights
from trtkit.quantization_methods import BLOCKS, FORMATS, METHODS, NONE, largest_block, methods_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.models.spec import DecoderSpec
    from trtkit.quantization_methods import Method

# Without `kv_b` of latent attention, by which queries and outputs are multiplied too.
_LINEAR = re.compile(r"\.(q|k|v|o|qkv|q_a|q_b|kv_a|gate|up|gate_up|down|in|out|qkvz|z)$")
_SHARING = re.compile(r"\.(?:(q|k|v|q_a|kv_a|z)|gate|up)$")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_HEAD = "lm_head"


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer. name: its path here. module: its name in transformers. size: columns of its matrix."""

    name: str
    module: str
    rows: int
    size: int


@dataclass(frozen=True)
class CachedLayer:
    """A layer with 8-bit caches. module: its attention in transformers. caches: their names.

    latent_rank: size of its latent vectors without the rotary part; 0 if it caches keys and values.
    """

    module: str
    caches: tuple[str, ...]
    latent_rank: int


@dataclass(frozen=True)
class MethodChoice:
    """The method of each quantized layer. block: columns that share a scale in int4. pruned: layers to prune first.

    caches: the layers with 8-bit caches, by number.
    """

    methods: dict[LinearLayer, str]
    block: int
    pruned: tuple[LinearLayer, ...] = ()
    caches: Mapping[int, CachedLayer] = field(default_factory=dict)

    def of(self, layer: LinearLayer) -> Method:
        return METHODS[self.methods[layer]]

    def without(self, names: Sequence[str], fallback: str | None = None) -> MethodChoice:
        """Return the choice with some layers unquantized, or quantized with a fallback."""
        others = {layer: method for layer, method in self.methods.items() if layer.name not in names}
        left = {} if fallback is None else {layer: fallback for layer in self.methods if layer.name in names}
        return replace(self, methods=others | left)

    @property
    def rounded_here(self) -> list[LinearLayer]:
        """Layers whose weights trtkit rounds itself; ModelOpt quantizes the others."""
        return [layer for layer in self.methods if not self.of(layer).is_modelopts]

    @property
    def is_weights_only(self) -> bool:
        """Whether no layer's inputs are rounded."""
        return not any(METHODS[method].rounds_inputs for method in self.methods.values())

    @property
    def needs_data(self) -> bool:
        return any(METHODS[method].needs_data for method in self.methods.values())


def linear_layers(spec: DecoderSpec) -> list[LinearLayer]:
    """Return a model's linear layers; the LM head only if it has its own matrix."""
    layers = []
    for weight in model_weights(spec):
        name = weight.path.removesuffix(".weight")
        if len(weight.shape) == 2 and (_LINEAR.search(name) or name == _HEAD):
            rows, size = weight.shape[::-1] if spec.is_in_out and name != _HEAD else weight.shape
            layers.append(LinearLayer(name, weight.name.removesuffix(".weight"), rows, size))
    return layers


def cached_layers(spec: DecoderSpec) -> dict[int, CachedLayer]:
    """Return the layers that have their own caches, by number."""
    names = {weight.path: weight.name for weight in model_weights(spec)}
    layers = {}
    for index, layer in spec.numbered_layers:
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec) and mixer.caches:
            module = names[f"layers.{index}.attention.o.weight"].rsplit(".", 2)[0]
            layers[index] = CachedLayer(module, mixer.caches, mixer.latent_rank)
    return layers


def pruned_layers(spec: DecoderSpec, exclude: Sequence[str]) -> list[LinearLayer]:
    """Return the layers that `sparsity` prunes: all linear layers except the head and those that match `exclude`."""
    layers = [layer for layer in linear_layers(spec) if layer.name != _HEAD]
    return [layer for layer in layers if not any(fnmatch.fnmatchcase(layer.name, glob) for glob in exclude)]


def inputs_of(name: str) -> str:
    """Return a key for a layer's inputs, equal for layers that share inputs, or, as experts do, their scale."""
    return _SHARING.sub(lambda match: ".qkv" if match[1] else ".gate_up", _EXPERT.sub(".experts.", name))


def choose(spec: DecoderSpec, options: QuantizeOptions) -> MethodChoice:
    """Return the method of each layer.

    Raises ConfigError for globs that match nothing, methods that do not apply to LLMs, and block sizes that do not
    divide.
    """
    problems = list(_problems(spec, options))
    if problems:
        raise ConfigError("the model cannot be quantized this way", problems)
    methods = {layer: method for layer in linear_layers(spec) if (method := _method(layer, options)) != NONE}
    in_blocks = [layer for layer, method in methods.items() if METHODS[method].takes_block]
    sizes = [layer.size for layer in in_blocks]
    block = options.block or largest_block(sizes)
    odd = [layer for layer in in_blocks if layer.size % (block or min(BLOCKS))]
    if odd:
        what = f"a block size of {block or min(BLOCKS)} does not divide the {odd[0].size} columns of `{odd[0].name}`"
        fix = f"use {largest_block(sizes)}" if largest_block(sizes) else "exclude these layers, or use int8_wo"
        raise ConfigError("the model cannot be quantized this way", [Problem(what, "quantize.block", fix)])
    _check_fixed_blocks(methods)
    pruned = () if options.sparsity is None else tuple(pruned_layers(spec, options.exclude))
    choice = MethodChoice(methods, block, pruned, {} if options.kv_cache is None else cached_layers(spec))
    if is_streamed(spec, choice, options):
        return choice
    _check_sharing(linear_layers(spec), methods)
    whole = [layer for layer in choice.rounded_here if _EXPERT.search(layer.name)]
    if whole:
        what = f"`{whole[0].name}`: experts cannot have int4_wo where the caches or other layers' inputs are quantized"
        raise ConfigError("the model cannot be quantized this way", [Problem(what, "quantize.layers", "use int8_wo")])
    return choice


def is_streamed(spec: DecoderSpec, choice: MethodChoice, options: QuantizeOptions) -> bool:
    """Whether weights are rounded one by one as they are read: a mixture of experts with weight-only quantization."""
    return has_experts(spec) and choice.is_weights_only and options.kv_cache is None


def _check_sharing(layers: Sequence[LinearLayer], methods: Mapping[LinearLayer, str]) -> None:
    """Refuse layers that share inputs but have different ModelOpt formats, which it would merge. Raises ConfigError."""
    groups: dict[str, list[LinearLayer]] = {}
    for layer in layers:
        groups.setdefault(inputs_of(layer.name), []).append(layer)
    for first, *others in groups.values():
        for layer in others:
            chosen = [methods.get(member, NONE) for member in (first, layer)]
            formats = {method if method in METHODS and METHODS[method].is_modelopts else "" for method in chosen}
            if len(formats) > 1:
                what = f"`{first.name}` and `{layer.name}` share their inputs and need one method"
                what = f"{what}, not {' and '.join(chosen)}"
                problem = Problem(what, "quantize.layers", "give them one method")
                raise ConfigError("the model cannot be quantized this way", [problem])


def _check_fixed_blocks(methods: Mapping[LinearLayer, str]) -> None:
    """Refuse layers whose columns a method's fixed block size does not divide. Raises ConfigError."""
    blocks = {layer: FORMATS[METHODS[method].format].block or 1 for layer, method in methods.items()}
    odd = [layer for layer, block in blocks.items() if layer.size % block]
    if odd:
        what = f"a block size of {blocks[odd[0]]} does not divide the {odd[0].size} columns of `{odd[0].name}`"
        fix = "exclude these layers, or use int8_wo or fp8"
        raise ConfigError("the model cannot be quantized this way", [Problem(what, "quantize.method", fix)])


def _method(layer: LinearLayer, options: QuantizeOptions) -> str:
    """Return a layer's method; `none` if it stays unquantized."""
    if any(fnmatch.fnmatchcase(layer.name, glob) for glob in options.exclude):
        return NONE
    matching = [method for glob, method in options.layers.items() if fnmatch.fnmatchcase(layer.name, glob)]
    if matching:
        return matching[-1]
    return NONE if layer.name == _HEAD and not options.head else options.method


def _problems(spec: DecoderSpec, options: QuantizeOptions) -> list[Problem]:
    names = [layer.name for layer in linear_layers(spec)]
    allowed = methods_for("llm")
    chosen = {"quantize.method": options.method} | {f"quantize.layers.{k}": v for k, v in options.layers.items()}
    wrong = {key: method for key, method in chosen.items() if method not in (*allowed, NONE)}
    problems = [
        Problem(f"`{method}` does not apply to LLMs", key, f"use one of {', '.join(allowed)}")
        for key, method in wrong.items()
    ]
    globs = [(glob, "quantize.exclude") for glob in options.exclude] + [(g, "quantize.layers") for g in options.layers]
    for glob, key in globs:
        if not fnmatch.filter(names, glob):
            near = ", ".join(difflib.get_close_matches(glob, names, n=3, cutoff=0.3))
            problems.append(Problem(f"`{glob}` matches no linear layer", key, f"close names: {near}"))
    if options.kv_cache is not None and not spec.attentions:
        problems.append(Problem("the model has no KV cache", "quantize.kv_cache", "remove it"))
    return [*problems, *_problems_of_mixtures(chosen)] if has_experts(spec) else problems


def has_experts(spec: DecoderSpec) -> bool:
    """Whether the model is a mixture of experts."""
    return any(isinstance(layer.feed_forward, MoeSpec) for layer in spec.layers)


def _problems_of_mixtures(chosen: Mapping[str, str]) -> list[Problem]:
    """Return problems of methods that do not apply to mixtures of experts. chosen: methods by config key."""
    allowed = methods_for("experts")
    wrong = {key: name for key, name in chosen.items() if name in METHODS and name not in allowed}
    fix = f"use one of {', '.join(allowed)}, or quantize it elsewhere"
    return [Problem(f"`{name}` does not apply to mixtures of experts", key, fix) for key, name in wrong.items()]
