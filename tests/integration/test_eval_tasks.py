"""`trtkit eval --tasks`: the harness's requests are computed as in transformers, and its own model agrees."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from trtkit import LLM, evaluate_tasks
from trtkit.errors import GenerationError, RequestError
from trtkit.verification.scoring import Question, ScoredContinuation, answer, answer_params, max_scored, score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.runtime.text import Tokenizer

    Run = Callable[..., Ran]

HARNESS = pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="the extra `lm-eval` is not installed")
TEXTS = ["Gravity is a fundamental concept. ", "A person walks", "one two three " * 20, "é 漢字 and more"]
TASKS = {
    "choices": """\
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
""",
    "texts": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
""",
    "answers": """\
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["qq", "zz"], max_gen_toks: 8}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
}


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(tiny_folder / "bundle", runtime="reference") as llm:
        yield llm


@pytest.fixture(scope="module")
def transformer(tiny_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_folder / "model", dtype=torch.float32).eval()


def likelihood(model: Any, context: list[int], tokens: list[int]) -> tuple[float, bool]:
    """Return what transformers gives: log-likelihood, and whether each token is the likeliest."""
    ids = torch.tensor([[*context, *tokens]])
    with torch.inference_mode():
        rows = torch.log_softmax(model(ids).logits[0, len(context) - 1 : -1].double(), -1)
    chosen = rows[torch.arange(len(tokens)), torch.tensor(tokens)]
    return float(chosen.sum()), bool((rows.argmax(-1) == torch.tensor(tokens)).all())


def test_likelihoods_are_those_of_transformers(
    tiny: LLM, transformer: Any, tiny_tokenizer: Tokenizer, greedy: Callable[[list[int], int], list[int]]
) -> None:
    texts = [tiny_tokenizer.encode(text)[:40] for text in TEXTS]
    pairs = list(itertools.pairwise(texts))
    prompt = tiny_tokenizer.encode("The capital of France")
    pairs += [(prompt, greedy(prompt, 3)), (prompt[:1], prompt[1:2])]
    done: list[int] = []
    found = score(tiny, [ScoredContinuation(*pair) for pair in pairs], lambda: done.append(1))
    assert len(done) == len(pairs)
    for each, pair in zip(found, pairs, strict=True):
        log, is_greedy = likelihood(transformer, *pair)
        assert each.log == pytest.approx(log, rel=1e-5)
        assert each.is_greedy == is_greedy
    assert [each.is_greedy for each in found[-2:]] == [True, False]


def test_a_context_that_is_too_long_loses_its_beginning(tiny: LLM, transformer: Any) -> None:
    assert max_scored(tiny) == 95
    context, tokens = [5 + index % 50 for index in range(130)], [7, 8, 9]
    (found,) = score(tiny, [ScoredContinuation(context, tokens)])
    assert found.log == pytest.approx(likelihood(transformer, context[-93:], tokens)[0], rel=1e-5)


@pytest.mark.parametrize(
    ("context", "tokens", "what"),
    [
        ([1, 2], [], "0 tokens after 2; a slot holds 96"),
        ([], [1], "1 tokens after 0; a slot holds 96"),
        ([1], [2] * 96, "96 tokens after 1; a slot holds 96"),
    ],
)
def test_what_cannot_be_scored_is_refused(tiny: LLM, context: list[int], tokens: list[int], what: str) -> None:
    with pytest.raises(RequestError) as refused:
        score(tiny, [ScoredContinuation([1], [2]), ScoredContinuation(context, tokens)])
    assert (refused.value.what, refused.value.where) == (what, "continuation 1")


def test_answers_are_those_of_transformers(
    tiny: LLM, tiny_tokenizer: Tokenizer, greedy: Callable[[list[int], int], list[int]]
) -> None:
    prompts = [tiny_tokenizer.encode(text) for text in (*TEXTS, "x " * 200)]
    params = answer_params({"until": [], "max_gen_toks": 6}, 0)
    found = answer(tiny, [Question(prompt, params) for prompt in prompts])
    for text, prompt in zip(found, prompts, strict=True):
        expected = [token for token in greedy(prompt[-89:], 6) if token not in tiny_tokenizer.eos_token_ids]
        assert text == tiny_tokenizer.decode(expected)
    stop = found[0][1:3]
    (stopped,) = answer(tiny, [Question(prompts[0], answer_params({"until": stop, "max_gen_toks": 6}, 0))])
    assert stopped == found[0].partition(stop)[0]


def test_a_tasks_settings_are_read_and_unknown_ones_refused() -> None:
    greedy = answer_params({"until": ["\n", ""], "do_sample": False, "temperature": 0.7}, 3)
    assert (greedy.temperature, greedy.max_tokens, greedy.stop, greedy.seed) == (0, 256, ("\n",), 3)
    drawn = answer_params({"until": "x", "do_sample": True, "top_p": 0.9, "top_k": 40, "max_new_tokens": 5}, 0)
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.max_tokens, drawn.stop) == (1, 0.9, 40, 5, ("x",))
    assert answer_params({"temperature": 0.5}, 0).temperature == 0.5
    with pytest.raises(RequestError, match="the task generates with `num_beams`, which has no counterpart here"):
        answer_params({"num_beams": 4}, 0)


def test_an_engine_of_last_logits_is_read_by_the_reference_executor(
    tiny_folder: Path, tmp_path: Path, tiny: LLM
) -> None:
    from tests.support import tiny_chat

    bundle = tiny_chat.build(tmp_path, "llm.logits=last", "llm.batching=separate")
    pair = ScoredContinuation([5, 6, 7], [8, 9])
    with LLM(bundle, needs_all_logits=True) as llm:
        assert score(llm, [pair])[0].log == pytest.approx(score(tiny, [pair])[0].log, rel=1e-5)
    with LLM(bundle) as llm, pytest.raises(RequestError, match="logits of the last token only"):
        score(llm, [pair])
    with pytest.raises(GenerationError, match="logits of the last token only"):
        LLM(bundle, runtime="tensorrt", needs_all_logits=True)


def test_without_the_extra_it_is_named(
    tiny_bundle: Path, refuses: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "trtkit.verification.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    text = refuses("eval", tiny_bundle, "--tasks", "arc_easy")
    assert text.startswith("this needs `lm-eval`, which is not installed\nfix: pip install")
    assert "lm-eval]'" in text


def test_options_that_do_not_go_together(tiny_bundle: Path, trtkit: Run) -> None:
    for words in (["--limit", 3], ["--tasks", "a", "--questions"], ["--tasks", "a", "--images", "."]):
        assert trtkit("eval", tiny_bundle, *words).code == 2


def write_tasks(folder: Path) -> Path:
    """Write tasks of this file, over a file of questions."""
    rows = [
        {"question": text.strip(), "choices": [" is", " and more words", " 漢字"], "answer": index % 3}
        for index, text in enumerate(TEXTS)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tasks = folder / "tasks"
    tasks.mkdir()
    for name, text in TASKS.items():
        data = (
            f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}\ntest_split: test\n"
        )
        (tasks / f"{name}.yaml").write_text(f"task: trtkit_{name}\n{data}{text}")
    return tasks


@HARNESS
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="`lm-eval[hf]` is not installed")
def test_the_harness_measures_as_with_its_own_model(
    tiny: LLM, transformer: Any, tiny_tokenizer: Tokenizer, tmp_path: Path, trtkit: Run, tiny_bundle: Path
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from trtkit.verification.harness import HarnessModel

    folder = write_tasks(tmp_path)
    names = [f"trtkit_{name}" for name in TASKS]
    theirs = HFLM(pretrained=transformer, tokenizer=tiny_tokenizer.hf, max_length=95, batch_size=1)
    results = [
        simple_evaluate(model, tasks=names, task_manager=TaskManager(include_path=str(folder)), log_samples=True)
        for model in (HarnessModel(tiny), theirs)
    ]
    for name in names:
        ours, others = (result["samples"][name] for result in results)
        assert len(ours) == len(others) == len(TEXTS)
        for one, other in zip(ours, others, strict=True):
            assert one["arguments"] == other["arguments"]
            assert flat(one["resps"]) == pytest.approx(flat(other["resps"]), rel=1e-5)
            assert text_of(one["resps"]) == text_of(other["resps"])
    figures = {name: dict(results[0]["results"][name]) for name in names}
    printed = trtkit("eval", tiny_bundle, "--tasks", ",".join(names), "--include-path", folder, "--json").json()
    for each in printed["measures"]:
        assert each["value"] == pytest.approx(figures[each["task"]][f"{each['metric']},{each['filter']}"])
        assert each["samples"] == len(TEXTS)
    assert {each["metric"] for each in printed["measures"]} == {"acc", "acc_norm", "word_perplexity", "exact_match"}
    limited = evaluate_tasks(tiny_bundle, ["trtkit_choices"], include_path=folder, limit=2)
    assert [each.samples for each in limited.measures] == [2, 2]


@HARNESS
def test_tasks_that_are_not_there_are_named(tiny_bundle: Path, refuses: Callable[..., str], tmp_path: Path) -> None:
    folder = write_tasks(tmp_path)
    assert "unknown task `trtkit_choises`\nfix: did you mean `trtkit_choices`" in refuses(
        "eval", tiny_bundle, "--tasks", "trtkit_choises", "--include-path", folder
    )
    (tmp_path / "rows.jsonl").unlink()
    assert "the data of the tasks cannot be read: " in refuses(
        "eval", tiny_bundle, "--tasks", "trtkit_choices", "--include-path", folder
    )


def flat(responses: Any) -> list[float]:
    """Return the numbers in nested lists."""
    if isinstance(responses, (list, tuple)):
        return [number for each in responses for number in flat(each)]
    return [float(responses)] if isinstance(responses, (int, float)) else []


def text_of(responses: Any) -> list[str]:
    """Return the texts in nested lists."""
    if isinstance(responses, (list, tuple)):
        return [text for each in responses for text in text_of(each)]
    return [responses] if isinstance(responses, str) else []
