"""Communicators between the devices of a stage's ranks, in the form that TensorRT takes.

A capsule of NCCL's communicator.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Protocol

import torch

from trtkit.errors import RankError

if TYPE_CHECKING:
    from trtkit.reference import Rank

CAPSULE = b"ncclComm_t"
"""The name that TensorRT's Python binding looks for. Source: samples/python/attention_mdtrt, NVIDIA/TensorRT."""
_LIBRARY = "libnccl.so.2"
_ID_BYTES = 128


class Communicator(Protocol):
    """Connects this rank's device with those of the others.

    handle: the capsule. It must outlive the contexts that use it.
    """

    handle: object

    def abort(self) -> None:
        """Abort collectives that wait for a lost rank; callable from any thread."""
        ...

    def close(self) -> None:
        """Destroy the communicator, after every context."""
        ...


class _UniqueId(ctypes.Structure):
    """`ncclUniqueId`, nccl.h."""

    _fields_ = [("internal", ctypes.c_ubyte * _ID_BYTES)]


class NcclCommunicator:
    """An NCCL communicator on the current GPU. All ranks must create theirs at the same time.

    Raises RankError if NCCL is not installed or refuses, for example two ranks on one GPU.
    """

    def __init__(self, ranks: Rank) -> None:
        self._nccl = _library()
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        unique_id = _UniqueId()
        if ranks.rank == 0:
            self._check(self._nccl.ncclGetUniqueId(ctypes.byref(unique_id)), ranks)
        data = torch.frombuffer(bytearray(bytes(unique_id)), dtype=torch.uint8)
        first = ranks.exchange("NCCL's unique id", data)[0]
        unique = _UniqueId.from_buffer_copy(bytes(first.tolist()))
        self._communicator: ctypes.c_void_p | None = ctypes.c_void_p()
        start = self._nccl.ncclCommInitRank
        start.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, _UniqueId, ctypes.c_int]
        self._check(start(ctypes.byref(self._communicator), ranks.count, unique, ranks.rank), ranks)
        self.handle = capsule(self._communicator.value or 0)

    def abort(self) -> None:
        """Abort collectives that wait for a lost rank; callable from any thread."""
        self._end("ncclCommAbort")

    def close(self) -> None:
        """Destroy the communicator, after every context."""
        self._end("ncclCommDestroy")

    def _end(self, function: str) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            getattr(self._nccl, function)(communicator)

    def _check(self, code: int, ranks: Rank) -> None:
        if code:
            text = self._nccl.ncclGetErrorString(code).decode()
            raise RankError(f"NCCL refuses rank {ranks.rank} of {ranks.count}: {text}", "NCCL", "set NCCL_DEBUG=INFO")


class HostCommunicator:
    """A communicator in host memory: a pointer that represents the ranks themselves, in `known`."""

    def __init__(self, known: dict[int, Rank], ranks: Rank) -> None:
        self._known, self._pointer = known, id(ranks)
        known[self._pointer] = ranks
        self.handle = capsule(self._pointer)

    def abort(self) -> None:
        """Do nothing: exchanges between processes end when one of them does."""

    def close(self) -> None:
        self._known.pop(self._pointer, None)


def capsule(pointer: int) -> object:
    """Return a pointer in the form in which TensorRT's binding takes a communicator."""
    create = ctypes.pythonapi.PyCapsule_New
    create.restype, create.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    handle: object = create(pointer, CAPSULE, None)
    return handle


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)  # torch for CUDA has loaded it
    except OSError as error:
        fix = "install a torch for CUDA, which brings NCCL, or use `--runtime reference`"
        raise RankError(f"`{_LIBRARY}` cannot be loaded: {error}", "NCCL", fix) from None
