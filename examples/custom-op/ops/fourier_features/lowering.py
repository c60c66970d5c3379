"""The op written with layers that TensorRT and ONNX have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import FP32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: Any, _form: str) -> list[T]:
    """Compute in fp32: at 2^9 pi x, fp16 has no precision left for the phase. x: [N, C]."""
    x = inputs[0]
    assert x is not None
    with o.fp32():
        wide = o.cast(x, FP32)
        angles = [wide * (2**k * math.pi) for k in range(attributes.bands)]
        waves = [o.unary(wave, angle) for angle in angles for wave in ("sin", "cos")]
        y = o.concat([wide, *waves], 1)
    return [o.cast(y, x.dtype)]
