"""Active neurons: apply `llm.sparse_ffn` to a model's feed-forward layers, or refuse models that it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.config.llm import SparseFfnOptions
from trtkit.config.schema import ModelConfig
from trtkit.errors import ConfigError, Problem
from trtkit.jobs.events import Phase, Steps
from trtkit.jobs.job import Job
from trtkit.lora.merge import open_language_model
from trtkit.models.feed_forward import MOST_READ_BLOCKS, ActiveBlocks, MlpSpec, MoeSpec
from trtkit.models.parallel import grid_of
from trtkit.models.weights import model_weights, stored_spec
from trtkit.quantization_methods import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.jobs.job import JobContext
    from trtkit.jobs.runner import Runner
    from trtkit.models.spec import DecoderSpec, LayerSpec


@dataclass(frozen=True)
class KeptBlocks:
    """Number of blocks of neurons kept in each layer with a feed-forward part, in layer order."""

    kept: tuple[int, ...]


MEASURE = Job("trtkit.builder.active_neurons:measure_kept", ModelConfig, KeptBlocks, activity="measuring neurons")
KEY = "llm.sparse_ffn"
ACTIVATIONS = ("relu", "relu2")
"""Activations that are zero for negative inputs."""
_REMOVE = "remove it"


def with_measured_blocks(config: ModelConfig, runner: Runner) -> ModelConfig:
    """Return a config whose `llm.sparse_ffn.keep` is set, measured on the calibration text if the config has none."""
    options = None if config.llm is None else config.llm.sparse_ffn
    if config.llm is None or options is None or options.keep is not None:
        return config
    kept = runner.run(MEASURE, config).kept
    measured = SparseFfnOptions(keep=kept, block=options.block)
    return config.model_copy(update={"llm": config.llm.model_copy(update={"sparse_ffn": measured})})


def measure_kept(config: ModelConfig, context: JobContext) -> KeptBlocks:
    """Return, per layer, the most blocks that any one token of the calibration text activates.

    Raises ConfigError for models and options that `llm.sparse_ffn` does not support, QuantizeError for a bad text.
    """
    from trtkit.quantization.llm import calibration, neurons
    from trtkit.sources.huggingface.model import encoder, text_model

    assert config.llm is not None
    options, steps = config.llm.sparse_ffn, Steps(context.report)
    assert options is not None
    context.report(Phase("measure neurons"))
    opened = open_language_model(config.source)
    spec = stored_spec(opened.config, opened.where, opened.checkpoint)
    if problems := [*_model_problems(spec), *_config_problems(config)]:
        raise ConfigError(f"the config does not fit {opened.where}", problems)
    names = {weight.path: weight.name.removesuffix(".weight") for weight in model_weights(spec)}
    layers = [index for index, layer in spec.numbered_layers if layer.feed_forward is not None]
    modules = {names[f"layers.{index}.mlp.down.weight"]: index for index in layers}
    ids = encoder(opened).encode(calibration.read_text(options.calibration))
    texts = calibration.windows(ids, options.calibration, f"{KEY}.calibration")
    activity = neurons.measure(text_model(opened), modules, options.block, texts, steps.counted("measure", len(texts)))
    blocks = [-(-_size(spec, index) // options.block) for index in layers]
    shares = [activity[index].mean / count for index, count in zip(layers, blocks, strict=True)]
    kept = tuple(max(1, activity[index].most) for index in layers)
    mean = sum(shares) / len(shares)
    most = max(share / count for share, count in zip(kept, blocks, strict=True))
    steps.add("neurons", f"{mean:.1%} of blocks active on average, at most {most:.1%} of a layer's for one token")
    return KeptBlocks(kept)


def _size(spec: DecoderSpec, index: int) -> int:
    mlp = spec.layers[index].feed_forward
    assert isinstance(mlp, MlpSpec)
    return mlp.intermediate_size


def sparse_spec(spec: DecoderSpec, config: ModelConfig, where: str) -> DecoderSpec:
    """Like `with_active_blocks`, but checked: raises ConfigError for what `llm.sparse_ffn` does not support."""
    if problems := list(sparse_ffn_problems(spec, config, frozenset())):
        raise ConfigError(f"the config does not fit {where}", problems)
    return with_active_blocks(spec, config)


def with_active_blocks(spec: DecoderSpec, config: ModelConfig) -> DecoderSpec:
    """Return the spec with each layer's blocks kept by `llm.sparse_ffn`; a layer that keeps all of them stays dense."""
    options = None if config.llm is None else config.llm.sparse_ffn
    if options is None or options.keep is None:
        return spec
    layers = list(spec.layers)
    sparse = [index for index, layer in enumerate(layers) if layer.feed_forward is not None]
    kept = [options.keep] * len(sparse) if isinstance(options.keep, int) else options.keep
    for index, count in zip(sparse, kept, strict=True):
        layers[index] = _with_kept(layers[index], ActiveBlocks(options.block, count))
    return replace(spec, layers=tuple(layers))


