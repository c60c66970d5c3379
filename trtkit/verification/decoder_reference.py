"""References in transformers for language models of all inputs, with the weights that the network computes with."""

from __future__ import annotations

import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from trtkit.errors import SourceError
from trtkit.files import scratch_folder
from trtkit.models.hybrids.weights import find_part_weights
from trtkit.models.registry import decoder_spec
from trtkit.quantization.scoring.emulation import round_blocks
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.huggingface.folder import load_folder
from trtkit.sources.huggingface.model import causal_lm
from trtkit.sources.huggingface.stacked_experts import joined_experts, stack_experts
from trtkit.sources.huggingface.wrapped_config import inner_name
from trtkit.sources.safetensors_file import INDEX, read_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from PIL import Image

    from trtkit.arrays import Array
    from trtkit.builder.hybrids import OpenedHybrid
    from trtkit.bundle.records import EncoderRecord
    from trtkit.llm.encoded import EncoderPrompt
    from trtkit.quantization_methods import Format
    from trtkit.sources.decoder_source import DecoderSource


Media = Any
"""Pictures or audio in the form that a family's reference takes; None for text."""


class TokensReference(ABC):
    """A language model of transformers in fp32 on the CPU, for any kind of input."""

    def __init__(self, model: Any, note: str = "") -> None:
        import transformers

        self.model = model
        self.description = f"transformers {transformers.__version__}, {type(model).__name__} in fp32{note}"

    @abstractmethod
    def _inputs(self, ids: Sequence[int], media: Media) -> dict[str, torch.Tensor]:
        """Return the inputs of the whole model for a prompt."""

    def logits(self, ids: Sequence[int], media: Media = None) -> torch.Tensor:
        """Return logits [S, V] of one prompt."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(**self._inputs(ids, media)).logits[0]
        return logits

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = (), media: Media = None
    ) -> list[int]:
        """Return the greedy continuation of one prompt, up to a stop token, by `generate`."""
        inputs, text = self._inputs(prompt, media), self.model.config.get_text_config(decoder=True)
        with torch.inference_mode():
            sequences = self.model.generate(
                **{**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])},
                max_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=list(stop) or None,
                pad_token_id=0,
                use_cache=getattr(text, "sliding_window", None) != 1,  # its cache of such a window keeps all tokens
            )
        answer = [int(token) for token in sequences[0, len(prompt) :]]
        return answer[:-1] if answer and answer[-1] in stop else answer


class TransformersReference(TokensReference):
    """A causal language model.

    Raises SourceError if transformers does not know the model or the weights do not fit it.
    """

    def __init__(self, opened: DecoderSource, length: int = 0) -> None:
        """length: the engine's longest sequence; its RoPE factors are then used at every length."""
        model = causal_lm(opened, decoder_spec(opened.config, opened.where).unused)
        read = "" if opened.folder is not None else ", with the weights that trtkit read"
        long = ", long rope factors at every length" if _lengthen(model, length) else ""
        super().__init__(model, f"{read}{long}")

    def _inputs(self, ids: Sequence[int], media: Media) -> dict[str, torch.Tensor]:
        assert media is None
        return {"input_ids": torch.tensor([list(ids)])}


