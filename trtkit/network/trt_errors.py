"""Collect what TensorRT itself says is wrong with a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.backends import Backend

# What a machine without a GPU reports all the time; it is never the fault.
_NOISE = ("cudaError", "Cuda failure", "CUDA initialization")


def reason_of(error: Any) -> str:
    """Return what a parser's error says, without the noise of a missing GPU."""
    lines = [line for line in error.desc().splitlines() if not any(noise in line for noise in _NOISE)]
    return "\n".join(lines).removeprefix("Assertion failed: ").strip() or "no reason given"


def error_recorder(backend: Backend) -> Any:
    """Return an IErrorRecorder that keeps descriptions in `texts`, without the noise of a missing GPU.

    It belongs to one network, where a logger is shared by the whole process.
    """
    trt = backend.trt

    class Recorder(trt.IErrorRecorder):  # type: ignore[name-defined, misc]
        """Remembers each error's description."""

        def __init__(self) -> None:
            trt.IErrorRecorder.__init__(self)
            self.texts: list[str] = []

        def report_error(self, _code: Any, description: str) -> bool:
            if not any(noise in description for noise in _NOISE):
                self.texts.append(description)
            return False

        def num_errors(self) -> int:
            return len(self.texts)

        def has_overflowed(self) -> bool:
            return False

        def get_error_code(self, _index: int) -> Any:
            return trt.ErrorCodeTRT.UNSPECIFIED_ERROR

        def get_error_desc(self, index: int) -> str:
            return self.texts[index]

        def clear(self) -> None:
            self.texts.clear()

    return Recorder()
