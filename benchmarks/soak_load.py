"""Hostile clients of a language model server: seeded valid, invalid, oversized, truncated and garbage requests."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import DeployError
from trtkit.runtime.triton_client import Client, parse_url

if TYPE_CHECKING:
    from trtkit.deployment.triton.endpoints import Endpoints

WORDS = ("the", "engine", "of", "an", "old", "ship", "was", "repaired", "by", "a", "crew", "before", "the", "night")
LONG_RULE = 'start: "x" ' + " ".join(["r"] * 8000) + '\nr: "x"?\n'
SCHEMA = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1200)}}
TIMEOUT_S = 60.0
# Words of the server's errors for malformed JSON, which it reports as an internal error (status 500).
PARSER = ("parse", "JSON", "json")
FULL = "requests are waiting already"

_RIGHT: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9, "temperature": 0.8, "seed": 7},
    {"top_k": 20, "num_return_sequences": 3},
    {"beam_width": 2},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "no_repeat_ngram_size": 3},
    {"stop_words": ["e", "qu"], "bad_words": ["night", "a"]},
    {"return_log_probs": True, "min_tokens": 1},
    {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[0-9]{1,8}"},
    {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"items": {"type": "integer"}}'},
    {"embedding_bias_words": ["night"], "embedding_bias_weights": [3.0]},
]  # fmt: skip
_WRONG: list[dict[str, Any]] = [
    {"num_return_sequences": 2**31 - 1, "top_k": 5},
    {"beam_width": 2**31 - 1},
    {"max_tokens": -5},
    {"temperature": -1.0},
    {"min_tokens": 2**31 - 1},
    {"temperatur": 1.0},
    {"stop_words": ["x"] * 1000},
    {"bad_words": ["x" * 5000]},
    {"top_p": 7.5},
    {"input_ids": [1, 2, 3]},
    {"end_id": 2**31 - 1},
    {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"multipleOf": 999983}'},
    {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"items":' * 3000 + "1" + "}" * 3000},
    {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(" * 9000},
    {f"key {number}": number for number in range(500)},
]
_LARGE: list[dict[str, Any]] = [
    {"text_input": "word " * 13_000},
    {"text_input": "word " * 200_000},
    {"text_input": "a" * 65_536},
    {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": LONG_RULE},
    {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)},
    {"bad_words": [f"word {number} " * 90 for number in range(1000)]},
]


class Attacker:
    """One client. outcomes: counts of its requests' outcomes; `failed` must stay 0."""

    def __init__(self, seed: int, endpoints: Endpoints, model: str) -> None:
        self._random, self._ends, self._model = random.Random(seed), endpoints, model
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, until_s: float) -> None:
        """Send requests until a time of the monotonic clock."""
        kinds = [self._right] * 5 + [self._wrong] * 4 + [self._large, self._leave, self._leave, self._noise, self._cut]
        kinds += [self._words]
        while time.monotonic() < until_s:
            self._random.choice(kinds)()

    def _right(self) -> None:
        self._count("right", *self._post(self._body(_RIGHT)))

    def _wrong(self) -> None:
        self._count("wrong", *self._post(self._body(_WRONG)))

    def _large(self) -> None:
        self._count("large", *self._post(self._body(_LARGE)))

    def _leave(self) -> None:
        """Begin a stream and hang up."""
        connection = self._connection()
        body = {**self._inputs(), "max_tokens": 500, "ignore_eos": True, "stream": True}
        try:
            connection.request("POST", f"/v2/models/{self._model}/generate_stream", json.dumps(body))
            connection.getresponse().read(self._random.randrange(1, 400))
            self.outcomes["left"] += 1
        except OSError as error:
            self._failed("left", str(error))
        finally:
            connection.close()

    def _noise(self) -> None:
        """Send bytes that are not JSON, or truncated JSON."""
        body = self._body(_RIGHT)
        cut = body[: self._random.randrange(len(body))]
        noise = [self._random.randbytes(300), cut, b"[" * 20_000, b'{"text_input": "\\ud800"}']
        self._count("noise", *self._post(self._random.choice(noise)))

    def _cut(self) -> None:
        """Announce more bytes than are sent."""
        try:
            with socket.create_connection((self._ends.host, self._ends.http_port), timeout=TIMEOUT_S) as line:
                body = self._body(_RIGHT)
                head = f"POST /v2/models/{self._model}/generate HTTP/1.1\r\nHost: x\r\n"
                line.sendall(f"{head}Content-Length: {len(body) + 9}\r\n\r\n".encode() + body)
            self.outcomes["cut"] += 1
        except OSError as error:
            self._failed("cut", str(error))

    def _words(self) -> None:
        """Send 20,000 words over gRPC, which allows more than HTTP."""
        words = np.array([[b"word"] * 20_000], dtype=np.object_)
        inputs = {"text_input": np.array([[b"a"]], dtype=np.object_), "bad_words": words}
        try:
            with Client(parse_url(self._ends.grpc), TIMEOUT_S) as client:
                list(client.responses(self._model, inputs))
            self._failed("words", "20,000 words were taken")
        except DeployError as error:
            self._count("words", 400 if "are more than the limit" in error.what else 0, error.what)

    def _inputs(self) -> dict[str, Any]:
        words = self._random.choices(WORDS, k=self._random.randrange(1, 60))
        return {"text_input": " ".join(words), "max_tokens": self._random.randrange(1, 24)}

    def _body(self, kinds: list[dict[str, Any]]) -> bytes:
        return json.dumps(self._inputs() | self._random.choice(kinds)).encode()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._ends.host, self._ends.http_port, timeout=TIMEOUT_S)

    def _post(self, body: bytes) -> tuple[int, str]:
        """Return status and text; status 0 if the server did not answer."""
        connection = self._connection()
        try:
            connection.request("POST", f"/v2/models/{self._model}/generate", body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def _count(self, kind: str, status: int, text: str) -> None:
        """Count a request's outcome: valid ones must be answered or find the queue full; others may be refused, too."""
        if status == 200:
            self.outcomes[f"{kind}: answered"] += 1
        elif FULL in text:
            self.outcomes[f"{kind}: queue full"] += 1
        elif kind != "right" and (status == 400 or (status == 500 and any(word in text for word in PARSER))):
            self.outcomes[f"{kind}: refused"] += 1
        else:
            self._failed(kind, f"{status} {text}")

    def _failed(self, kind: str, text: str) -> None:
        self.outcomes[f"{kind}: failed"] += 1
        self.failures.append(f"{kind}: {text[:300]}")
