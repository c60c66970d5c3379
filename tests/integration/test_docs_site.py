"""The docs' site builds without warnings, makes no external requests, and its search works from files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
import yaml

import trtkit
from tests.support.docs import DOCS, ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

# Tags whose address a browser fetches by itself, and the attribute that has it.
_FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}

EDIT = "https://git.example/trtkit/edit/main/docs/"


class Fetched(HTMLParser):
    """Collects what a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes |= set(values.get("class", "").split())
        if tag in _FETCHED and values.get("rel") != "canonical":
            self.addresses.append(values.get(_FETCHED[tag], ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, in strict mode: a warning fails, unless `--quiet` hides it from the count."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TRTKIT_EDIT_URI": EDIT}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_ask_no_other_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        found = Fetched()
        found.feed(page.read_text(encoding="utf-8"))
        assert [each for each in found.addresses if re.match(r"(\w+:)?//", each)] == [], page.name
        assert "mermaid" not in found.classes  # the theme would fetch its library
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:\w+:)?//[^)'\"]*", style.read_text(encoding="utf-8")) == []


def test_the_list_of_pages_leads_to_pages(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 60
    assert [link for link in links if not (site / link).is_file()] == []


def test_every_command_and_class_has_its_section(site: Path) -> None:
    from trtkit.cli.main import COMMANDS

    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert [name for name in [*COMMANDS, "bench diff", "plugins check"] if f">trtkit {name}<" not in commands] == []
    python = (site / "reference/python.html").read_text(encoding="utf-8")
    names = ("LLM.generate", "AsyncLLM.abort", "SamplingParams", "open_model")
    assert [name for name in names if f'id="trtkit.{name}"' not in python] == []
    networks = (site / "reference/networks.html").read_text(encoding="utf-8")
    names = ("graph.Graph.constant", "ops.norm.rms_norm", "ops.attention.attention")
    assert [name for name in names if f'id="trtkit.network.{name}"' not in networks] == []


def test_the_index_leads_to_every_public_name(site: Path) -> None:
    index = (site / "reference/index.html").read_text(encoding="utf-8")
    public = [name for name in trtkit.__all__ if name != "__version__"]
    assert [name for name in public if f'href="python.html#trtkit.{name}"' not in index] == []
    assert 'href="networks.html#trtkit.network.ops.norm.rms_norm"' in index


def test_an_argument_has_its_type_and_meaning(site: Path) -> None:
    """Of a docstring's `out: the bundle's folder, ...`; types lead to their classes."""
    text = (site / "reference/python.html").read_text(encoding="utf-8")
    build = text[text.index('id="trtkit.build"') : text.index('id="trtkit.verify"')]
    words = re.sub(r"<[^>]+>|\s+", " ", build)
    assert re.search(
        r"out \( str \| Path \| None ,.{1,20}default: None \) [^ ]+ the bundle's folder", " ".join(words.split())
    )
    assert 'href="#trtkit.bundle.bundle.Bundle"' in build


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("verify.html", "docs/verify.md"),
        ("plugins.html", "plugins/README.md"),
        ("plugins/paged_attention.html", "plugins/paged_attention/README.md"),
        ("examples/ocr.html", "examples/ocr/README.md"),
        ("reference/commands.html", None),
        ("config.html", None),
    ],
)
def test_a_page_can_be_edited_where_it_is_written(site: Path, page: str, file: str | None) -> None:
    links = re.findall(r'<a href="([^"]*)"[^>]*rel="edit"', (site / page).read_text(encoding="utf-8"))
    assert links == ([] if file is None else [EDIT.removesuffix("docs/") + file])


def test_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html"}
    assert pages <= places


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_search_finds_in_a_browser_without_a_server(site: Path, tmp_path: Path) -> None:
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    words += ["--timeout=60000", "--dump-dom", f"{(site / 'index.html').as_uri()}?q=tolerance"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert re.search(r"\d+ matching documents", done.stdout)
    assert "Uncaught" not in done.stderr


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_yaml_of_a_page_is_yaml(page: Path) -> None:
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block.text), dict)
