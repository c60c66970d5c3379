"""Which function writes the network of which kind of head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.models.speculators.eagle3 import EAGLE3
from trtkit.models.speculators.gemma4_assistant import GEMMA4_ASSISTANT
from trtkit.models.speculators.medusa import MEDUSA
from trtkit.network.speculators.eagle3 import build_eagle3
from trtkit.network.speculators.gemma4_assistant import build_assistant
from trtkit.network.speculators.medusa import build_medusa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.models.speculators.spec import SpeculatorSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph
    from trtkit.network.host_array import Array

_WRITERS: dict[str, Callable[..., None]] = {
    EAGLE3: build_eagle3,
    GEMMA4_ASSISTANT: build_assistant,
    MEDUSA: build_medusa,
}


def build_speculator(
    graph: Graph, spec: SpeculatorSpec, known: Any, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a head to an empty graph, with the inputs and outputs of its kind.

    spec: what the head computes. known: [V'], the model's tokens that it can guess, in its order.
    """
    _WRITERS[spec.kind](graph, spec, known, arrays, options)
