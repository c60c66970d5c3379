"""Replicas: processes that open the same bundle and share prompts, dealt out one at a time as slots become free."""

from __future__ import annotations

import json
import os
import queue
import threading
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtkit.errors import GenerationError, Problem, RequestError
from trtkit.files import scratch_folder
from trtkit.jobs.faults import error_from_json
from trtkit.jobs.json_form import from_json, read_hints, to_json
from trtkit.jobs.process import ChildProcess
from trtkit.llm.distributed.world import launched_count
from trtkit.llm.llm import run_order
from trtkit.llm.offload.decoder import OffloadCounts
from trtkit.llm.outputs import CompletionOutput, RequestOutput
from trtkit.llm.prompt_lines import PromptLine  # noqa: TC001 (read from JSON by its types)
from trtkit.llm.prompts import raise_prompt_problems
from trtkit.llm.sampling.sampled import TokenLogprobs
from trtkit.llm.scheduler.costs import Statistics
from trtkit.llm.scheduler.request import FinishReason
from trtkit.threads import import_paths, shares_of_machine, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.prompts import PreparedPrompt
    from trtkit.serving_options import ServingOptions

_Counts = TypeVar("_Counts", Statistics, OffloadCounts)
_MODULE = "trtkit.llm.replica"


@dataclass(frozen=True)
class PromptSource:
    """What prepared prompts are made from; see `prepare_prompts`. lines: by number of the prompt."""

    lines: Sequence[PromptLine]
    settings: Mapping[str, object]
    is_chat: bool
    system: str | None


@dataclass(frozen=True)
class ReplicaRequest:
    """The first line that a replica reads. options: of ServingOptions. options and settings are JSON."""

    bundle: Path
    options: str
    settings: str
    is_chat: bool
    system: str | None


@dataclass(frozen=True)
class DealtPrompt:
    """A prompt for a replica, with its number."""

    index: int
    line: PromptLine


@dataclass(frozen=True)
class Opened:
    """A replica is ready. The fields are those of LLM."""

    description: str
    slots: int
    has_long_first: bool


@dataclass(frozen=True)
class Checked:
    """A replica has checked its share of the prompts. problems: with their prompts' numbers."""

    problems: tuple[tuple[int, Problem], ...]


@dataclass(frozen=True)
class Next:
    """A replica has room for another prompt."""


@dataclass(frozen=True)
class Done:
    """A replica has answered all its prompts and is closed."""

    statistics: Statistics
    offload_counts: OffloadCounts | None


Event = Opened | Checked | Next | RequestOutput | Done
_Kind = TypeVar("_Kind", Opened, Checked)
_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in (Opened, Checked, Next, RequestOutput, Done)}
for _kind in (CompletionOutput, RequestOutput):
    read_hints(_kind, {"TokenLogprobs": TokenLogprobs, "FinishReason": FinishReason})


def event_line(event: Event) -> str:
    """Return an event as a line for `Replicas`."""
    return json.dumps({"event": type(event).__name__, "data": to_json(event)})


