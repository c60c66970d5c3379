"""A decoder's engine file and the facts of its network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trtkit.builder.decoders import llm_options
from trtkit.builder.stages import PlanFile
from trtkit.dtypes import DTYPES
from trtkit.errors import GenerationError
from trtkit.llm.execution.embeddings import bundle_embeddings
from trtkit.models.share import WHOLE
from trtkit.runtime.device import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.config.llm import LlmOptions
    from trtkit.llm.execution.embeddings import TokenEmbeddings
    from trtkit.models.share import Share
    from trtkit.network.input_spec import InputSpec


@dataclass(frozen=True, eq=False)
class DecoderPlan:
    """A decoder's engine and the facts of its network. where: name for errors.

    embeddings: of a network that takes vectors. has_table: whether they must be on the network's device, too, so that
    steps can look up tokens that the host does not know yet; with several ranks, the host knows all tokens.
    token_multiple: see CallCounts. context: see DecoderNetwork.
    """

    file: PlanFile
    inputs: Sequence[InputSpec]
    options: LlmOptions
    embeddings: TokenEmbeddings | None
    where: str
    token_multiple: int = 1
    context: Share = WHOLE
    has_table: bool = False

    @classmethod
    def of(cls, bundle: Bundle, rank: int = 0, name: str = "") -> DecoderPlan:
        """Return the plan of one rank of a language model's bundle.

        name: of a stage other than the language model's.
        """
        stage = bundle.manifest.stage(name) if name else bundle.manifest.stages[-1]
        network = stage.networks[rank]
        file = next(record for record in bundle.manifest.engines if record.path == network.engine)
        takes_embeddings = any(tensor.name == "inputs_embeds" for tensor in network.inputs)
        return cls(
            PlanFile(bundle.path / network.engine, file.sha256),
            [record.spec for record in network.inputs],
            llm_options(bundle.manifest.config),
            bundle_embeddings(bundle.path) if takes_embeddings else None,
            str(bundle.path),
            1 if name else bundle.manifest.grid.token_share(rank).count,
            WHOLE if name else bundle.manifest.grid.context_share(rank),
            has_table=takes_embeddings and bundle.manifest.grid.ranks == 1,
        )


def dtype_of(spec: InputSpec) -> torch.dtype:
    """Return an input's type in torch."""
    dtype: torch.dtype = getattr(torch, DTYPES[spec.dtype].torch)
    return dtype


def check_alignment(plan: DecoderPlan, slots: int) -> None:
    """Raise GenerationError if the second slot's cache would start at an address that TensorRT does not accept."""
    for spec in plan.inputs:
        slot_bytes = math.prod(spec.shape[1:]) * dtype_of(spec).itemsize
        if spec.is_kept and spec.axes[0].role == "batch" and slots > 1 and slot_bytes % ALIGNMENT:
            fix = "use one slot"
            if spec.feeder == "cache":
                token_bytes = slot_bytes // spec.size_of("cached_tokens")
                multiple = ALIGNMENT // math.gcd(ALIGNMENT, token_bytes)
                fix = f"build with an `llm.max_sequence_length` that {multiple} divides, or {fix}"
            what = (
                f"a slot of `{spec.name}` has {slot_bytes} bytes, not a multiple of TensorRT's alignment, {ALIGNMENT}"
            )
            raise GenerationError(what, plan.where, fix)
