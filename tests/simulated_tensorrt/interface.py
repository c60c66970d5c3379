"""What trtkit's runtime uses of TensorRT's Python module, for machines without the library. Nothing here builds."""

from __future__ import annotations

import sys
from enum import Enum

from trtkit.dtypes import DTYPES

__version__ = "1.7.1.116"
"""Of TensorRT-RTX, as in constraints.txt: engines that the library built elsewhere are refused by any other."""

DataType = Enum("DataType", [dtype.tensorrt for dtype in DTYPES.values()])
TensorIOMode = Enum("TensorIOMode", ["INPUT", "OUTPUT"])
TensorLocation = Enum("TensorLocation", ["HOST", "DEVICE"])
ErrorCodeTRT = Enum("ErrorCodeTRT", ["UNSPECIFIED_ERROR", "INVALID_ARGUMENT", "FAILED_EXECUTION"])
ExecutionContextAllocationStrategy = Enum("ExecutionContextAllocationStrategy", ["STATIC", "USER_MANAGED"])
DynamicShapesKernelSpecializationStrategy = Enum("DynamicShapesKernelSpecializationStrategy", ["LAZY", "EAGER", "NONE"])
Runtime: object = None
"""Set by `simulate`."""
fault = ""
"""Why this is loaded in the library's place; empty if it is not."""


class Logger:
    """Writes errors to stderr, as TensorRT's own does."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self, severity: int = WARNING) -> None:
        self.min_severity = severity

    def log(self, severity: int, text: str) -> None:
        """Write a line of that severity."""
        if severity <= self.min_severity:
            print(f"[simulated TensorRT] {text}", file=sys.stderr)


class IErrorRecorder:
    """What trtkit's recorder extends."""


class IProfiler:
    """What trtkit's profiler extends."""


class IOutputAllocator:
    """What trtkit's allocator extends."""
