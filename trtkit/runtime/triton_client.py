"""Client of a Triton server over HTTP, gRPC or `generate_stream`: its models' interfaces, and inference."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlsplit

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.arrays import Array


Protocol = Literal["http", "grpc"]
_SCHEMES: dict[str, tuple[Protocol, bool]] = {
    "http": ("http", False), "https": ("http", True), "grpc": ("grpc", False), "grpcs": ("grpc", True),
}  # fmt: skip
_PROBE_S, _PROBE_BYTES = 10.0, 1 << 20
_FORMS = "use http://HOST:PORT, grpc://HOST:PORT or HOST:PORT"


@dataclass(frozen=True)
class Address:
    """The address of a server. target: `host:port`."""

    protocol: Protocol
    target: str
    is_tls: bool

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.is_tls else ''}://{self.target}"


@dataclass(frozen=True)
class ServedTensor:
    """An input or output as the server defines it, with the batch axis. dtype: Triton's name, such as FP32 or BYTES."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ServedInterface:
    """A model's interface. steps: the models of an ensemble. is_decoupled: whether its answers are streamed."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    max_batch_size: int
    steps: tuple[str, ...]
    is_decoupled: bool


def parse_url(url: str, protocol: Protocol | None = None) -> Address:
    """Return the address in `url`; HTTP unless the URL or `protocol` sets another. Raises DeployError."""
    scheme, separator, rest = url.partition("://")
    named, is_tls = (protocol or "http", False) if not separator else _SCHEMES.get(scheme, ("", False))
    target = (rest if separator else url).rstrip("/")
    try:
        parts = urlsplit(f"//{target}")
        is_target = bool(parts.hostname) and parts.port is not None and parts.netloc == target and "@" not in target
    except ValueError:
        is_target = False
    if target.endswith("/v1"):
        raise _openai_server(url)
    if not is_target or not named:
        raise DeployError(f"`{url}` is not a server address", fix=_FORMS)
    if protocol not in {None, named}:
        raise DeployError(f"`{url}` is not for {protocol}", "--protocol", "leave it out, or change the URL")
    return Address("grpc" if named == "grpc" else "http", target, is_tls)


def _openai_server(url: str) -> DeployError:
    what = f"`{url}` is an OpenAI-compatible server; trtkit measures a bundle here, or Triton servers"
    return DeployError(
        what, fix="measure it with AIPerf, as docs/openai-production.md shows, or give the bundle without `--url`"
    )


class Client:
    """A connection to a server. Every call raises DeployError if the server does not answer or refuses."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._answers: queue.Queue[tuple[Any, Any]] | None = None
        self._client: Any
        if address.protocol == "grpc":
            import tritonclient.grpc as module

            self._client = module.InferenceServerClient(address.target, ssl=address.is_tls)
            self._limit = {"client_timeout": timeout_s}
        else:
            import tritonclient.http as module

            times = {"connection_timeout": timeout_s, "network_timeout": timeout_s}
            self._client = module.InferenceServerClient(address.target, ssl=address.is_tls, **times)
            self._limit = {}
        self._module = module

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_live(self) -> bool:
        with self._errors():
            return bool(self._client.is_server_live(**self._limit))

    def is_ready(self) -> bool:
        """Whether the server accepts requests."""
        with self._errors():
            return bool(self._client.is_server_ready(**self._limit))

    def has_ready(self, model: str) -> bool:
        """Whether the server has a model that accepts requests."""
        with self._errors():
            return bool(self._client.is_model_ready(model, **self._limit))

    def version(self) -> str:
        try:
            metadata = self._json("get_server_metadata")
        except DeployError:
            if self._lists_openai_models():
                raise _openai_server(str(self.address)) from None
            raise
        if not isinstance(metadata, dict) or "version" not in metadata:
            raise self._unreachable("what answers is another kind of server")
        return str(metadata["version"])

    def index(self) -> list[dict[str, str]]:
        """Return name, version, state and reason of every model that was loaded or failed to load."""
        index = self._json("get_model_repository_index")
        models = index.get("models", []) if isinstance(index, dict) else index
        return [model for model in models if model.get("state")]

    def interface(self, model: str) -> ServedInterface:
        """Return the interface of a ready model."""
        data, config = self._json("get_model_metadata", model), self._json("get_model_config", model)
        config = config.get("config", config)
        return ServedInterface(
            model,
            tuple(data.get("versions", ())),
            _tensors(data.get("inputs", [])),
            _tensors(data.get("outputs", [])),
            int(config.get("max_batch_size", 0)),
            tuple(step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", [])),
            bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        )

    def infer(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        wanted = [self._module.InferRequestedOutput(name) for name in outputs]
        with self._errors(model):
            result = self._client.infer(model, self._inputs(inputs), outputs=wanted, **self._limit)
            return {name: result.as_numpy(name) for name in outputs}

    def stream(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Return the outputs of a decoupled model, concatenated over its responses. Raises DeployError for HTTP."""
        if self.address.protocol != "grpc":
            what = f"`{model}` streams its answers, which needs gRPC"
            raise DeployError(what, str(self.address), "give the gRPC endpoint: grpc://HOST:PORT")
        parts: dict[str, list[Array]] = defaultdict(list)
        for response in self.responses(model, inputs):
            for name in outputs:
                if name in response:
                    parts[name].append(response[name].reshape(-1))
        return {name: np.concatenate(values) for name, values in parts.items()}

    def responses(self, model: str, inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Yield each response of a decoupled model as it arrives, its tensors by name; over HTTP by `generate_stream`.

        Closing the iterator early cancels the request.
        """
        if self.address.protocol != "grpc":
            yield from self._generated(model, inputs)
            return
        is_done = False
        with self._errors(model):
            try:
                answers = self._opened_stream()
                self._client.async_stream_infer(model, self._inputs(inputs), enable_empty_final_response=True)
                while not is_done:
                    result = self._next(answers, model)
                    message = result.get_response()
                    is_done = message.parameters["triton_final_response"].bool_param
                    if message.outputs:
                        yield {output.name: result.as_numpy(output.name) for output in message.outputs}
            finally:
                if not is_done:
                    self._client.stop_stream(cancel_requests=True)
                    self._answers = None

    def _lists_openai_models(self) -> bool:
        """Whether the server answers `/v1/models` in the form of OpenAI's API."""
        if self.address.protocol != "http":
            return False
        connect = http.client.HTTPSConnection if self.address.is_tls else http.client.HTTPConnection
        connection = connect(self.address.target, timeout=min(self._timeout_s, _PROBE_S))
        try:
            connection.request("GET", "/v1/models")
            answer = json.loads(connection.getresponse().read(_PROBE_BYTES))
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return isinstance(answer, dict) and isinstance(answer.get("data"), list)

    def _opened_stream(self) -> queue.Queue[tuple[Any, Any]]:
        """Return the queue of responses on the connection's stream, which is reused by later requests."""
        if self._answers is None:
            answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
            self._client.start_stream(lambda result, error: answers.put((result, error)))
            self._answers = answers
        return self._answers

    def _next(self, answers: queue.Queue[tuple[Any, Any]], model: str) -> Any:
        """Return the stream's next response."""
        try:
            result, error = answers.get(timeout=self._timeout_s)
        except queue.Empty:
            what = f"no answer within {self._timeout_s:g} s"
            raise DeployError(what, f"{self.address} {model}", "raise `--timeout`") from None
        if error is not None:
            raise error
        return result

    def _generated(self, model: str, inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Yield the server-sent events of Triton's `generate_stream`."""
        with self._errors(model):
            for event in generate_stream(self.address.target, self.address.is_tls, model, inputs, self._timeout_s):
                if set(event) == {"error"}:
                    raise DeployError(f"the server refuses: {event['error']}", f"{self.address} {model}")
                yield {name: np.asarray(value) for name, value in event.items()}

    def _inputs(self, arrays: Mapping[str, Array]) -> list[Any]:
        inputs = []
        for name, value in arrays.items():
            tensor = self._module.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
            inputs.append(tensor.set_data_from_numpy(np.ascontiguousarray(value)))
        return inputs

    def _json(self, call: str, *arguments: str) -> Any:
        as_json = {"as_json": True} if self.address.protocol == "grpc" else {}
        with self._errors(*arguments):
            return getattr(self._client, call)(*arguments, **as_json, **self._limit)

    @contextlib.contextmanager
    def _errors(self, model: str = "") -> Iterator[None]:
        """Convert the client library's errors into DeployError."""
        where = f"{self.address} {model}".rstrip()
        try:
            yield
        except InferenceServerException as error:
            if error.status() in {"StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"} and not model:
                raise self._unreachable(error.message()) from None
            raise DeployError(f"the server refuses: {error.message()}", where) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(getattr(error, "strerror", None) or str(error)) from None

    def _unreachable(self, reason: str) -> DeployError:
        fix = "start it with `trtkit serve`, or give its address; HTTP is usually at port 8000, gRPC at 8001"
        return DeployError(f"no Triton server answers: {reason.lower()}", str(self.address), fix)


def _tensors(data: Sequence[Mapping[str, Any]]) -> tuple[ServedTensor, ...]:
    return tuple(
        ServedTensor(entry["name"], entry["datatype"], tuple(map(int, entry.get("shape", ())))) for entry in data
    )


Json = dict[str, Any]


def generate_stream(
    target: str, is_tls: bool, model: str, inputs: Mapping[str, np.ndarray[Any, Any]], timeout_s: float
) -> Iterator[Json]:
    """Yield each event as it arrives; `{"error": ...}` if the server refuses. inputs: of batch 1, without strings.

    target: `host:port`. Raises OSError and HTTPException if the connection fails, ValueError for anything but JSON.
    """
    connect = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    connection = connect(target, timeout=timeout_s)
    try:
        body = json.dumps({name: _plain(value) for name, value in inputs.items()})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v2/models/{quote(model)}/generate_stream", body, headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            yield _refusal(answer)
            return
        for line in answer:
            if line.startswith(b"data:"):
                yield json.loads(line.removeprefix(b"data:"))
    finally:
        connection.close()


def _refusal(answer: http.client.HTTPResponse) -> Json:
    """Return the server's own error message."""
    text = answer.read().decode(errors="replace")
    try:
        return {"error": str(json.loads(text)["error"])}
    except (ValueError, KeyError, TypeError):
        return {"error": f"{answer.status} {answer.reason} {text[:200]}".strip()}


def _plain(value: np.ndarray[Any, Any]) -> Any:
    """Return a row as JSON data; the endpoint itself adds the batch axis."""
    items = value.reshape(-1).tolist()
    return items[0] if len(items) == 1 else items
