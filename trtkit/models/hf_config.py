"""Reads a Hugging Face `config.json` and reports every field that was not read."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trtkit.errors import Problem, ProblemsError, SourceError

# Fields that do not affect a trained model's computation: names, training, generation, caching.
_IMMATERIAL = """
    architectures auto_map torch_dtype dtype transformers_version model_type name_or_path use_cache
    initializer_range init_std block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init
    torchscript pruned_heads tie_encoder_decoder cross_attention_hidden_size decoder_start_token_id min_length num_beams
    num_beam_groups diversity_penalty early_stopping length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    exponential_decay_length_penalty suppress_tokens typical_p repetition_penalty is_llama_config transformers.js_config
    unsloth_fixed unsloth_version bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv
    initializer_factor bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id begin_suppress_tokens
    attention_dropout hidden_dropout hidden_dropout_prob resid_pdrop embd_pdrop attn_pdrop resid_dropout embd_dropout
    embedding_dropout residual_dropout dropout activation_dropout layerdrop classifier_dropout router_jitter_noise
    router_aux_loss_coef output_router_logits pretraining_tp slow_but_exact task_specific_params id2label label2id
    problem_type return_dict output_attentions output_hidden_states chunk_size_feed_forward is_encoder_decoder
    is_decoder tokenizer_class prefix finetuning_task gradient_checkpointing summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout n_ctx reorder_and_upcast_attn
    attention_softmax_in_fp32 scale_attention_softmax_in_fp32 use_bfloat16 language seq_length
    attn_implementation attn_softmax_bf16 inference_runner pre_allocate_kv_cache cache_implementation
    validate_runner_input max_batch_size max_sequence_length init_device eos_token
    remove_invalid_values temperature top_k top_p do_sample max_length"""

FIX = "take config.json from the model's own folder"
# Largest accepted sizes by their usual names: millions of layers would only exhaust the machine's memory.
_MAX_LAYERS = 10_000
_COUNTS = re.compile(r"(layers?|(?<!scale_)depths?|blocks)$")
_SIZES = {
    "num_hidden_layers": _MAX_LAYERS,
    "num_attention_heads": 65_536,
    "num_key_value_heads": 65_536,
    "num_local_experts": 65_536,
    "num_experts": 65_536,
    "n_routed_experts": 65_536,
    "n_shared_experts": 65_536,
    "moe_num_experts": 65_536,
    "num_experts_per_tok": 65_536,
    "head_dim": 65_536,
    "kv_lora_rank": 65_536,
    "q_lora_rank": 65_536,
    "qk_nope_head_dim": 65_536,
    "qk_rope_head_dim": 65_536,
    "v_head_dim": 65_536,
    "hidden_size": 1 << 24,
    "intermediate_size": 1 << 28,
    "moe_intermediate_size": 1 << 28,
    "vocab_size": 1 << 28,
    "max_position_embeddings": (1 << 31) - 1,
}
_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "a mapping"}


class HfConfig:
    """A `config.json` that tracks which of its fields were read. Errors name the field and the file.

    aliases: the family's names of fields by their usual names. defaults: for fields that older files omit.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        where: str = "config.json",
        aliases: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._fields, self._aliases, self._defaults = dict(fields), aliases or {}, defaults or {}
        self._read: set[str] = set()
        self.where = where

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field: `default` if it is null; if it is missing, the family's default or else `default`."""
        stated = [key for key in (name, self._aliases.get(name)) if key in self._fields]
        if not stated:
            return self._defaults.get(name, default)
        value = self._fields[stated[0]]
        self._read.update(key for key in stated if self._fields[key] == value)
        if value is None:
            return default
        self._check(stated[0], value, default)
        return value

    def need(self, name: str) -> Any:
        """Return a required field. Raises SourceError."""
        value = self.get(name)
        if value is None:
            raise SourceError(f"field `{name}` is missing", self.where, FIX)
        return value

    def _check(self, key: str, value: Any, default: Any) -> None:
        """Raise SourceError for a value of a type other than the default's, or an implausible size.

        Python would take `"false"` for true and true for 1.
        """
        usual = {alias: name for name, alias in self._aliases.items()}.get(key, key)
        if usual in _SIZES:
            least = 0 if usual == "num_local_experts" else 1  # some Granite 4 models have no experts
            sizes = value if isinstance(value, list) and value else [value]  # a list has one size per layer
            is_right = all(_is_integer(size) and least <= size <= _SIZES[usual] for size in sizes)
            wanted = f"an integer from {least} to {_SIZES[usual]}"
        elif isinstance(value, int | float) and not isinstance(default, bool) and _COUNTS.search(key):
            is_right, wanted = _is_integer(value) and 0 <= value <= _MAX_LAYERS, f"an integer up to {_MAX_LAYERS}"
        elif isinstance(default, bool):
            is_right, wanted = value in (True, False), "true or false"
        elif isinstance(default, int | float):
            is_right, wanted = _is_number(value), "a number"
        elif isinstance(default, str | list | dict):
            is_right, wanted = isinstance(value, type(default)), _KINDS[type(default)]
        else:
            return
        if not is_right:
            raise SourceError(f"`{key}` is `{str(value)[:60]}`; expected {wanted}", self.where, FIX)

    def refuse(self, name: str, *supported: Any) -> None:
        """Raise SourceError unless a field is missing, null or one of `supported`."""
        value = self.get(name)
        if value is not None and value not in supported:
            allowed = " or ".join(f"`{item}`" for item in supported)
            limit = f"only {allowed} is" if supported else "which is not"
            raise SourceError(f"`{name}` is `{value}`, {limit} supported", self.where)

    def unsupported(self, name: str, value: Any, known: Iterable[str]) -> SourceError:
        """Return the error for an unsupported field value."""
        return SourceError(f"`{name}` is `{value}`, which is not known", self.where, f"known: {', '.join(known)}")

    def check_all_read(self) -> None:
        """Raise ProblemsError naming each field that is set but was not read, since it may affect the computation."""
        immaterial = set(_IMMATERIAL.split())
        unread = [
            name
            for name, value in self._fields.items()
            if name not in self._read and name not in immaterial and not name.startswith("_") and not _is_unset(value)
        ]
        if unread:
            problems = [Problem(f"`{name}` is `{self._fields[name]}`", self.where) for name in sorted(unread)]
            raise ProblemsError(
                "fields that this model family does not have", problems, "remove those that change nothing"
            )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_unset(value: Any) -> bool:
    return value is None or value is False or value in (0, "", [], {})
