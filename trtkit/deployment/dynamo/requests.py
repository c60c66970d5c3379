"""Requests of Dynamo's frontend to a worker as prompts and settings, and the chunks of their answers."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, RequestError
from trtkit.llm.sampling.checks import raise_problems
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.scheduler import SchedulingParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtkit.llm.outputs import Delta, RequestOutput
    from trtkit.llm.prompts import Prompt
    from trtkit.llm.sampling.sampled import TokenLogprobs
    from trtkit.runtime.text import Tokenizer


Fields = Mapping[str, Any]
Settings = dict[str, object]

_SAMPLING = ["n", "temperature", "top_p", "top_k", "min_p", "seed"]
_SAMPLING += ["presence_penalty", "frequency_penalty", "repetition_penalty"]
_STOPS = ["max_tokens", "min_tokens", "ignore_eos"]
_OUTPUTS = ["logprobs", "prompt_logprobs"]
_GUIDES = {"json": "guided_json", "regex": "guided_regex", "grammar": "guided_grammar", "choice": "guided_choice"}
# Where Dynamo's groups hold trtkit's settings.
_GROUPS = {"sampling_options": _SAMPLING, "stop_conditions": _STOPS, "output_options": _OUTPUTS}
# Settings that the frontend handles itself, or that are read below.
_ELSEWHERE = {"stop", "include_stop_str_in_output", "skip_special_tokens", "return_tokens_as_token_ids"}
_ELSEWHERE |= {"formatted_prompt", "guided_decoding"}
_ELSEWHERE |= {"stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"}
# Values that request nothing.
_NEUTRAL: Settings = {"use_beam_search": False, "length_penalty": 1.0}
_SCHEDULING = {"priority": int, "user": str, "deadline_s": float}
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def default_settings(model: Path) -> Settings:
    """Return the settings of a request that sets none: the model's own, then OpenAI's defaults.

    model: a bundle's folder with `generation_config.json`.
    """
    path = model / "generation_config.json"
    model_defaults = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    of_model = {name: model_defaults[name] for name in _DEFAULTS if model_defaults.get(name) is not None}
    return {"temperature": 1.0, **(of_model if model_defaults.get("do_sample", True) else {"temperature": 0.0})}


def read_request(request: Fields, defaults: Settings, max_length: int) -> tuple[Prompt, SamplingParams]:
    """Return the prompt and the settings of a Dynamo request.

    max_length: capacity of a slot in tokens; an answer without a limit may fill it. Raises RequestError for unsupported
    features, SettingsError for invalid values.
    """
    raise_problems(list(_refused(request)))
    settings = dict(defaults)
    for group, names in _GROUPS.items():
        values = request.get(group) or {}
        settings |= {name: values[name] for name in names if values.get(name) is not None}
    for name, value in _guide(request).items():
        settings[_GUIDES[name]] = value
    ids = list(request["token_ids"])
    settings.setdefault("max_tokens", max(1, max_length - len(ids)))
    settings["stop_token_ids"] = _stop_ids(request, ignores_eos=bool(settings.get("ignore_eos")))
    prompt: Settings = {"prompt_token_ids": ids}
    if images := _images(request.get("multi_modal_data") or {}):
        prompt["images"] = images
    return prompt, SamplingParams.from_mapping(settings)


def read_scheduling(request: Fields) -> SchedulingParams:
    """Return the scheduling parameters in a request's annotations: `priority:1`, `user:alice`, `deadline_s:2.5`.

    A client sends them as `{"nvext": {"annotations": [...]}}`. Raises RequestError for invalid values.
    """
    annotations = (text.partition(":") for text in request.get("annotations") or ())
    values = {name: value for name, colon, value in annotations if colon and name in _SCHEDULING}
    settings: Settings = {}
    for name, value in values.items():
        try:
            settings[name] = _SCHEDULING[name](value)
        except ValueError:
            raise RequestError(f"`{value}` is not a number", name, "write it as in `priority:1`") from None
    return SchedulingParams(**settings)  # type: ignore[arg-type]


def _refused(request: Fields) -> Iterator[Problem]:
    """Yield every setting that neither trtkit nor the frontend supports."""
    values = {**(request.get("sampling_options") or {}), **(request.get("stop_conditions") or {})}
    more = (request.get("extra_args") or {}).get("sampling_options") or {}
    known = {*_ELSEWHERE, *_SAMPLING, *_STOPS}
    for name, value in {**values, **more}.items():
        is_neutral = name == "best_of" and value == (values.get("n") or 1)
        if value is not None and name not in known and not is_neutral and _NEUTRAL.get(name, ...) != value:
            yield Problem(f"`{name}` is not supported", name, "leave it out")
    for name, value in _guide(request).items():
        if name not in _GUIDES:
            fix = f"use one of {', '.join(f'`{guide}`' for guide in _GUIDES)}"
            yield Problem(f"guided decoding by `{name}` is not supported: `{str(value)[:80]}`", name, fix)


def _guide(request: Fields) -> Settings:
    guide = (request.get("sampling_options") or {}).get("guided_decoding") or {}
    return {name: value for name, value in guide.items() if value is not None and name != "backend"}


def _stop_ids(request: Fields, *, ignores_eos: bool) -> list[int]:
    """Return the tokens that end the answer: the requested ones, and the model's own unless they are ignored."""
    stops = request.get("stop_conditions") or {}
    kinds = ["stop_token_ids", "stop_token_ids_visible", *(() if ignores_eos else ("stop_token_ids_hidden",))]
    return list(dict.fromkeys(token for kind in kinds for token in stops.get(kind) or ()))


