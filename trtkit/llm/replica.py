"""A child process that is one replica. `replicas.py` starts it as `python -P -m trtkit.llm.replica FD`.

It reads a ReplicaRequest from stdin, then prompts to check, then how many prompts it may have under way, and then
prompts to answer, each after requesting it. It writes its events to FD.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.errors import Problem, RequestError
from trtkit.jobs.faults import error_to_json, internal_error, user_error
from trtkit.jobs.json_form import from_json
from trtkit.llm.llm import LLM
from trtkit.llm.prompt_lines import PromptLines, prepare_prompts
from trtkit.llm.prompts import PromptsError, problems_of
from trtkit.llm.replicas import Checked, DealtPrompt, Done, Next, Opened, ReplicaRequest, event_line
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from trtkit.llm.prompts import PreparedPrompt
    from trtkit.llm.replicas import Event


def main(events: int) -> None:
    """Run as the replica that the first line of stdin describes."""
    request = from_json(ReplicaRequest, json.loads(sys.stdin.buffer.readline()))
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    with os.fdopen(events, "w", encoding="utf-8") as file:
        try:
            _Replica(request, lines, file).run()
        except Exception as error:
            fault = user_error(error) or internal_error(error, "replica", "")
            print(json.dumps({"event": "error", "data": error_to_json(fault)}), file=file, flush=True)
    os._exit(0)  # the thread holds stdin's lock; threads of TensorRT may still be waiting


def _listen(lines: queue.SimpleQueue[bytes]) -> None:
    """Queue the lines of stdin. Its end means that the parent is gone: exit at once."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(1)


@dataclass(frozen=True)
class _Replica:
    """A replica's request, its incoming lines, and the file for its events."""

    request: ReplicaRequest
    lines: queue.SimpleQueue[bytes]
    events: TextIO

    def run(self) -> None:
        """Check prompts, then answer prompts until none are left."""
        with LLM(self.request.bundle, **ServingOptions.from_json(self.request.options).to_values()) as llm:
            self._report(Opened(llm.description, llm.slots, llm.has_long_first))
            self._report(Checked(tuple(self._problems(llm))))
            most = min(llm.slots, int(self.lines.get()))
            for output in llm.answers_to(self._prompts(llm), most):
                self._report(output)
            done = Done(llm.statistics, llm.offload_counts)
        self._report(done)

    def _problems(self, llm: LLM) -> Iterator[tuple[int, Problem]]:
        """Yield the problems of the prompts to check."""
        while (dealt := self._next()) is not None:
            try:
                llm.frontend.check(self._prepare(llm, dealt))
            except PromptsError as error:
                yield from ((dealt.index, problem) for problem in error.problems)
            except RequestError as error:
                yield from ((dealt.index, problem) for problem in problems_of(error, dealt.line.where))

    def _prompts(self, llm: LLM) -> Iterator[PreparedPrompt]:
        """Request prompts; yield each."""
        self._report(Next())
        while (dealt := self._next()) is not None:
            yield self._prepare(llm, dealt)
            self._report(Next())

    def _next(self) -> DealtPrompt | None:
        data = json.loads(self.lines.get())
        return None if data is None else from_json(DealtPrompt, data)

    def _prepare(self, llm: LLM, dealt: DealtPrompt) -> PreparedPrompt:
        request, lines = self.request, PromptLines([dealt.line])
        model, settings = llm.frontend.text, json.loads(request.settings)
        (prompt,) = prepare_prompts(lines, model, settings, is_chat=request.is_chat, system=request.system)
        return replace(prompt, request_id=str(dealt.index))

    def _report(self, event: Event) -> None:
        print(event_line(event), file=self.events, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
