"""What arrays are called in annotations: their types and shapes stand in docstrings."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
"""By the name of an input or an output."""
