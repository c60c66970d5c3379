"""How long GPUs take to exchange tensors: published bandwidths of links, in the cost model of a ring.

An all-reduce of n bytes among p GPUs takes base + 2 (p - 1) hop + 2 (p - 1) / p * n / bandwidth: the linear model of
Thakur, Rabenseifner and Gropp (2005, https://doi.org/10.1177/1094342005051521) of a ring, whose traffic is minimal
(Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002). Constants are NCCL's, of its
low-latency protocol and of its plain one, of which it takes the faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from trtkit.config.strict import StrictModel

Kind = Literal["nvlink", "pcie", "network"]
GPUS_PER_NODE = 8
"""GPUs that a plan takes to be joined by their own link; what goes further is sent by the network."""


class Protocol(StrictModel):
    """One way in which a ring sends. hop_us: by kind of link. bandwidth_share: of the link's, that the payload gets."""

    base_us: float
    hop_us: dict[Kind, float]
    bandwidth_share: float


class Link(StrictModel):
    """What GPUs send each other through. gb_per_s: 10^9 bytes a second, one direction of one GPU."""

    name: str
    kind: Kind
    gb_per_s: float
    source: str


class Links(StrictModel):
    """The table of links. ring_source: the page that the constants of rings are on. read: when all were read."""

    read: date
    ring_source: str
    protocols: dict[str, Protocol]
    links: dict[str, Link]


@dataclass(frozen=True)
class Ring:
    """A ring of neighbouring GPUs: those of a node by `link`, nodes by `network`."""

    link: Link
    network: Link
    gpus: int

    @property
    def nodes(self) -> int:
        """How many nodes it passes."""
        return -(-self.gpus // GPUS_PER_NODE)

    def all_reduce_s(self, size_bytes: int) -> float:
        """Return how long summing tensors of `size_bytes` takes, every GPU having the sum."""
        return self._seconds(2, size_bytes)

    def all_gather_s(self, size_bytes: int) -> float:
        """Return how long joining every GPU's part to a tensor of `size_bytes` takes."""
        return self._seconds(1, size_bytes)

    def _seconds(self, rounds: int, size_bytes: int) -> float:
        if self.gpus == 1:
            return 0.0
        slowest = min(link.gb_per_s for link in (self.link, *([self.network] if self.nodes > 1 else [])))
        sent = rounds * (self.gpus - 1) / self.gpus * size_bytes
        between, within = rounds * (self.nodes - 1), rounds * (self.gpus - self.nodes)
        return min(
            1e-6
            * (
                protocol.base_us
                + within * protocol.hop_us[self.link.kind]
                + between * protocol.hop_us[self.network.kind]
            )
            + 1e-9 * sent / (protocol.bandwidth_share * slowest)
            for protocol in known_links().protocols.values()
        )


def send_s(link: Link, size_bytes: int) -> float:
    """Return how long one GPU takes to send `size_bytes` to another."""
    return min(
        1e-6 * (protocol.base_us + protocol.hop_us[link.kind])
        + 1e-9 * size_bytes / (protocol.bandwidth_share * link.gb_per_s)
        for protocol in known_links().protocols.values()
    )


@cache
def known_links() -> Links:
    """Return the table of links."""
    data = yaml.safe_load(Path(__file__).with_name("links.yaml").read_text(encoding="utf-8"))
    return Links.model_validate(data)