class VisionLanguageReference(TokensReference):
    """A vision-language model with its own image processor. media: pictures.

    Prompts have one placeholder per soft token. Raises SourceError if transformers cannot load the model.
    """

    def __init__(self, folder: Path) -> None:
        import transformers

        super().__init__(load_folder(transformers.AutoModelForImageTextToText, folder, attn_implementation="eager"))
        try:
            self._processor = transformers.AutoImageProcessor.from_pretrained(
                folder, local_files_only=True, backend="pil"
            )
        except (OSError, ValueError) as error:
            raise SourceError(f"transformers cannot read the image processor: {error}", str(folder)) from None

    def soft_tokens(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the vectors [P, D] that the model inserts into a prompt, followed by those for inner layers."""
        with torch.inference_mode():
            features = self.model.get_image_features(**self._images(images))
        deep = [torch.cat(list(layer)) for layer in getattr(features, "deepstack_features", None) or ()]
        tokens = torch.cat([item.reshape(-1, item.shape[-1]) for item in features.pooler_output])
        return torch.cat([tokens, *deep], -1)

    def _images(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Return the model's image inputs; Idefics3's processor takes images grouped by prompt."""
        if not images:
            return {}
        is_tiled, is_cropped = hasattr(self.model.config, "scale_factor"), self.model.config.model_type == "internvl"
        crops = {"crop_to_patches": True} if is_cropped else {}
        processed = self._processor([list(images)] if is_tiled else list(images), return_tensors="pt", **crops)
        return {name: processed[name] for name in processed if name not in ("rows", "cols", "num_patches", "num_crops")}

    def _inputs(self, ids: Sequence[int], media: Media) -> dict[str, torch.Tensor]:
        tokens = torch.tensor([list(ids)])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **self._images(media)}
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        if self.model.config.model_type == "gemma3":
            inputs["token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        return inputs


# Weights that checkpoints hold and transformers ignores: a table in T5's first files.
_UNUSED = (r"EncDecAttention\.relative_attention_bias\.weight$",)


class EncoderDecoderReference(TokensReference):
    """An encoder-decoder model. media: the encoder's input."""

    def __init__(self, folder: Path, record: EncoderRecord) -> None:
        import transformers

        auto = transformers.AutoModelForSeq2SeqLM if record.audio is None else transformers.AutoModelForSpeechSeq2Seq
        super().__init__(load_folder(auto, folder, unused=_UNUSED, attn_implementation="eager"))
        self._input_name = record.input_name

    def encoded(self, prompt: EncoderPrompt) -> torch.Tensor:
        """Return the encoder's keys and values for all decoder layers, [rows, D]."""
        with torch.inference_mode():
            hidden = self.model.get_encoder()(**self._source(prompt)).last_hidden_state[0]
            return torch.cat([project(hidden) for project in self._projections()])

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = (), media: Media = None
    ) -> list[int]:
        """Return the greedy tokens after an answer's first tokens; for speech, `generate` adds rules of its own."""
        answer: list[int] = []
        while len(answer) < new_tokens:
            token = int(self.logits([*prompt, *answer], media)[-1].argmax())
            if token in stop:
                break
            answer.append(token)
        return answer

    def _inputs(self, ids: Sequence[int], media: Media) -> dict[str, torch.Tensor]:
        return {**self._source(media), "decoder_input_ids": torch.tensor([list(ids)])}

    def _source(self, prompt: EncoderPrompt) -> dict[str, torch.Tensor]:
        return {self._input_name: torch.from_numpy(prompt.values[None])}

    def _projections(self) -> Iterator[torch.nn.Module]:
        """Yield each decoder layer's key and value projections of the encoder's output."""
        decoder = self.model.get_decoder()
        for block in getattr(decoder, "block", ()):
            yield from (block.layer[1].EncDecAttention.k, block.layer[1].EncDecAttention.v)
        for layer in getattr(decoder, "layers", ()):
            yield from (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)


def _lengthen(model: Any, length: int) -> bool:
    """Make LongRoPE use its factors for sequences of `length` at any length; return whether they are the long ones."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    is_long = False
    for module in (part for part in model.modules() if getattr(part, "rope_type", None) == "longrope"):
        original = module.config.rope_parameters["original_max_position_embeddings"]
        if length > original:
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, "cpu", seq_len=length)
            module.original_inv_freq.copy_(frequencies)
            is_long = True
    return is_long


_SHARD_BYTES = 2**30


@contextmanager
def folder_with(folder: Path, weights: Mapping[str, Any]) -> Iterator[Path]:
    """Provide a temporary copy of a Hugging Face folder with other weights.

    weights: all, by name; converted to fp32.
    """
    with scratch_folder() as temporary:
        for file in folder.glob("*.json"):
            if file.name != INDEX:
                shutil.copyfile(file, temporary / file.name)
        _write(weights, temporary)
        yield temporary


def _write(weights: Mapping[str, Any], folder: Path) -> None:
    """Write arrays as safetensors in shards of about one GiB, dequantizing quantized ones."""
    from safetensors.numpy import save_file

    file_names: dict[str, str] = {}
    held: dict[str, Array] = {}
    for name in weights:
        array = np.asarray(weights[name])
        held[name] = array if array.dtype.kind in "iub" else np.ascontiguousarray(array, np.float32)
        if sum(array.nbytes for array in held.values()) > _SHARD_BYTES or len(file_names) + len(held) == len(weights):
            file = f"model-{len(set(file_names.values())) + 1:05}.safetensors"
            save_file(held, folder / file, metadata={"format": "pt"})
            file_names |= dict.fromkeys(held, file)
            held = {}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_names}), encoding="utf-8")


class _Replaced(Mapping[str, Any]):
    """A checkpoint's arrays with some replaced: `names` maps their names to those in `others`."""

    def __init__(self, whole: Mapping[str, Any], names: Mapping[str, str], others: Mapping[str, Any]) -> None:
        self._whole, self._names, self._others = whole, names, others

    def __getitem__(self, name: str) -> Any:
        return self._others[self._names[name]] if name in self._names else self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


@contextmanager
def wrapped_folder(folder: Path, language: DecoderSource) -> Iterator[Path]:
    """Provide the folder that a vision-language model's reference is loaded from, with the language model's weights.

    folder: the whole model's. language: the language model as its network was written from.
    """
    if not language.quantized_by:
        yield folder
        return
    whole = Checkpoint(read_folder(folder)[0])
    inner = {name: inner_name(name) for name in whole}
    own_arrays = stack_experts(language.checkpoint, str(language.config["model_type"]))
    names = {
        name: inner_name for name, inner_name in inner.items() if inner_name is not None and inner_name in own_arrays
    }
    with folder_with(folder, _Replaced(whole, names, own_arrays)) as copy:
        yield copy


