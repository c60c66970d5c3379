from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [0, 4])
def test_rotary_embedding_turns_pairs_as_complex_numbers(net: Any, random: Any, interleaved: bool, size: int) -> None:
    x, angles = random(2, 3, 5, 8), random(16, (size or 8) // 2)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 15, 3, 0, 9]], dtype=torch.int64)
    layer = net.network.add_rotary_embedding(
        net.given(x), net.given(angles.cos()), net.given(angles.sin()), interleaved, size
    )
    layer.set_input(3, net.given(positions))
    width = size or 8
    turned = x[..., :width]
    pairs = turned.reshape(2, 3, 5, -1, 2) if interleaved else torch.stack(turned.chunk(2, -1), -1)
    rotated = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles[positions])[:, None]
    flat = torch.view_as_real(rotated)
    first = flat.flatten(-2) if interleaved else torch.cat(flat.unbind(-1), -1)
    assert_close(net.run(layer.get_output(0)), torch.cat((first, x[..., width:]), -1))
