"""A prefill worker and a decode worker: tokens are the same, and lost caches are recomputed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import re
import shlex
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("nixl._api")

from openai import InternalServerError
from safetensors.numpy import load_file, save_file

from tests.support import tiny_chat
from tests.support.decoder_case import SIZES
from tests.support.docs import DOCS, blocks
from tests.support.dynamo import MODEL, Served, serving, wait_until
from tests.support.medusa import save_random
from tests.unit.runtime.text.tokenizers import byte_level
from trtkit import SamplingParams
from trtkit.bundle.bundle import open_bundle
from trtkit.cli.serve import command
from trtkit.deployment.dynamo.disaggregation import Decode, Prefill
from trtkit.deployment.dynamo.prefill_bundle import check_prefill_bundle
from trtkit.errors import DeployError
from trtkit.llm import EngineThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openai import OpenAI

    from tests.conftest import Ran
    from trtkit import LLM

DECODE, PREFILL = 0, 1  # the fleet's workers
PROMPTS = [f"{stem} is what a prompt of some length may begin with" for stem in ("a sky", "the sea", "any fire", "one")]


@pytest.fixture(scope="module")
def for_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in another build: two slots, longer steps, logits of the last token."""
    sizes = ("max_batch_size=2", "max_prefill_length=64", "logits=last")
    return tiny_chat.build(tmp_path_factory.mktemp("prompts"), *(f"llm.{each}" for each in sizes))


@pytest.fixture(scope="module")
def apart(chat_bundle: Path, for_prompts: Path) -> Iterator[Served]:
    with serving(chat_bundle, prefill_workers=1, prefill_bundle=for_prompts) as served:
        yield served


def metric(served: Served, worker: int, name: str) -> float:
    """Return `trtkit_<name>` of one worker."""
    port = served.fleet.workers[worker].health_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        (value,) = re.findall(rf"^trtkit_{name}(?:{{[^}}]*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(value)


def complete(client: OpenAI, prompt: str, **settings: float) -> str:
    asked = {"max_tokens": 12, "temperature": 0, **settings}
    return str(client.completions.create(model=MODEL, prompt=prompt, **asked).choices[0].text)  # type: ignore[call-overload]


def answer(local: LLM, prompt: str, **settings: float) -> str:
    params = SamplingParams(**{"max_tokens": 12, "temperature": 0, **settings})
    return local.generate([prompt], params)[0].outputs[0].text


def test_answers_are_the_same_and_prompts_are_not_computed_where_they_are_answered(apart: Served, local: LLM) -> None:
    client, counts = apart.client(), {}
    before = {worker: metric(apart, worker, "prompt_tokens_total") for worker in (DECODE, PREFILL)}
    seeded = {"temperature": 0.9, "top_p": 0.8, "seed": 7}
    for prompt in PROMPTS:
        assert complete(client, prompt) == answer(local, prompt)
        assert complete(client, prompt, **seeded) == answer(local, prompt, **seeded)
    for worker, count in before.items():
        counts[worker] = metric(apart, worker, "prompt_tokens_total") - count
    assert counts[DECODE] == 0
    assert metric(apart, DECODE, "imported_tokens_total") > 0 == metric(apart, PREFILL, "imported_tokens_total")
    assert counts[PREFILL] >= sum(len(local.tokenizer.encode(prompt)) for prompt in PROMPTS)
    assert complete(client, "short") == answer(local, "short")
    assert not [line for line in apart.log if "did not arrive" in line]


def test_caches_are_lent_on_the_loopback_address(apart: Served) -> None:
    pids = [member.process.pid for member in apart.fleet.workers]
    sockets = {str(each.readlink()) for pid in pids for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}
    assert listening == {"0100007F"}


def other_weights(folder: Path) -> tuple[str, ...]:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.norm.weight": 2 * weights["model.norm.weight"]}, folder / "model.safetensors")
    return ()


def other_tokenizer(folder: Path) -> tuple[str, ...]:
    """Swap the ids of two words, and nothing else."""
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return ()


def draft(folder: Path) -> tuple[str, ...]:
    save_random(folder / "heads", (SIZES["hidden_size"], byte_level().vocab_size), 2)
    return (f"llm.speculator={folder / 'heads'}",)


def int8_caches(folder: Path) -> tuple[str, ...]:
    text = folder.parent / "text.txt"
    text.write_text(" ".join(PROMPTS * 8))
    words = (
        "method=none",
        "kv_cache=int8",
        f"calibration.data={text}",
        "calibration.samples=2",
        "calibration.length=16",
    )
    return tuple(f"quantize.{word}" for word in words)


def options(*overrides: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda _: overrides


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (other_weights, "`model.safetensors` differs\nfix: build both from the same source"),
        (other_tokenizer, "`tokenizer.json` differs\nfix: build both from the same source"),
        (draft, "only one of them has an `llm.speculator`\nfix: build both with the same `llm.speculator`, or without"),
        (options("precision=fp16"), "`precision` is fp16, not fp32\nfix: build both with the same `precision`"),
        (int8_caches, "its KV caches are int8, not fp32\nfix: "),
        (options("quantize.method=int8_wo"), "`quantize` differs\nfix: build both with the same `quantize`"),
        (options("llm.max_sequence_length=64"), "its slots hold 64 tokens, those of"),
        (options("parallel.tensor=2"), "has 2 ranks,"),
    ],
    ids=["weights", "tokenizer", "draft", "precision", "kv", "quantized", "length", "ranks"],
)
def test_pairs_that_do_not_fit_are_refused_by_name(
    chat_bundle: Path, tmp_path: Path, change: Callable[[Path], tuple[str, ...]], error: str
) -> None:
    folder = tiny_chat.save_model(tmp_path / "changed")
    other = tiny_chat.build(tmp_path, f"source.hf={folder}", *change(folder))
    with pytest.raises(DeployError) as caught:
        check_prefill_bundle(open_bundle(other), open_bundle(chat_bundle))
    assert str(caught.value).startswith("--prefill-bundle: ")
    assert error in str(caught.value)


