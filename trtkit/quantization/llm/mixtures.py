"""Weight-only quantization of mixtures of experts: rounded to nearest as they are read, under their checkpoint names.

A mixture therefore never has to fit into memory, and families whose experts ModelOpt does not support work too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import dtype_of
from trtkit.errors import QuantizeError
from trtkit.quantization.llm.export import WEIGHTS_ONLY, Extra
from trtkit.quantization.written import rounded
from trtkit.sources.huggingface.stacked_experts import joined_experts
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from trtkit.config.schema import ModelConfig
    from trtkit.dtypes import DType
    from trtkit.jobs.events import Steps
    from trtkit.quantization.llm.choice import LinearLayer, MethodChoice
    from trtkit.quantized_matrix import QuantizedMatrix
    from trtkit.sources.decoder_source import DecoderSource

Json = dict[str, Any]
Tensors = dict[str, Any]
_SHARD_BYTES = 4 << 30


def write_mixture(opened: DecoderSource, choice: MethodChoice, config: ModelConfig, folder: Path, steps: Steps) -> None:
    """Write a ModelOpt checkpoint: chosen layers in low precision, the rest in the config's precision."""
    assert config.quantize is not None
    options = config.quantize.model_copy(update={"block": choice.block or None})
    methods = {f"{layer.module}.weight": method for layer, method in choice.methods.items()}
    bare = {name.partition(".")[2]: method for name, method in methods.items()}
    shards, dtype = _Shards(folder), dtype_of(config.precision)
    report = steps.counted("weights", len(opened.checkpoint))
    for index, name in enumerate(opened.checkpoint):
        array, method = opened.checkpoint[name], methods.get(name, bare.get(name))
        shards.add(_plain(name, array, dtype) if method is None else _packed(name, rounded(array, method, options)))
        report(index + 1)
    size = shards.finish()
    steps.add("quantize", f"{len(methods)} layers, rounded to nearest")
    _write_config(opened, choice, folder)
    written = opened.tokenizer.write(folder)
    steps.add("export", f"{size / 2**20:.1f} MiB, {len(written)} tokenizer files")


def _plain(name: str, array: Any, dtype: DType) -> Tensors:
    """Return an unquantized tensor, floats cast to `dtype`."""
    import torch

    wide = np.array(array)
    if wide.dtype.kind in "biu":
        return {name: torch.from_numpy(wide)}
    return {name: torch.from_numpy(wide.astype(np.float32)).to(getattr(torch, dtype.torch))}


def _packed(name: str, matrix: QuantizedMatrix) -> Tensors:
    """Return a layer's tensors in the form of ModelOpt checkpoints."""
    import torch

    module = name.removesuffix(".weight")
    if matrix.format == "int4":
        return dict(Extra(matrices={module: matrix}).int4())
    return {name: torch.from_numpy(matrix.codes), f"{module}.weight_scale": torch.from_numpy(matrix.scales)}


@dataclass
class _Shards:
    """safetensors files of a few GiB each, with an index if there are several."""

    folder: Path
    _held: Tensors = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=lambda: [0])
    _places: list[list[str]] = field(default_factory=list)

    def add(self, tensors: Tensors) -> None:
        """Add tensors; first write the earlier ones if the file would become too large."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if self._held and self._sizes[-1] + size > _SHARD_BYTES:
            self._write()
            self._sizes.append(0)
        self._held |= tensors
        self._sizes[-1] += size

    def finish(self) -> int:
        """Write the remaining tensors, name the files and return their total size."""
        self._write()
        count = len(self._places)
        names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        names = names if count > 1 else ["model.safetensors"]
        for index, name in enumerate(names):
            self._file(index).rename(self.folder / name)
        if count > 1:
            file_names = {tensor: name for name, tensors in zip(names, self._places, strict=True) for tensor in tensors}
            index_file = {"metadata": {"total_size": sum(self._sizes)}, "weight_map": file_names}
            path = self.folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index_file, indent=2) + "\n", encoding="utf-8")
        return sum(self._sizes)

    def _write(self) -> None:
        from safetensors.torch import save_file

        save_file(self._held, self._file(len(self._places)), metadata={"format": "pt"})
        self._places.append(list(self._held))
        self._held = {}

    def _file(self, index: int) -> Path:
        return self.folder / f"shard-{index}.safetensors"


def _write_config(opened: DecoderSource, choice: MethodChoice, folder: Path) -> None:
    """Write config.json, and ModelOpt's hf_quant_config.json next to it."""
    names = {WEIGHTS_ONLY[choice.of(layer).format] for layer in choice.methods}
    section: Json = {"quant_algo": names.pop() if len(names) == 1 else "MIXED_PRECISION"}
    if choice.block:
        section["group_size"] = choice.block
    fields = {**opened.config, "quantization_config": {"quant_method": "modelopt", **section}}
    record = {"producer": {"name": "trtkit", "version": __version__}, "quantization": section}
    for name, data in (("config.json", fields), ("hf_quant_config.json", record)):
        (folder / name).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


_NAME = re.compile(r"layers\.(\d+)\.moe\.experts\.(\d+)\.(gate|up|down)$")


@dataclass(frozen=True)
class ExpertLayer:
    """One linear layer of one expert. experts: path of the layer's experts module in transformers' model.

    part: the array that holds it, as the `index`th entry. name: its name within the expert in ModelOpt's files.
    """

    experts: str
    part: str
    index: int
    name: str

    @property
    def weight_quantizer(self) -> str:
        """ModelOpt's name of its weight quantizer."""
        return f"{self.experts}.{self.part}_weight_quantizers.{self.index}"

    @property
    def input_quantizer(self) -> str:
        """ModelOpt's name of its input quantizer, which all experts share."""
        return f"{self.experts}.{self.part}_input_quantizer"

    @property
    def exported(self) -> str:
        """Prefix of its tensors' names in ModelOpt's files."""
        return f"{self.experts}.{self.index}.{self.name}"


def is_experts(layer: LinearLayer) -> bool:
    """Whether a linear layer belongs to an expert of a mixture."""
    return _NAME.search(layer.name) is not None


def joined_expert_layers(model: torch.nn.Module, layers: Iterable[LinearLayer]) -> dict[LinearLayer, ExpertLayer]:
    """Return where transformers' model holds the linear layer of each expert; other layers are omitted.

    Raises QuantizeError for models whose form of experts ModelOpt does not quantize one by one.
    """
    chosen = [(layer, match) for layer in layers if (match := _NAME.search(layer.name))]
    joined = joined_experts(model) if chosen else {}
    expert_layers = {}
    for layer, match in chosen:
        number, index, name = int(match[1]), int(match[2]), match[3]
        if number not in joined:
            what = f"{type(model).__name__} holds experts in a form that ModelOpt does not quantize one by one"
            raise QuantizeError(what, layer.name, "use int8_wo or int4_wo")
        group = joined[number]
        expert_layers[layer] = ExpertLayer(
            group.path, "down_proj" if name == "down" else group.first, index, f"{name}_proj"
        )
    return expert_layers
