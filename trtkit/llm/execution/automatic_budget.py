"""Keep as many of a decoder's weights on its GPU as everything else leaves room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.llm.execution.engine import EngineDecoder
from trtkit.runtime.device import release_memory
from trtkit.runtime.weight_budget import automatic_budget

if TYPE_CHECKING:
    from trtkit.llm.execution.execution import DecoderExecution
    from trtkit.runtime.device import Device


def keep_weights_that_fit(execution: DecoderExecution, draft: DecoderExecution | None, device: Device) -> None:
    """Give an open decoder that has not run yet its weight budget; the reference executor has none.

    Free memory is measured with none of the decoder's streamable weights on the GPU, all of the draft's, and buffers
    for the largest prefill. TensorRT says what execution contexts will take.
    """
    if not isinstance(execution, EngineDecoder):
        return
    decoders = [decoder for decoder in (execution, draft) if isinstance(decoder, EngineDecoder)]
    for decoder in decoders:  # TensorRT may load what can be streamed with the first context only
        if decoder.engine.streamable_bytes:
            decoder.engine.stream_weights(0 if decoder is execution else decoder.engine.streamable_bytes)
        decoder.reserve_prompts()
    release_memory()
    free_bytes = device.free_bytes - sum(decoder.engine.pending_context_bytes for decoder in decoders)
    execution.stream_weights(automatic_budget(free_bytes, device.memory_bytes, execution.engine.streamable_bytes))
