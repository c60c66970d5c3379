"""Comparison of a served model with its bundle: interface, files and answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tritonclient.utils import np_to_triton_dtype

from trtkit.bundle.known import read_known
from trtkit.deployment.triton.model_config import TRITON_TYPES
from trtkit.deployment.triton.tensor_model import max_batch_size
from trtkit.errors import DeployError
from trtkit.verification.compare import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.known import KnownRequest
    from trtkit.bundle.records import IoRecord
    from trtkit.runtime.triton_client import Client, ServedInterface, ServedTensor


Verdict = Literal["PASS", "FAIL (not ready)", "FAIL (differs from the bundle)"]
_OLD_STATUS: dict[Verdict, str] = {
    "PASS": "right",
    "FAIL (not ready)": "failed",
    "FAIL (differs from the bundle)": "differs",
}


@dataclass(frozen=True)
class ModelReport:
    """A served model. differences: from the bundle, in sentences. known: the result of the known request."""

    name: str
    version: str
    state: str
    reason: str = ""
    interface: ServedInterface | None = None
    differences: tuple[str, ...] = ()
    known: str = ""


@dataclass(frozen=True)
class ServerReport:
    """A server and its models."""

    url: str
    version: str
    models: tuple[ModelReport, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """Whether every model is ready and matches its bundle."""
        if any(model.state != "READY" for model in self.models):
            return "FAIL (not ready)"
        return "FAIL (differs from the bundle)" if any(model.differences for model in self.models) else "PASS"

    def to_json(self) -> dict[str, Any]:
        """Return JSON data. `status` is the former name of the verdict."""
        return {**asdict(self), "verdict": self.verdict, "status": _OLD_STATUS[self.verdict]}


def check_server(client: Client, model: str | None, bundle: Bundle | None) -> ServerReport:
    """Return the report of a server: on `model`, or on all models if neither it nor a bundle is given.

    Raises DeployError if the server is unreachable, lacks the model, or refuses the known request.
    """
    if not client.is_live():
        raise DeployError("the server is not live", str(client.address))
    version = client.version()
    index = client.index()
    name = model or (None if bundle is None else _name_of(bundle, [entry["name"] for entry in index]))
    chosen = [entry for entry in index if name in {None, entry["name"]}]
    if not chosen:
        has = ", ".join(sorted({entry["name"] for entry in index})) or "none"
        raise DeployError(f"the server has no model `{name}`; it has {has}", str(client.address))
    if name is None and not client.is_ready():
        raise DeployError("the server is not ready", str(client.address))
    reports = [_check_model(client, entry, bundle) for entry in chosen]
    return ServerReport(str(client.address), version, tuple(reports))


def _name_of(bundle: Bundle, names: Sequence[str]) -> str:
    """Return the name of the served model that most likely is the bundle."""
    own_name = bundle.manifest.name
    if own_name in names:
        return own_name
    if len(set(names)) == 1:
        return names[0]
    has = ", ".join(sorted(set(names))) or "none"
    raise DeployError(f"the server has no model `{own_name}`; it has {has}", "--model", "choose one with `--model`")


def _check_model(client: Client, entry: dict[str, str], bundle: Bundle | None) -> ModelReport:
    name, version, state = entry["name"], entry.get("version", ""), entry["state"]
    if state != "READY":
        return ModelReport(name, version, state, " ".join(entry.get("reason", "").split()))
    interface = client.interface(name)
    if bundle is None:
        return ModelReport(name, version, state, interface=interface)
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (interface.inputs, interface.outputs))
    known = read_known(bundle, inputs, outputs) or read_known(bundle, inputs)
    differences = _manifest_differences(client, interface, bundle, has_known=known is not None)
    outcome = "the bundle has no known request for it"
    if known is not None:
        differences = differences or _known_interface(interface, known)
        outcome = "not sent: the model does not take it"
        if not differences:
            differences = _ask(client, interface, known)
            outcome = "answered wrongly" if differences else "answered as the bundle does"
    return ModelReport(name, version, state, "", interface, tuple(differences), outcome)


def _manifest_differences(client: Client, served: ServedInterface, bundle: Bundle, *, has_known: bool) -> list[str]:
    """Return how tensors and batch differ from the engine's, for the model or for the ensemble step that runs it.

    A model in front of the engine has its own tensors, which the known request covers; so does a language model.
    """
    manifest = bundle.manifest
    if manifest.interface == "tokens":
        return []
    candidates = [served, *(client.interface(step) for step in served.steps)]
    nearest = max(candidates, key=lambda candidate: _shared_tensors(candidate, bundle))
    if _shared_tensors(nearest, bundle):
        return _engine_differences(nearest, bundle)
    if has_known:
        return []
    return _engine_differences(served, bundle)


def _shared_tensors(served: ServedInterface, bundle: Bundle) -> int:
    """Return how many inputs and outputs have the same names as the engine's."""
    manifest = bundle.manifest
    pairs = ((served.inputs, manifest.inputs), (served.outputs, manifest.outputs))
    return sum(len({tensor.name for tensor in ours} & {tensor.name for tensor in built}) for ours, built in pairs)


