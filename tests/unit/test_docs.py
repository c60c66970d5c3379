"""The generated parts of the docs say what the code does."""

import re
import runpy
from pathlib import Path

import pytest

from tests.support.docs import first_missing

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("compare.schema.json", "compare_schema"),
        ("config.md", "config_reference"),
        ("deploy-options.md", "deploy_options"),
        ("generation-settings.md", "generation_settings"),
        ("grafana.json", "grafana_board"),
        ("llms.txt", "llms_txt"),
        ("manifest.schema.json", "manifest_schema"),
        ("quantization.md", "quantization"),
        ("quantization-hybrids.md", "quantization_hybrids"),
        ("quantization-vision.md", "quantization_vision"),
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

    from benchmarks.routes import table

    results = json.loads((DOCS.parent / "benchmarks/results/routes.json").read_text(encoding="utf-8"))["routes"]
    assert table(results) in (DOCS / "hybrids.md").read_text(encoding="utf-8"), "run `python -m benchmarks.routes`"


def test_the_table_of_quantized_vision_models_is_that_of_the_results() -> None:
    import json

    from benchmarks.quantize_vision import DOCUMENT, table

    results = json.loads((DOCS.parent / "benchmarks/results/quantize_vision.json").read_text(encoding="utf-8"))
    found = DOCUMENT.read_text(encoding="utf-8")
    assert table(results["models"]) in found, "run `python -m benchmarks.quantize_vision`"


def test_the_tables_of_ternary_models_are_those_of_the_results() -> None:
    import json

    from benchmarks.ternary import models_table, storage_table

    results = json.loads((DOCS.parent / "benchmarks/results/ternary.json").read_text(encoding="utf-8"))
    page = (DOCS / "distillation.md").read_text(encoding="utf-8")
    for table in (models_table(results["models"]), storage_table(results["storage"])):
        assert table in page, "run `python -m benchmarks.ternary`"


PRINTED = "built bundles/x\nengine    9.4 MiB, 100 layers\ntook 1.5 s\n"


@pytest.mark.parametrize(
    ("shown", "is_measured", "missing"),
    [
        ("built bundles/x\nengine    9.4 MiB, 100 layers\n", False, None),
        ("engine    9.4 MiB, 100 layers\n", False, None),  # may begin anywhere
        ("built bundles/x\n...\ntook 1.5 s\n", False, None),
        ("built bundles/x\ntook 1.5 s\n", False, "took 1.5 s"),  # what stands between is not shown
        ("took 1.5 s\n...\nbuilt bundles/x\n", False, "built bundles/x"),
        ("engine    9.5 MiB, 100 layers\n", False, "engine    9.5 MiB, 100 layers"),
        ("engine  12 MiB, 7 layers\n", True, None),
        ("engine  12 MiB, 7 nodes\n", True, "engine  12 MiB, 7 nodes"),
    ],
)
def test_what_a_page_shows_is_compared(shown: str, is_measured: bool, missing: str | None) -> None:
    assert first_missing(shown, PRINTED, is_measured=is_measured) == missing


@pytest.mark.parametrize(
    ("file", "phrase", "feature"),
    [
        ("migration/tensorrt-llm.md", "no OpenAI endpoint", "trtkit/cli/serve.py"),
        ("migration/tensorrt-llm.md", "none: cache sizes follow", "trtkit/llm/cache/page_tables.py"),
        ("tensorrt-llm-names.md", "caches are linear", "trtkit/llm/cache/page_tables.py"),
        ("comparison.md", "trees of guesses", "trtkit/llm/engine/drafts.py"),
        ("comparison.md", "paged attention without a copy", "plugins/paged_attention/kernel.py"),
        ("comparison.md", "quantization-aware training", "docs/distillation.md"),
        ("generate.md", "pip install 'trtkit[", "pyproject.toml"),
        ("openai.md", "pip install 'trtkit[", "pyproject.toml"),
    ],
)
def test_pages_do_not_say_that_a_feature_is_missing_which_is_there(file: str, phrase: str, feature: str) -> None:
    """And name no package of a registry that trtkit is not in."""
    assert (DOCS.parent / feature).is_file()
    assert phrase not in (DOCS / file).read_text(encoding="utf-8")


def test_the_picture_of_the_demo_shows_its_commands_and_asks_no_host() -> None:
    """Each command of the picture is one of examples/demo.sh; what is in it was printed, not written."""
    shown = runpy.run_path(str(DOCS / "record.py"))["SHOWN"]
    picture = (DOCS / "images" / "demo.svg").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]*>", "", picture).replace("&#160;", " ")
    demo = (DOCS.parent / "examples" / "demo.sh").read_text(encoding="utf-8")
    assert [start for start in shown if start not in text or start not in demo] == []
    assert re.findall(r"(?:url\(|href=\")['\"]?https?:", picture) == []
