"""What docs/features.md lists as working works; what it lists as refused is refused."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.features import FEATURES, PAGE, Subject, first_cases, first_vlms
from tests.selection import slow_unless
from tests.support import tiny_llm
from tests.support.decoder_cases import CASES
from trtkit.builder.build import build_bundle
from trtkit.jobs.runner import new_runner
from trtkit.verification.jobs import VerifySettings
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = list(first_cases())
SAMPLE = random.Random(5).sample(FAMILIES, 6)


def cells(family: str) -> list[str]:
    """Return the page's row of a family."""
    (row,) = re.findall(rf"^\| `{family}` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return str(row).split(" | ")


def refusal(number: str) -> str:
    """Return the refusal that a cell names; "" for none."""
    if number == "·":
        return ""
    (text,) = re.findall(rf"^{number}\. (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return str(text)


@pytest.mark.parametrize("family", slow_unless(SAMPLE.__contains__, FAMILIES))
def test_a_family_has_the_features_that_the_page_names(family: str, tmp_path: Path) -> None:
    subject = Subject.of(first_cases()[family], tmp_path)
    assert [refusal(cell) for cell in cells(family)] == [subject.refusal([each]) for each in FEATURES.values()]


VLMS = first_vlms()


@pytest.mark.parametrize("model_type", slow_unless(("llava", "gemma3", "qwen3_vl_moe").__contains__, list(VLMS)))
def test_a_model_that_takes_images_has_the_features_that_the_page_names(model_type: str, tmp_path: Path) -> None:
    subject = Subject.with_images(VLMS[model_type], tmp_path)
    assert [refusal(cell) for cell in cells(model_type)] == [subject.refusal([each]) for each in FEATURES.values()]


VERIFIED = ("llama", "qwen3_next", "gemma2")
PAIRS = list(itertools.combinations(FEATURES, 2))


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("model_type", ["gemma3", "llava", "qwen3_vl"])
def test_a_feature_of_a_model_that_takes_images_verifies(model_type: str, feature: str, tmp_path: Path) -> None:
    subject = Subject.with_images(VLMS[model_type], tmp_path)
    if subject.refusal([FEATURES[feature]]):
        return
    config = subject.with_features([FEATURES[feature]])
    bundle = build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False).bundle
    assert verify_bundle(bundle, VerifySettings(corners=True), new_runner()).passed


@pytest.mark.slow
@pytest.mark.parametrize(("family", "one", "other"), [(family, *pair) for family in VERIFIED for pair in PAIRS])
def test_two_features_that_work_together_verify(family: str, one: str, other: str, tmp_path: Path) -> None:
    """Other families' pairs are tried as networks only."""
    case = next(case for case in CASES if case.model_type == family)
    vocab_size = len(tiny_llm.tokenizer())
    subject = Subject.of(replace(case, config={**case.config, "vocab_size": vocab_size}), tmp_path)
    features = [FEATURES[one], FEATURES[other]]
    if subject.refusal(features):
        return
    bundle = build_bundle(subject.with_features(features), tmp_path / "bundle", new_runner(), use_cache=False).bundle
    assert verify_bundle(bundle, VerifySettings(corners=True), new_runner()).passed
