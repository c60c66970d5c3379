"""What to measure and how: a single request type for all bundles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, get_args

from trtkit.benchmarking.arrivals import Pattern
from trtkit.benchmarking.timing import Rules
from trtkit.benchmarking.workload import Lengths
from trtkit.errors import BenchError
from trtkit.serving_options import Runtime, ServingOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.bundle.bundle import Bundle

_REQUESTS = 16


@dataclass(frozen=True, kw_only=True)
class Load(Lengths):
    """Requests and their arrival: at a concurrency, at a rate, or as in a trace; by default one at a time.

    concurrency: concurrent requests, one case per number. request_rate: requests per second, one case per rate.
    arrivals: their distribution at a rate. trace: a file of requests; speed: replays the trace this many times as fast.
    prompts: a file of prompts, as for `trtkit generate`, instead of synthetic ones. requests: per round; if None, 16 or
    all of a file. rounds: per case; if None, 1, or 3 when comparing.
    goodput: limits in ms for `ttft`, `tpot` and `e2e` that a good request meets. seed: of prompts and arrivals.
    The token counts are those of synthetic prompts.
    """

    concurrency: Sequence[int] = ()
    request_rate: Sequence[float] = ()
    arrivals: Pattern = "poisson"
    trace: str | None = None
    speed: float = 1.0
    prompts: str | None = None
    requests: int | None = None
    rounds: int | None = None
    goodput: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def arrival_fields(self) -> list[str]:
        """The fields that define arrivals and are set; at most one may be."""
        ways = {"concurrency": self.concurrency, "request_rate": self.request_rate, "trace": self.trace is not None}
        return [name for name, is_used in ways.items() if is_used]

    @property
    def count(self) -> int:
        """Requests per round, if no file determines them."""
        return self.requests or _REQUESTS


@dataclass(frozen=True)
class ServedModel:
    """A model on a Triton server. name: its name on the server; the bundle's if None."""

    url: str
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What to measure.

    rivals: what to compare with: `torch`, `torch.compile`, `onnxruntime`, `transformers`, or a bundle's folder.
    batches: for a network of arrays; if empty, its profiles' min, opt and max shapes. rules: when its measurement
    stops. load: on a language model, or on a network on a server. options: how a language model is opened; their
    `runtime` applies to every bundle. has_cuda_graphs: None for the default. server: where the bundle is served; None
    to run it in this process. is_waived: whether to measure a bundle that was not verified. trusts_source: whether a
    Python factory that the bundle names may run.
    """

    rivals: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    rules: Rules = field(default_factory=Rules)
    load: Load = field(default_factory=Load)
    options: ServingOptions = field(default_factory=ServingOptions)
    has_cuda_graphs: bool | None = None
    server: ServedModel | None = None
    is_waived: bool = False
    trusts_source: bool = False


_OF_A_SERVER = {"concurrency", "request_rate", "arrivals", "requests", "goodput", "seed"}
"""Fields of a load that apply to a network on a server."""


def check_request(bundle: Bundle, request: BenchRequest) -> None:
    """Refuse fields that do not apply to the bundle, contradictions, and unknown values. Raises BenchError."""
    path, load = str(bundle.path), request.load
    if (encoder := bundle.manifest.encoder) is not None:
        needs, flag = ("a text", "TEXT") if encoder.audio is None else ("audio", "--audio FILE")
        what = f"{encoder.kind} needs {needs} for its encoder, which a benchmark does not have"
        raise BenchError(what, path, f"use `trtkit generate BUNDLE {flag} --stats`")
    if meaningless := _meaningless(bundle, request):
        kind = "a language model" if bundle.manifest.interface == "tokens" else "a network of arrays"
        if request.server and meaningless[0] in _OF_A_SERVER:
            fix = "give a concurrency or a request rate, or leave it out"
            raise BenchError(f"`{meaningless[0]}` describes a load, and none is set", path, fix)
        raise BenchError(f"`{meaningless[0]}` does not apply to {kind}", path, "leave it out")
    if len(load.arrival_fields) > 1:
        first, second = load.arrival_fields[:2]
        raise BenchError(f"`{first}` and `{second}` cannot be combined", path, "choose one")
    if load.trace is not None and load.prompts is not None:
        raise BenchError(
            "`prompts` cannot be combined with a trace, which sets the prompt lengths", path, "leave `prompts` out"
        )
    if bundle.manifest.interface == "arrays" and load.arrival_fields and request.rivals:
        raise BenchError("a load on a server cannot be compared with rivals", path, "leave the rivals out")
    _check_values(request, path)


def _meaningless(bundle: Bundle, request: BenchRequest) -> list[str]:
    """Return the fields that differ from their defaults and do not apply to the bundle."""
    plain, no_load = BenchRequest(), Load()
    if bundle.manifest.interface == "tokens":
        return [name for name in ("batches", "rules") if getattr(request, name) != getattr(plain, name)]
    allowed = _OF_A_SERVER if request.server and request.load.arrival_fields else set()
    names = [option.name for option in fields(Load) if option.name not in allowed]
    meaningless = [name for name in names if (getattr(request.load, name) or None) != (getattr(no_load, name) or None)]
    return [*meaningless, *(["options"] if replace(request.options, runtime="auto") != plain.options else [])]


def _check_values(request: BenchRequest, path: str) -> None:
    """Raise BenchError for numbers out of range and unknown names."""
    load, rules = request.load, request.rules
    for name, value, allowed in (
        ("arrivals", load.arrivals, get_args(Pattern)),
        ("runtime", request.options.runtime, get_args(Runtime)),
    ):
        if value not in allowed:
            raise BenchError(f"`{name}` is {value!r}", path, f"use one of {', '.join(allowed)}")
    counts = ("requests", "rounds", "input_tokens", "output_tokens", "prefixes")
    ones = [*(("batches", level) for level in request.batches), *(("concurrency", level) for level in load.concurrency)]
    ones += [(name, getattr(load, name)) for name in counts if getattr(load, name) is not None]
    ones += [("min_runs", rules.min_runs), ("few_runs", rules.few_runs)]
    zeros = [(name, getattr(load, name)) for name in ("input_deviation", "output_deviation", "shared_tokens")]
    zeros += vars(rules).items()
    for least, pairs in ((1, ones), (0, zeros)):
        for name, number in pairs:
            if not number >= least:
                raise BenchError(f"`{name}`: {number} is below {least}", path, f"give numbers of at least {least}")
    if not load.speed > 0 or not all(0 < rate < math.inf for rate in load.request_rate):
        raise BenchError("`speed` and `request_rate` must be above 0", path, "give finite numbers above 0")
