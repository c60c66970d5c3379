"""TensorRT's runtime, simulated on host memory or by torch on a GPU: what engines do, by the rules in README.md."""

from __future__ import annotations

from tests.simulated_tensorrt.install import Simulated, load_interface, simulate
from tests.simulated_tensorrt.plans import Plans

__all__ = ["Plans", "Simulated", "load_interface", "simulate"]
