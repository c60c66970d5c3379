"""The tables of GPUs and links that plans are made for; figures and their sources: `gpus.yaml`, `links.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from trtkit.backends import BACKENDS
from trtkit.config.strict import StrictModel
from trtkit.config.targets import OLDEST_OF_TENSORRT
from trtkit.dtypes import DTYPES
from trtkit.errors import PlanError, choices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RATES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "fp4")
"""Types that a GPU multiplies matrices in, as the table calls them; `fp32` is without tensor cores."""

# What tells a GPU model, and what tells that it is another make of it, with other rates.
_MODEL = re.compile(r"RTX \d+|\b(?:[A-Z]{1,2}\d+[A-Z]?|Orin|Thor)\b")
_OTHER_MAKES = re.compile(r"\b(?:PCIe|NVL|Laptop|Ti|SUPER|D|Max-Q|MIG|GH200)\b", re.IGNORECASE)
# Drivers report up to this share more or less than the data sheet's memory.
_MEMORY_SHARE = 0.15


@dataclass(frozen=True)
class PlannedGpu:
    """One GPU model. Rates are dense, in operations per second, by type; a type that is missing is not known.

    memory_bytes: the data sheet's GB as 10^9. compute_capability: 10 * major + minor; 0 of GPUs that are not
    NVIDIA's. sources: pages that state the
    figures, read on `read`. data_sheet: NVIDIA's own page, empty if no source links to one. matmul_efficiency: the
    share of the rate that matrix products of the best shape reached, by type, as the last source states. link: what
    joins several of them, in `links.yaml`; empty if it is not known. host_link: what joins it with the host's memory;
    empty if that is its own, or if it is not known.
    """

    key: str
    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    compute_capability: int
    rates: Mapping[str, float]
    sources: tuple[str, ...]
    note: str
    read: str
    data_sheet: str
    matmul_efficiency: Mapping[str, float]
    link: str
    host_link: str = ""

    def rate(self, dtype: str) -> float | None:
        """Return the dense rate of matrix products of `dtype`, None if no page that was read states one.

        fp32 products run in fp32: trtkit builds without TF32, whose inputs have 10-bit mantissas.
        """
        return self.rates.get(dtype)

    def ridge(self, dtype: str) -> float | None:
        """Return the operations per byte above which `dtype` is bound by compute."""
        rate = self.rate(dtype)
        return None if rate is None else rate / self.bandwidth_bytes_per_s

    @property
    def backends(self) -> tuple[str, ...]:
        """Libraries that build for this GPU: full TensorRT on the GPU itself, TensorRT-RTX by name."""
        named = BACKENDS["tensorrt_rtx"].features.compute_capabilities
        names = ["tensorrt"] if self.compute_capability >= OLDEST_OF_TENSORRT else []
        return (*names, "tensorrt_rtx") if self.compute_capability in named else tuple(names)

    @property
    def untested_backends(self) -> tuple[str, ...]:
        """Those of `backends` whose loader takes this GPU although NVIDIA's support matrices do not list it."""
        capability = self.compute_capability
        return tuple(name for name in self.backends if capability in BACKENDS[name].features.untested)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Types that TensorRT takes on this GPU: by its capability, or because its tensor cores have a rate for it.

        int4 is for weights only, whatever the tensor cores can do.
        """
        known = [dtype for dtype in RATES if dtype != "tf32"]
        return tuple(name for name in known if self._allows(name) or (name in self.rates and name != "int4"))

    def takes(self, dtype: str) -> bool:
        """Whether networks of `dtype` run on this GPU."""
        return dtype in self.precisions

    def _allows(self, name: str) -> bool:
        return self.compute_capability >= DTYPES[name].min_compute_capability


@cache
def planned_gpus() -> tuple[PlannedGpu, ...]:
    """Return the whole table, in its order."""
    data = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    source = data["matmul_efficiency_source"]
    return tuple(_gpu(key, row, str(data["read"]), source) for key, row in data["gpus"].items())


def find_gpus(names: Sequence[str]) -> tuple[PlannedGpu, ...]:
    """Return the GPUs called `names`. Raises PlanError for names that are not in the table."""
    known = {gpu.key.replace("-", ""): gpu for gpu in planned_gpus()}
    wanted = [re.sub(r"[\s_-]", "", name).lower() for name in names]
    for name in wanted:
        if name not in known:
            fix = choices(name, [gpu.key for gpu in known.values()], "trtkit plan --list-gpus")
            raise PlanError(f"unknown GPU `{name}`", "--gpu", fix)
    return tuple(known[name] for name in dict.fromkeys(wanted))


def efficiency_text(gpu: PlannedGpu) -> str:
    """Return what share of the rate the best matrix products reached, by type; empty if it is not known."""
    shares = ", ".join(f"{dtype} {share:.1%}".replace("%", " %") for dtype, share in gpu.matmul_efficiency.items())
    return f"the best large matrix products reached {shares} of the rate" if shares else ""


def gpu_of_device(name: str, memory_bytes: int) -> PlannedGpu | None:
    """Return the GPU of the table that a driver calls `name`, such as `NVIDIA H200`; None if it is not one of them."""
    match = _MODEL.search(name)
    if match is None or _OTHER_MAKES.search(name):
        return None
    for gpu in planned_gpus():
        known = _MODEL.search(gpu.name)
        is_model = known is not None and known.group() == match.group()
        if is_model and abs(memory_bytes - gpu.memory_bytes) <= _MEMORY_SHARE * gpu.memory_bytes:
            return gpu
    return None


def _gpu(key: str, row: dict[str, Any], read: str, efficiency_source: str) -> PlannedGpu:
    rates = {dtype: 1e12 * tera for dtype, tera in row["dense_tera_per_s"].items()}
    efficiency = row.get("matmul_efficiency", {})
    assert set(rates) <= set(RATES), f"{key}: unknown type"
    assert set(efficiency) <= set(rates), f"{key}: efficiency without a rate"
    return PlannedGpu(
        key,
        row["name"],
        round(row["memory_gb"] * 1e9),
        row["bandwidth_gb_per_s"] * 1e9,
        row.get("compute_capability", 0),
        rates,
        (*row["sources"], *([efficiency_source] if efficiency else [])),
        row.get("note", ""),
        str(row.get("read", read)),
        row.get("data_sheet", ""),
        efficiency,
        row.get("link", ""),
        row.get("host_link", ""),
    )


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
    """A ring of neighbouring GPUs: those of a node by `link`, nodes by `network`.

    An all-reduce of n bytes among p GPUs takes base + 2 (p - 1) hop + 2 (p - 1) / p * n / bandwidth: the linear
    model of Thakur, Rabenseifner and Gropp (2005, https://doi.org/10.1177/1094342005051521) of a ring, whose
    traffic is minimal (Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002). Constants are NCCL's,
    of its low-latency protocol and of its plain one, of which it takes the faster.
    """

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