def _engine_differences(served: ServedInterface, bundle: Bundle) -> list[str]:
    manifest = bundle.manifest
    largest = max_batch_size(manifest)
    differences = [
        *_tensor_differences("input", served.inputs, manifest.inputs),
        *_tensor_differences("output", served.outputs, manifest.outputs),
    ]
    if served.max_batch_size > largest:
        differences.append(f"the model takes batches of {served.max_batch_size}, the engine of {largest} at most")
    return differences


def _tensor_differences(kind: str, served: Sequence[ServedTensor], built: Sequence[IoRecord]) -> list[str]:
    """Return a sentence for each tensor that is missing, unknown, or of a different type or shape."""
    by_name, differences = {tensor.name: tensor for tensor in served}, []
    for record in built:
        tensor = by_name.pop(record.name, None)
        if tensor is None:
            has = ", ".join(f"`{tensor.name}`" for tensor in served) or "none"
            differences.append(f"{kind} `{record.name}` is missing; the model has {has}")
            continue
        dtype = TRITON_TYPES.get(record.dtype, record.dtype).removeprefix("TYPE_")
        if tensor.dtype != dtype:
            differences.append(f"{kind} `{record.name}` is {tensor.dtype}, the bundle's is {dtype}")
        if tensor.shape not in {record.shape, (*record.shape, 1)}:
            differences.append(f"{kind} `{record.name}` is {list(tensor.shape)}, the bundle's is {list(record.shape)}")
    return differences + [f"{kind} `{name}` is not the bundle's" for name in by_name]


def _known_interface(served: ServedInterface, known: KnownRequest) -> list[str]:
    """Return why the known request could not be sent or answered."""
    differences = []
    for kind, arrays, tensors in (("input", known.inputs, served.inputs), ("output", known.outputs, served.outputs)):
        by_name = {tensor.name: tensor for tensor in tensors}
        for name, value in arrays.items():
            tensor, dtype = by_name.get(name), np_to_triton_dtype(value.dtype)
            if tensor is None:
                has = ", ".join(f"`{name}`" for name in by_name) or "none"
                differences.append(f"{kind} `{name}` is missing; the model has {has}")
            elif tensor.dtype != dtype:
                differences.append(f"{kind} `{name}` is {tensor.dtype}, the bundle's is {dtype}")
            elif kind == "input" and not _fits(value.shape, tensor.shape):
                differences.append(f"input `{name}` is {list(tensor.shape)}, the bundle's is {list(value.shape)}")
    return differences


def _fits(shape: tuple[int, ...], served: tuple[int, ...]) -> bool:
    return len(shape) == len(served) and all(
        served_size in {-1, size} for size, served_size in zip(shape, served, strict=True)
    )


def _ask(client: Client, served: ServedInterface, known: KnownRequest) -> list[str]:
    """Send the known request; return how the answers differ."""
    call = client.stream if served.is_decoupled else client.infer
    answer = call(served.name, known.inputs, list(known.outputs))
    differences = []
    for name, expected in known.outputs.items():
        difference = answer_difference(answer.get(name), expected, known.tolerance, is_stream=served.is_decoupled)
        if difference:
            differences.append(f"output `{name}` {difference}")
    return differences


def answer_difference(answer: Array | None, expected: Array, tolerance: float, *, is_stream: bool) -> str:
    """Describe how an output differs; empty if it does not.

    is_stream: whether pieces must be joined before comparing.
    """
    if answer is None:
        return "was not answered"
    if is_stream:
        answer, expected = answer.reshape(-1), expected.reshape(-1)
    if expected.dtype == object:
        return _text_difference(answer, expected, is_stream=is_stream)
    if not np.issubdtype(expected.dtype, np.floating):
        if answer.shape != expected.shape:
            return f"is {list(answer.shape)}, the known answer {list(expected.shape)}"
        wrong = int((answer != expected).sum())
        return f"differs from the known answer in {wrong} of {expected.size} values" if wrong else ""
    result = compare(answer, expected)
    if result.problem:
        return f"is not the known answer: {result.problem}"
    error = result.relative_rms_error
    return "" if error <= tolerance else f"is off by {error:.2g} relative RMS error; {tolerance:.2g} is allowed"


def _text_difference(answer: Array, expected: Array, *, is_stream: bool) -> str:
    got, wanted = list(answer.reshape(-1)), list(expected.reshape(-1))
    if is_stream:
        got, wanted = [b"".join(got)], [b"".join(wanted)]
    if got == wanted:
        return ""
    return f"is {_shown(got)}, the known answer {_shown(wanted)}"


def _shown(texts: Sequence[bytes]) -> str:
    text = ", ".join(repr(item.decode("utf-8", "replace")) for item in texts)
    return text if len(text) <= 120 else f"{text[:117]}..."
