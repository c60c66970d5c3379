"""The manifest of the page on operations is valid, and its table names metrics that the board queries too."""

from __future__ import annotations

import re

import kubernetes_validate
import yaml

from tests.support.docs import DOCS, blocks, queried_metrics

PAGE = DOCS / "operations.md"


def test_the_pod_that_fills_a_volume_is_valid() -> None:
    (block,) = blocks(PAGE, "yaml")
    kubernetes_validate.validate(yaml.safe_load(block.text), "1.33", strict=True)


def test_metrics_of_the_page_are_on_the_board() -> None:
    named = set(re.findall(r"`((?:dynamo|nv|trtkit)_\w+)`", PAGE.read_text(encoding="utf-8")))
    queried = {name.removesuffix("_bucket") for row in (0, 1) for name in queried_metrics(row)}
    assert len(named) > 7
    assert named - queried == set()
