"""Seeded corruption of data, as by accidents and attackers; and limits of time and memory for readers of such data."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import TrtkitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

WRONG = (
    None, True, False, -1, 0, 1, 3, 10**7, 10**9, 2**63, -(2**70), 10**400, 0.5, -1.5, 1e308, float("nan"),
    float("inf"), "", "x", "../x", "/etc/hostname", "1", "a\x00b", "\ud800", "\x1b[2J", "%s{0}", [], [None],
    [1, "x", {}], {}, {"x": 1}, [[[[]]]], ["full_attention"], {"": {"": []}},
)  # fmt: skip
_NUMBERS = (-1, 0, 1, 2, 7, 99, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
_TEXTS = ("", "x", "\x1b[2J", "../x", "/etc/hostname", "Loop", "Range", "ai.onnx.ml", "a\x00b")
_SECONDS, _BYTES = 5.0, 3 << 30


class HangError(BaseException):
    """Reading took too long. A BaseException, so that readers do not report it as an error of the file."""


def json_changes(data: Any, count: int, seed: int = 0) -> Iterator[Any]:
    """Yield copies of a JSON value, each with one to three values replaced, removed or doubled."""
    draw = random.Random(seed)
    for _ in range(count):
        changed = copy.deepcopy(data)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            _change(changed, draw)
        yield changed


def byte_changes(data: bytes, count: int, seed: int = 0, reach: int = 0) -> Iterator[bytes]:
    """Yield copies of a file, each truncated or with some bytes changed. reach: only the first ones; 0 for all."""
    draw, reach = random.Random(seed), min(reach or len(data), len(data))
    for _ in range(count):
        changed = bytearray(data)
        kind = draw.randrange(5)
        if kind == 0:
            del changed[draw.randrange(reach) :]
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(reach)
            if kind == 1:
                changed[at : at + 8] = draw.choice((b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f"))
            elif kind == 2:
                changed[at:at] = changed[at : at + draw.randrange(40)]
            elif kind > 2 and at < len(changed):
                changed[at] = draw.randrange(256)
        yield bytes(changed)


def message_changes(message: Message, count: int, seed: int = 0) -> Iterator[Message]:
    """Yield copies of a protobuf message, each with one to three fields set, removed or doubled."""
    draw = random.Random(seed)
    for _ in range(count):
        changed = type(message)()
        changed.CopyFrom(message)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            with contextlib.suppress(ValueError):  # a number that the field cannot hold
                _change_field(*draw.choice(list(_fields(changed))), draw)
        yield changed


def text_of(data: Any) -> str:
    """Return JSON text, including numbers that Python's writer refuses."""
    try:
        return json.dumps(data)
    except ValueError:
        return "[" * 100_000


def must_end(read: Callable[[], object], what: object) -> None:
    """Call `read`, which must return or raise a TrtkitError, quickly and with little memory."""
    try:
        with _limits(), contextlib.suppress(TrtkitError):
            read()
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__}: {error}\nfrom: {str(what)[:2000]}") from error


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Raise HangError after some seconds, and MemoryError if the process grows by some GiB."""

    def stop(*_: object) -> None:
        raise HangError

    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _BYTES, before[1]))
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def _change(data: Any, draw: random.Random) -> None:
    """Change one value anywhere inside a mapping or a list."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = draw.choice(keys)
        inner = data[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.8:
            data = inner
            continue
        kind = draw.randrange(6)
        if kind == 0:
            del data[key]
        elif kind == 1 and isinstance(data, list):
            data.append(copy.deepcopy(inner))
        elif kind == 1 and isinstance(data, dict):
            data[f"{key}x"] = inner
        else:
            data[key] = copy.deepcopy(draw.choice(WRONG))
        return


def _fields(message: Message) -> Iterator[tuple[Message, Any]]:
    """Yield each field that is set, with its message."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _fields(inner)


def _change_field(message: Message, field: Any, draw: random.Random) -> None:
    """Change one field, or another of the same message."""
    field = draw.choice((field, field, field, draw.choice(list(message.DESCRIPTOR.fields))))
    is_text, is_message = field.cpp_type == field.CPPTYPE_STRING, field.type == field.TYPE_MESSAGE
    value: Any = draw.choice(_TEXTS if is_text else _NUMBERS)
    value = value.encode() if field.type == field.TYPE_BYTES else value
    if not field.is_repeated:
        if is_message or draw.random() < 0.2:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, value)
        return
    items, kind = getattr(message, field.name), draw.randrange(3)
    if items and kind == 0:
        del items[draw.randrange(len(items))]
    elif items and (kind == 1 or is_message):
        items.append(draw.choice(items))
    elif is_message:
        items.add()
    elif items:
        items[draw.randrange(len(items))] = value
    else:
        items.append(value)