def _with_kept(layer: LayerSpec, active: ActiveBlocks) -> LayerSpec:
    mlp = layer.feed_forward
    assert isinstance(mlp, MlpSpec)
    is_dense = active.kept >= active.count_of(mlp.intermediate_size)
    return replace(layer, feed_forward=replace(mlp, active=None if is_dense else active))


def sparse_ffn_problems(spec: DecoderSpec, config: ModelConfig, adapted: frozenset[str]) -> Iterator[Problem]:
    """Yield every conflict with `llm.sparse_ffn`. adapted: paths of layers that adapters may change."""
    options = None if config.llm is None else config.llm.sparse_ffn
    if options is None:
        return
    yield from _model_problems(spec)
    yield from _config_problems(config)
    in_mlp = sorted(path for path in adapted if ".mlp." in path)
    if in_mlp:
        fix = "set `llm.lora.targets` to layers of attention, or remove `llm.sparse_ffn`"
        yield Problem(f"adapters cannot change `{in_mlp[0]}`, whose rows are gathered", "llm.lora.targets", fix)
    layers = [layer.feed_forward for layer in spec.layers if layer.feed_forward is not None]
    keep = options.keep
    if isinstance(keep, tuple) and len(keep) != len(layers):
        fix = f"give {len(layers)} numbers, or one for all"
        yield Problem(f"{len(keep)} numbers for {len(layers)} layers with a feed-forward part", f"{KEY}.keep", fix)
    if keep is None:
        fix = f"set `{KEY}.keep`; `trtkit build` and `trtkit verify` measure it"
        yield Problem("what layers keep has not been measured", f"{KEY}.keep", fix)
    largest = max(keep) if isinstance(keep, tuple) and keep else keep
    sizes = [layer.intermediate_size for layer in layers if isinstance(layer, MlpSpec)]
    if isinstance(largest, int) and sizes and MOST_READ_BLOCKS < largest < -(-max(sizes) // options.block):
        what = f"{largest} is above {MOST_READ_BLOCKS}, the most blocks that TensorRT ranks"
        yield Problem(what, f"{KEY}.keep", "raise `llm.sparse_ffn.block`")


def _model_problems(spec: DecoderSpec) -> Iterator[Problem]:
    """Yield why a model's layers cannot read active neurons only."""
    if spec.reads_encoder:
        yield Problem(f"`{spec.model_type}` reads an encoder, which is not supported", KEY, _REMOVE)
    for index, layer in spec.numbered_layers:
        if isinstance(layer.feed_forward, MoeSpec):
            what = f"layer {index} is a mixture of experts, whose neurons are not chosen one by one"
            yield Problem(what, KEY, "remove it; `llm.experts: chosen` reads chosen experts only")
            return
        if layer.feed_forward is not None and (obstacle := _obstacle(layer.feed_forward)):
            yield Problem(f"layer {index} has {obstacle}", KEY, _REMOVE)
            return


def _obstacle(mlp: MlpSpec) -> str:
    """Return why a feed-forward block cannot read active neurons only; empty if it can."""
    allowed = " and ".join(f"`{name}`" for name in ACTIVATIONS)
    obstacles = {
        "a learned activation": mlp.has_learned_activation,
        f"the activation `{mlp.activation}`, which leaves no neuron at zero, as {allowed} do": (
            mlp.activation not in ACTIVATIONS
        ),
        "gates with a limit": mlp.limit is not None,
        "gates that count by their distribution": bool(mlp.sparsity),
        "a norm over all neurons": mlp.norm is not None,
        "gate and up in one matrix": mlp.is_fused,
    }
    return next((name for name, is_there in obstacles.items() if is_there), "")


def _config_problems(config: ModelConfig) -> Iterator[Problem]:
    """Yield config options that conflict with active neurons."""
    quantize, llm = config.quantize, config.llm
    if grid_of(config).ranks > 1:
        yield Problem("ranks do not count active neurons together yet", KEY, "remove it, or `parallel`")
    if quantize is not None and (quantize.method != NONE or quantize.layers or quantize.sparsity):
        fix = "remove it; `quantize.kv_cache` alone works"
        yield Problem("rows of quantized or pruned matrices are not gathered", KEY, fix)
    if config.build.sparse_weights:
        yield Problem("gathered rows have no kernels for 2:4 weights", KEY, "remove it, or `build.sparse_weights`")
    if llm is not None and llm.speculator is not None:
        yield Problem("draft heads are not supported yet", KEY, "remove it, or `llm.speculator`")
