"""Multi-head latent attention, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention: a token's keys and values of all heads come from one vector, which is cached.

    Queries and keys are `nope_dim` elements, followed by `rope_dim` that turn and whose keys all heads share; values
    have `value_dim`. query_rank: size of the vector that queries come from; None if they come from the hidden state.
    Source: https://arxiv.org/abs/2405.04434, section 2.1.
    """

    nope_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of one head in the matrices that have heads, by their names."""
        queries = self.nope_dim + self.rope_dim
        return {"q": queries, "q_b": queries, "kv_b": self.nope_dim + self.value_dim}
