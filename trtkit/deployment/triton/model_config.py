"""`config.pbtxt`, written through Triton's protobuf: sections with comments on where their numbers come from."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import text_format
from google.protobuf.json_format import ParseDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.deployment.triton.options import DeployOptions

TRITON_TYPES = {
    "fp32": "TYPE_FP32",
    "fp16": "TYPE_FP16",
    "bf16": "TYPE_BF16",
    "int64": "TYPE_INT64",
    "int32": "TYPE_INT32",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
    "uint64": "TYPE_UINT64",
    "bool": "TYPE_BOOL",
    "text": "TYPE_STRING",
}


_PLACES = {"KIND_GPU": "on each GPU", "KIND_CPU": "on the CPU", "KIND_AUTO": "on each GPU, or on the CPU without one"}


@dataclass(frozen=True)
class Section:
    """Some fields of ModelConfig in JSON form, and the reason for them."""

    comment: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class TritonTensor:
    """An input or output of a served model. dims: without the batch axis, -1 if any size is valid.

    dtype: trtkit's name, or `text` for bytes. is_scalar: whether the model's tensor has only the batch axis.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    is_optional: bool = False
    is_scalar: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the tensor in ModelConfig's JSON form. Raises DeployError for types that Triton does not support."""
        if self.dtype not in TRITON_TYPES:
            known = ", ".join(name for name in TRITON_TYPES if name != "text")
            raise DeployError(f"Triton does not support type `{self.dtype}`", self.name, f"use one of {known}")
        fields: dict[str, Any] = {"name": self.name, "data_type": TRITON_TYPES[self.dtype], "dims": list(self.dims)}
        if self.is_scalar:
            fields |= {"dims": [1], "reshape": {"shape": []}}
        return fields | ({"optional": True} if self.is_optional else {})


def config_text(sections: Iterable[Section]) -> str:
    """Return the file's text, which is parsed again to ensure that it is a ModelConfig."""
    parts = []
    for section in sections:
        words = textwrap.fill(section.comment, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
        fields = text_format.MessageToString(ParseDict(section.fields, ModelConfig()))
        if section.fields == {"max_batch_size": 0}:
            fields = "max_batch_size: 0\n"  # Protobuf leaves out what is zero; a reader should see it
        parts.append(f"{words}\n{fields}")
    text = "\n".join(parts)
    text_format.Parse(text, ModelConfig())
    return text


def read_config(text: str, where: str) -> Any:
    """Return the ModelConfig in `text`. Raises DeployError if it is not one."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise DeployError(f"not a model configuration: {error}", where, "deploy the model again") from None


def interface(inputs: Sequence[TritonTensor], outputs: Sequence[TritonTensor], comment: str) -> Section:
    """Return the section of inputs and outputs."""
    fields = {"input": [tensor.fields() for tensor in inputs], "output": [tensor.fields() for tensor in outputs]}
    return Section(comment, fields)


def instances(options: DeployOptions, kind: str, profiles: int = 0, *, is_shared: bool = False) -> Section:
    """Return how many copies run and where.

    kind: Triton's, such as KIND_GPU. profiles: of TensorRT, all of which are used. is_shared: whether one copy serves
    all requests.
    """
    count = 1 if is_shared else options.instances
    group: dict[str, Any] = {"count": count, "kind": kind}
    if options.gpus and kind != "KIND_CPU":
        group |= {"gpus": list(options.gpus), "kind": "KIND_GPU"}
    if profiles > 1:
        group["profile"] = [str(index) for index in range(profiles)]
    words = f"`instances`: {count} {'copy' if count == 1 else 'copies'}, {_PLACES[group['kind']]}."
    if is_shared:
        words = "One copy: requests share its batch as they come and go."
    if profiles > 1:
        words += f" The engine has {profiles} profiles; a batch takes the one that fits."
    if options.resources:
        needs = [{"name": name, "count": amount} for name, amount in options.resources.items()]
        group["rate_limiter"] = {"resources": needs}
        words += " `resources`: what a run holds, where the server starts with `--rate-limit=execution_count`."
    return Section(words, {"instance_group": [group]})


def batching(options: DeployOptions, max_batch_size: int, preferred: Sequence[int]) -> list[Section]:
    """Return batch size and scheduler; preferred: batch sizes that the engine was tuned for."""
    is_limited = options.max_batch_size is not None
    if max_batch_size == 0:
        words = "`max_batch_size`: requests are run" if is_limited else "The model has no batch axis: requests are run"
        return [Section(f"{words} as they are.", {"max_batch_size": 0})]
    words = "`max_batch_size`." if is_limited else "The largest batch of the engine's profiles."
    sections = [Section(words, {"max_batch_size": max_batch_size})]
    if max_batch_size > 1:
        sizes = sorted({size for size in preferred if 1 < size <= max_batch_size})
        words = f"Requests that wait together run together. `queue.delay_us`: {options.queue.delay_us} microseconds."
        if sizes:
            words += f" Preferred: {_listed(sizes)}, the `opt` sizes of the profiles, for which TensorRT tuned."
        scheduler: dict[str, Any] = {
            "preferred_batch_size": sizes,
            "max_queue_delay_microseconds": options.queue.delay_us,
            **queue_policy(options),
        }
        if "default_queue_policy" in scheduler:
            words += " A queue policy makes Triton's batcher (2.51) stall for half a second now and then."
        sections.append(Section(words, {"dynamic_batching": scheduler}))
    return sections


def queue_policy(options: DeployOptions) -> dict[str, Any]:
    """Return how long and how many requests may wait; empty if there is no limit.

    Any policy has a cost: with one, Triton 2.51 wakes its batcher only every 500 ms if a request arrives just as the
    model becomes free (measured; benchmarks/results/serve.json has no policy).
    """
    queue = options.queue
    if not queue.max_size and not queue.timeout_us:
        return {}
    policy = {
        "timeout_action": queue.on_timeout.upper(),
        "default_timeout_microseconds": queue.timeout_us,
        "allow_timeout_override": True,
        "max_queue_size": queue.max_size,
    }
    return {"default_queue_policy": policy}


def versions(served: Sequence[int]) -> Section:
    """Return the served versions; replacing the file is what makes a new version live."""
    words = f"Version{'s' if len(served) > 1 else ''} {_listed(served)}; a folder that is not named here is not loaded."
    return Section(words, {"version_policy": {"specific": {"versions": list(served)}}})


class WarmUpShape(NamedTuple):
    """The shape of a warm-up request.

    batch_size: 0 if requests are not batched. dims: per input, without the batch axis.
    """

    batch_size: int
    dims: dict[str, tuple[int, ...]]


def warm_up(inputs: Sequence[TritonTensor], shapes: Sequence[WarmUpShape]) -> Section:
    """Return the requests that run before the model is ready."""
    requests = [
        {
            "name": f"batch {shape.batch_size}",
            "batch_size": shape.batch_size,
            "count": 1,
            "inputs": {
                tensor.name: {
                    "data_type": TRITON_TYPES[tensor.dtype],
                    "dims": [1] if tensor.is_scalar else list(shape.dims[tensor.name]),
                    "zero_data": True,
                }
                for tensor in inputs
            },
        }
        for shape in shapes
    ]
    words = "`warmup`: run before the model is called ready, so that no user waits for first-time work."
    return Section(words, {"model_warmup": requests})


def response_cache() -> Section:
    """Return the section that enables the server's response cache for the model."""
    words = "`response_cache`: equal requests are answered from memory; the server starts with `--cache-config`."
    return Section(words, {"response_cache": {"enable": True}})


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
