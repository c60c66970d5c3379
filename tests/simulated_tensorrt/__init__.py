"""TensorRT's GPU runtime on host memory, or on a GPU with torch: what the library does with an engine, by the rules in README.md."""

from __future__ import annotations

from tests.simulated_tensorrt.install import Simulated, load_interface, simulate
from tests.simulated_tensorrt.plans import Plans

__all__ = ["Plans", "Simulated", "load_interface", "simulate"]
