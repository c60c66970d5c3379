"""Triton's `generate_stream` endpoint: a request as JSON, answered by server-sent events."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

Json = dict[str, Any]


def generate_stream(
    target: str, is_tls: bool, model: str, inputs: Mapping[str, np.ndarray[Any, Any]], timeout_s: float
) -> Iterator[Json]:
    """Yield each event as it comes; `{"error": ...}` where the server refuses. inputs: of batch 1, without strings.

    target: `host:port`. Raises OSError and HTTPException where the connection fails, ValueError for what is no JSON.
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
    """Return the server's own words."""
    text = answer.read().decode(errors="replace")
    try:
        return {"error": str(json.loads(text)["error"])}
    except (ValueError, KeyError, TypeError):
        return {"error": f"{answer.status} {answer.reason} {text[:200]}".strip()}


def _plain(value: np.ndarray[Any, Any]) -> Any:
    """Return a row as JSON has it; the endpoint adds the batch axis itself."""
    items = value.reshape(-1).tolist()
    return items[0] if len(items) == 1 else items