def _images(media: Fields) -> list[bytes]:
    """Return the contents of a request's images. Raises RequestError for other media and for URLs to fetch."""
    for kind, items in media.items():
        if kind != "image_url" and items:
            raise RequestError(f"`{kind}` is not supported", "messages", "send text and images")
    return [_image(item.get("Url") or "") for item in media.get("image_url") or ()]


def _image(url: str) -> bytes:
    """Return the bytes in a data URL: this process fetches nothing from addresses that clients supply."""
    head, _, data = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64")):
        what = f"`{url[:60]}` is not an image in a data URL"
        raise RequestError(what, "image_url", "send it as `data:image/png;base64,...`")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RequestError(f"the image is not base64: {error}", "image_url", "encode the file's bytes") from None


Chunk = dict[str, object]
# OpenAI's protocol allows only numbers.
_LEAST = -9999.0


def chunk(delta: Delta, tokenizer: Tokenizer | None, *, has_logprobs: bool) -> Chunk:
    """Return a delta as a chunk; a request's last one carries the finish reason, the usage and the prompt's data.

    Dynamo 1.6.1 ends a request at its first chunk with a finish reason: with several answers, only the last to end has
    its own, and the frontend reports `stop` for the others.
    """
    data: Chunk = {"index": delta.index, "token_ids": list(delta.token_ids)}
    if has_logprobs:
        data["log_probs"] = [_finite(token.logprob) for token in delta.logprobs]
        data["top_logprobs"] = [_top(token, tokenizer) for token in delta.logprobs]
    if delta.output is not None:
        data["finish_reason"] = "cancelled" if delta.finish_reason == "abort" else delta.finish_reason
        data["completion_usage"] = _usage(delta.output)
        if delta.output.prompt_logprobs is not None:
            data["engine_data"] = {"prompt_logprobs": _prompt_logprobs(delta.output.prompt_logprobs, tokenizer)}
    return data


def _usage(output: RequestOutput) -> Chunk:
    prompt, answers = output.metrics.prompt_tokens, output.metrics.output_tokens
    cached = {"cached_tokens": output.metrics.reused_tokens}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": cached,
    }


def _top(token: TokenLogprobs, tokenizer: Tokenizer | None) -> list[Chunk]:
    """Return the most likely tokens at a position, best first."""
    ranked = enumerate(token.top, 1)
    return [_entry(token, logprob, rank, tokenizer) for rank, (token, logprob) in ranked]


def _entry(token: int, logprob: float, rank: int, tokenizer: Tokenizer | None) -> Chunk:
    text = None if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)
    return {"token_id": token, "token": text, "logprob": _finite(logprob), "rank": rank}


def _prompt_logprobs(tokens: Sequence[TokenLogprobs], tokenizer: Tokenizer | None) -> list[Chunk | None]:
    """Return the log probability of each prompt token; None for the first, which nothing precedes."""
    return [None, *(_prompt_place(token, tokenizer) for token in tokens)]


def _prompt_place(token: TokenLogprobs, tokenizer: Tokenizer | None) -> Chunk:
    ranked = [
        (token.token, token.logprob, token.rank),
        *((*alternative, rank) for rank, alternative in enumerate(token.top, 1)),
    ]
    entries = [_entry(*values, tokenizer) for values in ranked]
    return {
        str(entry["token_id"]): {
            "logprob": entry["logprob"],
            "rank": entry["rank"],
            "decoded_token": entry["token"],
        }
        for entry in entries
    }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST
