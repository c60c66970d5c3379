"""Tiny text encoders with random weights, saved as transformers does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.support.decoders import rtx
from tests.support.hybrids import Case, Hybrid
from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.jobs import PrepareRequest
from trtkit.builder.prepare import prepare
from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import JobContext
from trtkit.resolve import resolve
from trtkit.runtime.stages import reference_stages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCAB, LENGTH = 61, 40
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 52,
    "max_position_embeddings": LENGTH,
}
ROBERTA = {**SMALL, "pad_token_id": 1, "type_vocab_size": 1}
DISTILBERT = {
    "vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 52, "max_position_embeddings": LENGTH,
}  # fmt: skip
MODERNBERT = {
    **SMALL, "num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
HIDDEN = ("last_hidden_state", "pooler_output")
HEADS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "ForSequenceClassification": (("logits",), {"num_labels": 3}),
    "ForTokenClassification": (("logits",), {"num_labels": 5}),
    "ForQuestionAnswering": (("start_logits", "end_logits"), {}),
    "ForMaskedLM": (("logits",), {}),
}
FAMILIES = {
    "Bert": ("bert", SMALL, HIDDEN),
    "Roberta": ("roberta", ROBERTA, HIDDEN),
    "XLMRoberta": ("xlm-roberta", {**ROBERTA, "layer_norm_eps": 1e-5}, HIDDEN),
    "Camembert": ("camembert", {**ROBERTA, "type_vocab_size": 2}, HIDDEN),
    "DistilBert": ("distilbert", DISTILBERT, HIDDEN[:1]),
    "ModernBert": ("modernbert", MODERNBERT, HIDDEN[:1]),
}


def _cases() -> Iterator[Case]:
    for name, (model_type, config, hidden) in FAMILIES.items():
        yield Case(f"{name}Model", model_type, hidden, config)
        for head, (outputs, more) in HEADS.items():
            yield Case(f"{name}{head}", model_type, outputs, {**config, **more})
    untied = {"tie_word_embeddings": False}
    yield Case("BertForMaskedLM", "bert", ("logits",), {**SMALL, **untied, "hidden_act": "relu"}, variant="untied")
    yield Case("BertModel", "bert", HIDDEN, {**SMALL, "type_vocab_size": 5, "num_attention_heads": 2}, variant="types")
    yield Case("RobertaModel", "roberta", HIDDEN, {**ROBERTA, "pad_token_id": 4}, variant="pad")
    yield Case("DistilBertForMaskedLM", "distilbert", ("logits",), {**DISTILBERT, **untied}, variant="untied")
    biases = {**MODERNBERT, **dict.fromkeys(BIASES, True)}
    mean = {**biases, "classifier_pooling": "mean", "num_labels": 1, "classifier_activation": "silu"}
    yield Case("ModernBertForSequenceClassification", "modernbert", ("logits",), mean, variant="mean")
    masked = {**biases, **untied, "decoder_bias": False, "hidden_activation": "gelu_pytorch_tanh"}
    yield Case("ModernBertForMaskedLM", "modernbert", ("logits",), masked, variant="untied")
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    local = {**MODERNBERT, "num_hidden_layers": 3, "layer_types": types, "local_attention": 3}
    ropes = {
        kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in zip(types, (90.0, 7e3), strict=False)
    }
    yield Case("ModernBertModel", "modernbert", HIDDEN[:1], {**local, "rope_parameters": ropes}, variant="layers")


CASES = tuple(_cases())


def has_new_blocks_or_head(case: Case) -> bool:
    """Whether a case has no head, or a head on blocks that no earlier family has."""
    return case.architecture.endswith("Model") or case.model_type in {"bert", "distilbert", "modernbert"}


def config_of(folder: Path, **more: Any) -> ModelConfig:
    """Return a config of the model in a folder."""
    fields = {"name": "m", "source": {"hf": str(folder)}, "precision": "fp32", **more}
    return ModelConfig.model_validate(fields)


def make_encoder(folder: Path, **more: Any) -> Hybrid:
    """Write and compile the encoder in `folder`, in this process. more: config fields."""
    config = config_of(folder, **more)
    opened = open_hybrid(resolve(config))
    work = folder.parent / "work"
    work.mkdir()
    prepared = prepare(PrepareRequest(config, work), JobContext())
    return Hybrid(opened, reference_stages(rtx(), prepared.stages, opened))


def builds(encoder: Hybrid, most: int) -> bool:
    """Whether TensorRT-RTX builds it for 1 to 3 texts of 1 to `most` tokens."""
    (stage,) = encoder.execution.stages
    builder, network = stage.layers.owner.graph.builder, stage.layers.owner.graph.network
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for index in range(network.num_inputs):
        profile.set_shape(network.get_input(index).name, (1, 1), (2, 8), (3, most))
    config.add_optimization_profile(profile)
    config.builder_optimization_level = 0
    return builder.build_serialized_network(network, config) is not None


def texts(encoder: Hybrid, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return random ids, with a random number of tokens per row and padding after them, and random token types."""
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, tokens)
    lengths = torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    drawn = {port.name: torch.randint(0, port.values or 1, shape, generator=generator) for port in encoder.spec.inputs}
    return {**drawn, "attention_mask": (torch.arange(tokens) < lengths).long()}
