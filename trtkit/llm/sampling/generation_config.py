"""Settings from JSON, by their names here or in transformers' GenerationConfig, whose fields work or are refused."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem
from trtkit.llm.sampling.checks import raise_problems

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OTHER_NAME = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
    "num_return_sequences": "n",
    "bad_words_ids": "bad_words",
    "force_words_ids": "force_words",
    "sequence_bias": "logit_bias",
}
"""Fields of GenerationConfig that have another name in SamplingParams."""
ALIASES = {**OTHER_NAME, "max_completion_tokens": "max_tokens", "json_schema": "guided_json"}
_NOT_DATA = "logits_processors"
SAME_NAME = frozenset({
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size",
    "num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping",
})  # fmt: skip
"""Fields of GenerationConfig that SamplingParams has under the same name."""
NO_EFFECT = frozenset({
    "_from_model_config", "transformers_version", "bos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache",
    "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile", "is_assistant",
    "continuous_batching_config", "low_memory", "return_dict_in_generate",
})  # fmt: skip
"""Fields of GenerationConfig that change no token: how transformers computes, and facts of the model's files."""


@dataclass(frozen=True)
class Refused:
    """Why a field of GenerationConfig does not work. neutral: values that would change nothing."""

    fix: str
    neutral: tuple[Any, ...] = ()


_SPECULATION = Refused("guesses belong to the engine: open it with `--lookup`, `--draft` or a draft head")
_NOT_KEPT = Refused("use `logprobs` or `prompt_logprobs`", (False,))
_CUTOFF = Refused("use `min_p`", (0.0, 1.0))
_BIAS = Refused("use `logit_bias`")
REFUSED = {
    "assistant_confidence_threshold": _SPECULATION,
    "assistant_early_exit": _SPECULATION,
    "assistant_ensemble_weight": _SPECULATION,
    "assistant_lookbehind": _SPECULATION,
    "max_matching_ngram_size": _SPECULATION,
    "num_assistant_tokens": _SPECULATION,
    "num_assistant_tokens_schedule": _SPECULATION,
    "prompt_lookup_num_tokens": _SPECULATION,
    "speculation_type": _SPECULATION,
    "target_lookbehind": _SPECULATION,
    "use_mtp": Refused(_SPECULATION.fix, (False,)),
    "prefill_chunk_size": Refused("chunks belong to the engine: open it with `--prefill-budget`"),
    "max_length": Refused("use `max_new_tokens`, which does not count the prompt"),
    "min_length": Refused("use `min_new_tokens`, which does not count the prompt", (0,)),
    "max_time": Refused("use `max_new_tokens`, or abort the request"),
    "epsilon_cutoff": _CUTOFF,
    "eta_cutoff": _CUTOFF,
    "top_h": Refused("use `top_p` or `min_p`"),
    "penalty_alpha": Refused("contrastive search is not supported: use `repetition_penalty`", (0.0,)),
    "dola_layers": Refused("contrasting layers is not supported: leave it out"),
    "guidance_scale": Refused("classifier-free guidance is not supported: leave it out", (1.0,)),
    "encoder_repetition_penalty": Refused("use `repetition_penalty`", (1.0,)),
    "encoder_no_repeat_ngram_size": Refused("use `no_repeat_ngram_size`", (0,)),
    "exponential_decay_length_penalty": Refused("use `length_penalty` with beams, or `max_new_tokens`"),
    "renormalize_logits": Refused("scores are normalised before they are drawn: leave it out", (False,)),
    "remove_invalid_values": Refused("an answer ends with an error at scores that are not numbers", (False,)),
    "suppress_tokens": Refused("use `bad_words_ids`", ([],)),
    "begin_suppress_tokens": Refused("use `min_new_tokens` or a `logits_processors` function", ([],)),
    "forced_bos_token_id": _BIAS,
    "forced_eos_token_id": Refused("use `stop_strings` or a guide"),
    "constraints": Refused("use `force_words_ids` or a guide"),
    "token_healing": Refused("leave it out", (False,)),
    "watermarking_config": Refused("watermarks are not supported: use a `logits_processors` function"),
    "output_scores": _NOT_KEPT,
    "output_logits": _NOT_KEPT,
    "output_attentions": Refused("an engine does not give them: leave it out", (False,)),
    "output_hidden_states": Refused("build with `llm.hidden_states`", (False,)),
}
"""Fields of GenerationConfig that are refused, with what to use instead."""


def read_mapping(data: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return keyword arguments. Raises SettingsError for keys that are unknown or given under two names."""
    problems: list[Problem] = []
    settings: dict[str, Any] = {}
    for key, value in data.items():
        name = ALIASES.get(key, key)
        if value is None or key in NO_EFFECT:
            continue
        if key in REFUSED:
            problems += [] if value in REFUSED[key].neutral else [Problem("not supported", key, REFUSED[key].fix)]
        elif name not in names or name == _NOT_DATA:
            problems.append(_unknown(key, [*(name for name in names if name != _NOT_DATA), *ALIASES]))
        elif name in settings:
            problems.append(Problem(f"given twice, as `{name}` and by another name", key, f"keep `{name}`"))
        else:
            settings[name] = _from_json(key, value)
    raise_problems(problems)
    return settings


def _unknown(key: str, names: list[str]) -> Problem:
    if key == _NOT_DATA:
        return Problem("functions cannot be given as data", key, "use `SamplingParams(logits_processors=...)`")
    close = [f"`{name}`" for name in get_close_matches(key, names, n=3)]
    return Problem("unknown setting", key, f"did you mean {' or '.join(close)}?" if close else "leave it out")


def _from_json(key: str, value: Any) -> Any:
    """Undo JSON's changes to a value: an object's keys are text; transformers' biases are lists of pairs."""
    if key == "sequence_bias" and isinstance(value, list):
        return dict(_single(pair) for pair in value)
    if key == "logit_bias" and isinstance(value, dict):
        return {int(token) if str(token).isdecimal() else token: bias for token, bias in value.items()}
    return value


def _single(pair: Any) -> tuple[Any, Any]:
    """Return the bias of one token; a longer sequence stays a list, so that its check can name it."""
    ids, bias = pair if isinstance(pair, list) and len(pair) == 2 else (pair, None)
    if isinstance(ids, list):
        return (ids[0] if len(ids) == 1 else tuple(ids)), bias
    return repr(ids), bias
