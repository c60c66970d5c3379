"""Collect TensorRT's own error messages about a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.backends import list_gpus

if TYPE_CHECKING:
    from trtkit.backends import Backend

# Always reported on a machine without a GPU; with a GPU it is a real error.
_NOISE = ("cudaError", "Cuda failure", "CUDA initialization")

_MOST_TEXTS = 100  # a warning may repeat as long as a server runs


def reason_of(error: Any) -> str:
    """Return a parser error's message, without the noise of a missing GPU."""
    lines = [line for line in error.desc().splitlines() if not _is_noise(line)]
    return "\n".join(lines).removeprefix("Assertion failed: ").strip() or "no reason given"


def error_recorder(backend: Backend, *, has_gpu: bool = False) -> Any:
    """Return an IErrorRecorder that keeps descriptions in `texts`, without the noise of a missing GPU.

    It belongs to one network, while a logger is shared by the whole process. has_gpu: whether engines run here, so that
    nothing is noise; otherwise the driver is queried.
    """
    trt = backend.trt

    class ErrorRecorder(trt.IErrorRecorder):  # type: ignore[name-defined, misc]
        """Remembers each error's description."""

        def __init__(self) -> None:
            trt.IErrorRecorder.__init__(self)
            self.texts: list[str] = []

        def report_error(self, _code: Any, description: str) -> bool:
            if has_gpu or not _is_noise(description):
                self.texts.append(description)
                del self.texts[:-_MOST_TEXTS]
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

    return ErrorRecorder()


def _is_noise(text: str) -> bool:
    return any(noise in text for noise in _NOISE) and not list_gpus()
