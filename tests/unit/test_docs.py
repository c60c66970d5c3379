"""The generated parts of the docs say what the code does."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("config.md", "config_reference"),
        ("deploy-options.md", "deploy_options"),
        ("manifest.schema.json", "manifest_schema"),
    ],
)
def test_generated_docs_are_those_that_the_code_gives(file: str, function: str) -> None:
    generate = runpy.run_path(str(DOCS / "generate.py"))
    assert (DOCS / file).read_text(encoding="utf-8") == generate[function](), "run `python docs/generate.py`"


def test_config_reference_lists_every_key_of_the_top_level() -> None:
    from trtkit.config import ModelConfig

    text = (DOCS / "config.md").read_text(encoding="utf-8")
    assert [key for key in ModelConfig.model_fields if f"| `{key}` |" not in text] == []


def test_tables_of_routes_are_those_of_the_results() -> None:
    import json

    from benchmarks.routes import README, short_table, table

    results = json.loads((DOCS.parent / "benchmarks/results/routes.json").read_text(encoding="utf-8"))["routes"]
    assert short_table(results) in README.read_text(encoding="utf-8"), "run `python -m benchmarks.routes`"
    assert table(results) in (DOCS / "hybrids.md").read_text(encoding="utf-8"), "run `python -m benchmarks.routes`"