@contextmanager
def hybrid_folder(opened: OpenedHybrid) -> Iterator[Path]:
    """Provide the folder that a hybrid's reference is loaded from, with its written parts' weights, dequantized."""
    quantization, source = opened.quantization, opened.source
    if quantization is None or not quantization.layers:
        yield source.folder
        return
    weights = find_part_weights(opened.spec, source.checkpoint, source.where)
    by_name = {weights.name_of(path): path for path in weights}
    replaced = _Replaced(source.checkpoint, by_name, quantization.weights(weights))
    with folder_with(source.folder, replaced) as folder:
        yield folder


_Forward = Callable[..., object]
_Rounding = Callable[[torch.Tensor], torch.Tensor]
_EXPERT = re.compile(
    r"\.layers\.(?P<layer>\d+)\..*\bexperts\.(?P<expert>\d+)\.(?:gate_proj|up_proj|w1|w3|(?P<down>down_proj|w2))\."
)


def round_inputs(model: Any, opened: DecoderSource) -> set[Format]:
    """Add input rounding to a model's linear layers; return the formats that inputs are rounded to.

    Raises SourceError if transformers cannot round experts' inputs as the network does.
    """
    formats: set[Format] = set()
    experts: dict[re.Match[str], QuantizedMatrix] = {}
    for name in opened.checkpoint if opened.quantized_by else ():
        matrix = opened.checkpoint[name]
        if not isinstance(matrix, QuantizedMatrix) or matrix.inputs is None:
            continue
        formats.add(matrix.inputs.format)
        if match := _EXPERT.search(name):
            experts[match] = matrix
        else:
            model.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(_hook(matrix))
    if experts:
        _round_experts(model, experts)
    return formats


def _hook(matrix: QuantizedMatrix) -> _Forward:
    rounding = _rounding(matrix)

    def hook(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounding(arguments[0]), *arguments[1:])

    return hook


def _rounding(matrix: QuantizedMatrix) -> _Rounding:
    """Return the rounding of a layer's inputs [..., in].

    Multiplied by their factors before, and divided by them after.
    """
    inputs = matrix.inputs
    assert inputs is not None
    factors = torch.from_numpy(matrix.input_factors).float() if matrix.input_factors is not None else torch.ones(1)
    return lambda x: rounded(x * factors, inputs) / factors


def _round_experts(model: Any, matrices: Mapping[re.Match[str], QuantizedMatrix]) -> None:
    """Round the inputs of experts, which transformers multiplies by slices of one array, recognized by their memory."""
    joined = joined_experts(model)
    model.set_experts_implementation("eager")
    by_module: dict[int, dict[int, QuantizedMatrix]] = {}
    for match, matrix in matrices.items():
        number = int(match["layer"])
        if number not in joined:
            raise SourceError(
                f"transformers' {type(model).__name__} cannot round the inputs of single experts", match[0]
            )
        experts = joined[number]
        array = getattr(experts.module, "down_proj" if match["down"] else experts.first)
        by_pointer = by_module.setdefault(number, {})
        other = by_pointer.setdefault(array[int(match["expert"])].data_ptr(), matrix)
        if other.inputs != matrix.inputs or not _is_same(other.input_factors, matrix.input_factors):
            raise SourceError("gate and up of one expert round their inputs in two ways", match[0])
    for number, by_pointer in by_module.items():
        module = joined[number].module
        module.forward = _rounding_forward(
            module.forward, {pointer: _rounding(matrix) for pointer, matrix in by_pointer.items()}
        )


def _is_same(first: Array | None, second: Array | None) -> bool:
    return first is second if first is None or second is None else np.array_equal(first, second)


def _rounding_forward(forward: _Forward, rounding: Mapping[int, _Rounding]) -> _Forward:
    """Return a module's forward that rounds the inputs of some matrix products. rounding: by the matrix's memory."""

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        round_input = rounding.get(weight.data_ptr())
        return _LINEAR(x if round_input is None else round_input(x), weight, bias)

    def run(*arguments: object, **named: object) -> object:
        with mock.patch.object(torch.nn.functional, "linear", linear):
            return forward(*arguments, **named)

    return run


def rounded(x: torch.Tensor, inputs: QuantizedInputs) -> torch.Tensor:
    """Return x [..., in] rounded according to `inputs`."""
    if FORMATS[inputs.format].block:
        return round_blocks(x, inputs.format, inputs.scale)
    largest = FORMATS[inputs.format].largest
    token = x.abs().amax(-1, keepdim=True).clamp(min=_TINY)
    scale = token / (inputs.steps or largest) if inputs.is_per_token else inputs.scale
    steps = x / scale
    if inputs.format == "int8":
        return steps.round().clamp(-128, 127) * scale
    return steps.clamp(-largest, largest).to(torch.float8_e4m3fn).float() * scale


_LINEAR = torch.nn.functional.linear
_TINY = 1e-12