def test_the_command_of_the_docs_starts_such_workers(chat_bundle: Path) -> None:
    (commands,) = (block.text for block in blocks(DOCS / "routing.md", "bash") if "--prefill-workers" in block.text)
    program, verb, _, *words = shlex.split(commands.splitlines()[-1])
    assert (program, verb) == ("trtkit", "serve")
    options = command.make_context("serve", [str(chat_bundle), *words]).params
    assert (options["replicas"], options["prefill_workers"]) == (2, 1)


def test_a_bundle_for_prompts_needs_a_worker(chat_bundle: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("serve", str(chat_bundle), "--prefill-bundle", str(chat_bundle))
    assert ran.code == 2
    assert "--prefill-bundle needs --prefill-workers" in ran.err


@pytest.mark.slow
def test_answers_stay_right_when_the_prefill_worker_dies(chat_bundle: Path, local: LLM) -> None:
    """Dynamo's frontend refuses prompts while no prefill worker is known; the fleet starts it again."""
    with serving(chat_bundle, prefill_workers=1) as served:
        client, answers = served.client(), []
        watcher = threading.Thread(target=served.fleet.watch, daemon=True)
        watcher.start()
        assert complete(client, PROMPTS[0]) == answer(local, PROMPTS[0])
        served.fleet.workers[PREFILL].process.stop(0)

        def is_answered() -> bool:
            with contextlib.suppress(InternalServerError):
                answers.append(complete(client, PROMPTS[1]))
            return bool(answers)

        wait_until(is_answered)
        assert answers == [answer(local, PROMPTS[1])]
        assert complete(client, PROMPTS[2]) == answer(local, PROMPTS[2])


def tokens(of: EngineThread, ids: list[int], params: SamplingParams) -> list[int]:
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    of.submit(ids, params, "only", news.put)
    while (delta := news.get()).output is None:
        pass
    return list(delta.output.outputs[0].token_ids)


def params_of(loan: Any) -> dict[str, Any]:
    return {"disaggregated_params": {"loan": loan}}


def lend(prefill: Prefill, thread: EngineThread, ids: list[int]) -> Any:
    """Return the loan of a prompt that a prefill worker computes."""
    prefill.expect("a", {"token_ids": ids})
    tokens(thread, ids, SamplingParams(max_tokens=1, temperature=0))
    return prefill.result("a")["disaggregated_params"]["loan"]


@pytest.mark.parametrize("page_tokens", [None, 16], ids=["linear", "pages of 16"])
def test_pages_of_another_size_are_borrowed(chat_bundle: Path, tmp_path: Path, page_tokens: int | None) -> None:
    for_prompts = tiny_chat.build(tmp_path / "prompts", "llm.kv=paged", "llm.page_tokens=32")
    answering = chat_bundle
    if page_tokens is not None:
        answering = tiny_chat.build(tmp_path / "answers", "llm.kv=paged", f"llm.page_tokens={page_tokens}")
    check_prefill_bundle(open_bundle(for_prompts), open_bundle(answering))
    ids, prefill = list(range(10, 80)), Prefill(1 << 20, keep_s=60)  # two pages of 32 and 6 tokens
    with contextlib.ExitStack() as stack:
        first, second, alone = (
            stack.enter_context(contextlib.closing(EngineThread(bundle, step, runtime="reference")))
            for bundle, step in ((for_prompts, prefill.update), (answering, None), (answering, None))
        )
        loan = lend(prefill, first, ids)
        asyncio.run(Decode(limit_s=10).fetch({"token_ids": ids, "prefill_result": params_of(loan)}, second))
        for params in (SamplingParams(max_tokens=8, temperature=0), SamplingParams(max_tokens=8, seed=3)):
            assert tokens(second, ids, params) == tokens(alone, ids, params)
        assert second.frontend.engine.statistics.imported_tokens == 64


def broken(loan: Any) -> Iterator[Any]:
    """Yield what may reach a decode worker when all does not go well."""
    yield None
    yield {}
    yield {**loan, "nonce": "0" * 32}
    yield {**loan, "address": loan["address"] + 64}
    yield {**loan, "form": {**loan["form"], "model": "another"}}
    yield {**loan, "form": {**loan["form"], "tokens": loan["form"]["tokens"] - 1}}


def test_a_loan_that_does_not_arrive_is_computed_again(llm_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    ids, decode = list(range(10, 50)), Decode(limit_s=10)
    prefill = Prefill(1 << 20, keep_s=60)
    thread = EngineThread(llm_bundle, prefill.update, runtime="reference")
    other = EngineThread(llm_bundle, runtime="reference")

    greedy = SamplingParams(max_tokens=8, temperature=0)
    want, statistics = tokens(thread, ids, greedy), other.frontend.engine.statistics
    for wrong in broken(lend(prefill, thread, ids)):
        asked = {"token_ids": ids, "prefill_result": params_of(wrong)}
        asyncio.run(decode.fetch(asked, other))
    told = [record.message for record in caplog.records if record.name == "trtkit.dynamo"]
    assert len(told) == 5
    assert all("a prompt of 40 tokens is computed here, its cache did not arrive" in line for line in told)
    assert tokens(other, ids, greedy) == want
    assert (statistics.imported_tokens, statistics.prompt_tokens) == (0, len(ids))
    ids[0] = 9
    loan = lend(prefill, thread, ids)
    asyncio.run(decode.fetch({"token_ids": ids, "prefill_result": params_of(loan)}, other))
    assert tokens(other, ids, greedy) == tokens(thread, ids, greedy)
    assert statistics.imported_tokens == len(ids) - 1
    assert prefill.result("b") == {"disaggregated_params": {"loan": None}}
    thread.close()
    other.close()