class Replicas:
    """`count` processes that answer prompts, each with a GPU per rank, or its share of the cores if there is no GPU.

    They end with the `with` block and with this process. answered: number of prompts by replica. Raises what opening an
    LLM raises, and RequestError if there are too few GPUs.
    """

    def __init__(self, bundle: Bundle, options: ServingOptions, source: PromptSource, count: int) -> None:
        shares = shares_of_replicas(count, bundle.manifest.grid.ranks, options.runtime)
        self._source = source
        self._events: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._processes: list[ChildProcess] = []
        self._done: dict[int, Done] = {}
        self.answered = [0] * count
        self._stack = ExitStack()
        try:
            self._folder = self._stack.enter_context(scratch_folder())
            for number, share in enumerate(shares):
                self._start(number, _request(bundle, _options_of(options, number), source), share)
            self._opened = [event for _, event in self._gather(Opened)]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [process.pid for process in self._processes]

    @property
    def description(self) -> str:
        """What runs the model."""
        return f"{len(self._opened)} replicas, each: {self._opened[0].description}"

    @property
    def slots(self) -> int:
        """Number of concurrent sequences of all replicas."""
        return sum(opened.slots for opened in self._opened)

    @property
    def statistics(self) -> Statistics:
        """The sum of all replicas' statistics, once they have answered all prompts."""
        return _total(Statistics, [done.statistics for done in self._done.values()])

    @property
    def offload_counts(self) -> OffloadCounts | None:
        """The sum of all replicas' transfers of stages in turn; None without `offload`."""
        counts = [done.offload_counts for done in self._done.values() if done.offload_counts is not None]
        return _total(OffloadCounts, counts) if counts else None

    def generate(
        self, prompts: Sequence[PreparedPrompt], on_output: Callable[[RequestOutput], None]
    ) -> list[RequestOutput]:
        """Answer prompts as `answers` does; return their outputs in order."""
        outputs = {}
        for output in self.answers(prompts):
            on_output(output)
            outputs[output.request_id] = output
        return [outputs[str(prompt.request_id)] for prompt in prompts]

    def answers(self, prompts: Sequence[PreparedPrompt]) -> Iterator[RequestOutput]:
        """Answer the source's prompts, once; yield each output as soon as it is complete, in any order.

        All prompts are checked before anything runs: raises PromptsError that lists every problem. Raises
        GenerationError if a replica dies, and its error if it fails.
        """
        self._check(prompts)
        waiting = iter(run_order(prompts, has_long_first=self._opened[0].has_long_first))
        for process in self._processes:
            process.send(str(-(-len(prompts) // len(self._processes))))  # spreads a few prompts evenly, too
        while len(self._done) < len(self._processes):
            number, event = self._next_event()
            if isinstance(event, RequestOutput):
                self.answered[number] += 1
                yield event
            elif isinstance(event, Done):
                self._done[number] = event
            else:
                self._deal(number, next(waiting, None))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        self._stack.close()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, number: int, request: ReplicaRequest, share: dict[str, str]) -> None:
        read_end, write_end = os.pipe()
        try:
            log = self._folder / f"replica{number}.log"
            environment = os.environ | share | import_paths()
            process = ChildProcess([_MODULE, str(write_end)], log, environment, [write_end])
        finally:
            os.close(write_end)
        self._processes.append(process)
        threading.Thread(target=self._listen, args=(number, read_end), daemon=True).start()
        process.send(json.dumps(to_json(request)))

    def _listen(self, number: int, read_end: int) -> None:
        """Queue the lines of a replica; an empty one at its end."""
        with os.fdopen(read_end, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):  # not cut off
                    self._events.put((number, line))
        self._events.put((number, ""))

    def _next_event(self) -> tuple[int, Event]:
        """Wait for an event; return it with the replica's number. Raises the error of a replica that failed or died."""
        number, line = self._events.get()
        while not line and number in self._done:
            number, line = self._events.get()
        if not line:
            self._processes[number].wait()
            what = f"replica {number + 1} of {len(self._processes)} has ended: {self._processes[number].failure()}"
            fix = "use fewer replicas if memory ran out; with `--output`, the same command resumes"
            raise GenerationError(what, "--replicas", fix)
        message = json.loads(line)
        if message["event"] == "error":
            raise error_from_json(message["data"])
        return number, from_json(_EVENTS[message["event"]], message["data"])

    def _gather(self, kind: type[_Kind]) -> list[tuple[int, _Kind]]:
        """Wait until each replica has reported an event of a kind; return the events by replica."""
        events: dict[int, _Kind] = {}
        while len(events) < len(self._processes):
            number, event = self._next_event()
            assert isinstance(event, kind)
            events[number] = event
        return sorted(events.items())

    def _check(self, prompts: Sequence[PreparedPrompt]) -> None:
        """Let each replica check a share of the prompts against the opened network."""
        for number in range(len(self._processes)):
            for prompt in prompts[number :: len(self._processes)]:
                self._deal(number, prompt)
            self._deal(number, None)
        problems = [problem for _, checked in self._gather(Checked) for problem in checked.problems]
        raise_prompt_problems([problem for _, problem in sorted(problems, key=lambda item: item[0])])

    def _deal(self, number: int, prompt: PreparedPrompt | None) -> None:
        """Send a replica a prompt, or null once none are left."""
        if prompt is None:
            self._processes[number].send("null")
            return
        index = int(str(prompt.request_id))
        self._processes[number].send(json.dumps(to_json(DealtPrompt(index, self._source.lines[index]))))


def shares_of_replicas(count: int, ranks: int, runtime: str) -> list[dict[str, str]]:
    """Return each replica's part of the machine. Raises RequestError if there are not enough GPUs."""
    if ranks > 1 and launched_count() is not None:
        what, fix = "ranks that a launcher started belong to one replica", "start the command without the launcher"
        raise RequestError(what, "--replicas", fix)
    gpus = [] if runtime == "reference" else visible_gpus()
    if gpus and count * ranks > len(gpus):
        of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
        what = f"{count} replicas{of_ranks} need {count * ranks} GPUs; this machine has {len(gpus)}"
        most = len(gpus) // ranks
        fix = f"use at most {most}" if most > 1 else "leave it out"
        raise RequestError(what, "--replicas", f"{fix}, or use `--runtime reference`")
    return shares_of_machine([ranks] * count, gpus)


def _options_of(options: ServingOptions, number: int) -> ServingOptions:
    """Return the options of one replica, which has a cache folder of its own."""
    if options.cache_dir is None:
        return options
    return replace(options, cache_dir=Path(options.cache_dir) / f"replica {number + 1}")


def _request(bundle: Bundle, options: ServingOptions, source: PromptSource) -> ReplicaRequest:
    settings = json.dumps(dict(source.settings))
    return ReplicaRequest(bundle.path.absolute(), options.to_json(), settings, source.is_chat, source.system)


def _total(kind: type[_Counts], counts: Sequence[_Counts]) -> _Counts:
    """Return the sum, field by field."""
    return kind(**{field.name: sum(getattr(one, field.name) for one in counts) for field in fields(kind)})
