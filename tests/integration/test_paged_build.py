"""Bundles with paged caches: built, verified, run with little memory, and refused if pages do not apply."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from tests.support import tiny_chat
from tests.support.decoder_cases import CASES
from tests.support.engine_decoders import config_of
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.llm import LlmOptions
from trtkit.errors import ConfigError, RequestError
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution.cache_size import bytes_of_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

PROMPTS = [f"{word} " * count for word, count in (("one", 1), ("two", 9), ("three", 4), ("four", 12))]
PARAMS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.build(tmp_path_factory.mktemp("paged"), "llm.kv=paged", "llm.page_tokens=16")


def gib_of(bundle: Path, pages: int) -> float:
    """Return the memory that holds so many pages."""
    inputs = [record.spec for record in open_bundle(bundle).manifest.stages[-1].inputs]
    return (pages + 0.5) * bytes_of_page(inputs) / 2**30


def test_a_paged_bundle_verifies_and_generates_with_little_memory(
    bundle: Path, tiny_folder: Path, trtkit: Callable[..., Ran]
) -> None:
    verified = trtkit("verify", str(bundle))
    assert verified.code == 0, verified.err
    with LLM(tiny_folder / "bundle", runtime="reference") as linear:
        expected = [output.outputs[0].token_ids for output in linear.generate(PROMPTS, PARAMS)]
    with LLM(bundle, runtime="reference", cache_gib=gib_of(bundle, 9)) as paged:
        outputs = paged.generate(PROMPTS, PARAMS)
        pages = paged.frontend.execution.cache.pages
        assert pages is not None
        assert (pages.pages, pages.held) == (9, 0)
        assert paged.statistics.preemptions > 0
    assert [output.outputs[0].token_ids for output in outputs] == expected


def test_a_prompt_that_no_memory_holds_is_refused(bundle: Path) -> None:
    with LLM(bundle, runtime="reference", cache_gib=gib_of(bundle, 3)) as paged:
        with pytest.raises(RequestError, match=r"the prompt has \d+ tokens; a slot holds 32"):
            paged.generate("four " * 20, PARAMS)
        with pytest.raises(RequestError, match=r"the caches have 2 pages of 16 tokens for 3 beams"):
            paged.generate("one", SamplingParams(max_tokens=4, num_beams=3))


def test_memory_is_refused_where_it_means_nothing(bundle: Path, tiny_folder: Path, trtkit: Callable[..., Ran]) -> None:
    linear = trtkit("generate", str(tiny_folder / "bundle"), "x", "--cache-gib", "1")
    assert linear.code == 2
    assert "--cache-gib: the engine's caches are linear: each slot has its own memory" in linear.err
    assert "fix: build with `--set llm.kv=paged`, or limit the slots" in linear.err
    too_little = trtkit("generate", str(bundle), "x", "--cache-gib", "1e-9")
    assert too_little.code == 2
    assert "--cache-gib: 1e-09 GiB are too few for 2 pages of" in too_little.err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"page_tokens": 16}, "`page_tokens` does not apply to `kv: linear`: set `kv: paged`, or leave it out"),
        ({"kv": "paged", "kv_window": "used"}, "`kv_window` does not apply to `kv: paged`"),
        (
            {"kv": "paged", "max_sequence_length": 601},
            "max_sequence_length 601 is not a multiple of a page's tokens, 16",
        ),
        ({"kv": "paged", "page_tokens": 17}, "Input should be 16, 32, 64 or 128"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(error)):
        LlmOptions.model_validate(options)


def test_a_model_without_attention_has_no_pages(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "mamba2")
    config = config_of(case, tmp_path, kv="paged", page_tokens=16)
    with pytest.raises(ConfigError, match=r"llm.kv.*does not apply to a model without attention"):
        build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False)
