"""The tables of GPUs and links for planning; figures and their sources are in `gpus.yaml` and `links.yaml`."""

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
"""Types of matrix products, as named in the table; `fp32` is without tensor cores."""

# Name parts that identify a GPU model, and those that identify another variant of it, with other rates.
_MODEL = re.compile(r"RTX \d+|\b(?:[A-Z]{1,2}\d+[A-Z]?|Orin|Thor)\b")
_OTHER_MAKES = re.compile(r"\b(?:PCIe|NVL|Laptop|Ti|SUPER|D|Max-Q|MIG|GH200)\b", re.IGNORECASE)
# Drivers may report this share more or less than the data sheet's memory.
_MEMORY_SHARE = 0.15


@dataclass(frozen=True)
class PlannedGpu:
    """One GPU model. Rates are dense, in operations per second, by type; missing types are unknown.

    memory_bytes: the data sheet's GB as 10^9. compute_capability: 10 * major + minor; 0 for GPUs of other vendors than
    NVIDIA. sources: pages that state the figures, read on `read`. data_sheet: NVIDIA's own page, empty if no source
    links to one. matmul_efficiency: by type, the share of the rate reached by matrix products of the best shape, as
    stated in the last source. link: the interconnect between several of them, in `links.yaml`; empty if unknown.
    host_link: the link to host memory; empty if the two share memory, or if unknown.
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
        """Return the dense rate of matrix products of `dtype`, None if no consulted page states one.

        fp32 products run in fp32: trtkit builds without TF32, whose inputs have 10-bit mantissas.
        """
        return self.rates.get(dtype)

    def ridge(self, dtype: str) -> float | None:
        """Return the operations per byte above which `dtype` is compute bound."""
        rate = self.rate(dtype)
        return None if rate is None else rate / self.bandwidth_bytes_per_s

    @property
    def backends(self) -> tuple[str, ...]:
        """Libraries that build for this GPU: full TensorRT on the GPU itself, TensorRT-RTX by the GPU's name."""
        named = BACKENDS["tensorrt_rtx"].features.compute_capabilities
        names = ["tensorrt"] if self.compute_capability >= OLDEST_OF_TENSORRT else []
        return (*names, "tensorrt_rtx") if self.compute_capability in named else tuple(names)

    @property
    def untested_backends(self) -> tuple[str, ...]:
        """Those of `backends` whose loader accepts this GPU although NVIDIA's support matrices do not list it."""
        capability = self.compute_capability
        return tuple(name for name in self.backends if capability in BACKENDS[name].features.untested)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Types that TensorRT supports on this GPU: by its compute capability, or because its tensor cores have a rate.

        int4 is for weights only, whatever the tensor cores support.
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
    """Return the whole table, in order."""
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
    """Return the share of the rate that the best matrix products reached, by type; empty if unknown."""
    shares = ", ".join(f"{dtype} {share:.1%}".replace("%", " %") for dtype, share in gpu.matmul_efficiency.items())
    return f"the best large matrix products reached {shares} of the rate" if shares else ""


def gpu_of_device(name: str, memory_bytes: int) -> PlannedGpu | None:
    """Return the table's GPU that a driver calls `name`, such as `NVIDIA H200`; None if it is not in the table."""
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
"""Number of GPUs that a plan assumes to share their own link; beyond it, traffic goes over the network."""


class Protocol(StrictModel):
    """A ring's transfer protocol.

    hop_us: by kind of link. bandwidth_share: share of the link's available to the payload.
    """

    base_us: float
    hop_us: dict[Kind, float]
    bandwidth_share: float


class Link(StrictModel):
    """The interconnect between GPUs. gb_per_s: 10^9 bytes per second, in one direction of one GPU."""

    name: str
    kind: Kind
    gb_per_s: float
    source: str


class Links(StrictModel):
    """The table of links. ring_source: the page with the ring constants. read: date on which all were read."""

    read: date
    ring_source: str
    protocols: dict[str, Protocol]
    links: dict[str, Link]


@dataclass(frozen=True)
class Ring:
    """A ring of neighboring GPUs: those within a node by `link`, nodes by `network`.

    An all-reduce of n bytes among p GPUs takes base + 2 (p - 1) hop + 2 (p - 1) / p * n / bandwidth: the linear model
    of Thakur, Rabenseifner and Gropp (2005, https://doi.org/10.1177/1094342005051521) for a ring, whose traffic is
    minimal (Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002). Constants are NCCL's, for its
    low-latency protocol and for its simple one; the faster of the two is used.
    """

    link: Link
    network: Link
    gpus: int

    @property
    def nodes(self) -> int:
        """Number of nodes in the ring."""
        return -(-self.gpus // GPUS_PER_NODE)

    def all_reduce_s(self, size_bytes: int) -> float:
        """Return the time of summing tensors of `size_bytes`, with the sum on every GPU."""
        return self._seconds(2, size_bytes)

    def all_gather_s(self, size_bytes: int) -> float:
        """Return the time of concatenating every GPU's part into a tensor of `size_bytes`."""
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
    """Return the time of sending `size_bytes` from one GPU to another."""
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
