"""What MkDocs does besides: pages written from the code, and links that lead out of docs/ made to work in the site.

Pages are known by where they are in the repository, so a link means the same there and here. A README of examples/ or
plugins/ becomes a page; any other file that a page links to is copied under source/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import reference
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_WRITTEN = {"reference/commands.md": reference.commands, "reference/index.md": reference.index}
_FOUND = (*ROOT.glob("examples/**/README.md"), *ROOT.glob("plugins/**/README.md"))
_READMES = sorted(str(readme.parent.relative_to(ROOT)) for readme in _FOUND)
_GENERATED = ("config.md", "conformance.md", "custom-ops.md", "deploy-options.md", "gpu.md")
_LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)]*)?\))")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written from the code, those of other folders, and the files that pages link to."""
    for path, write in _WRITTEN.items():
        files.append(File.generated(config, path, content=write()))
    for folder in _READMES:
        files.append(File.generated(config, f"{folder}.md", abs_src_path=str(ROOT / folder / "README.md")))
    if (index := files.get_file_from_path("llms.txt")) is not None:  # whose links are to files of the repository
        files.remove(index)
        files.append(File.generated(config, "llms.txt", content=_of_site(index.content_string)))
    wanted = {target for file in files.documentation_pages() for target in _targets(file)}
    for target in sorted(wanted):
        if target.startswith("source/") and (ROOT / target[7:]).is_file():
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target[7:])))
    return files


def _of_site(text: str) -> str:
    """Return llms.txt with links to pages of the site."""
    return _LINK.sub(lambda link: f"{link[1]}{_in_site('llms.txt', link[2]).removesuffix('.md')}.html{link[3]}", text)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    own = page.file.src_uri
    return _outside_code(markdown, lambda text: _LINK.sub(lambda link: _relinked(own, link), text))


def on_pre_page(page: Page, config: MkDocsConfig, **_: object) -> Page:
    """Lead the edit link of a README to where it is; a page that the code writes has none."""
    folder = page.file.src_uri.removesuffix(".md")
    if config.edit_uri and folder in _READMES:
        page.edit_url = urljoin(config.edit_uri, f"../{folder}/README.md")
    elif page.file.src_uri in _GENERATED:
        page.edit_url = None
    return page


def _targets(file: File) -> set[str]:
    """Return where a page's links lead in the site."""
    text = _CODE.sub("", file.content_string)
    return {_in_site(file.src_uri, link.group(2)) for link in _LINK.finditer(text)}


def _relinked(own: str, link: re.Match[str]) -> str:
    target = _in_site(own, link.group(2))
    return link.group(1) + posixpath.relpath(target, posixpath.dirname(own) or ".") + link.group(3)


def _in_site(page: str, target: str) -> str:
    """Return where in the site a link of `page` leads."""
    folder = page.removesuffix(".md") if page.removesuffix(".md") in _READMES else posixpath.dirname(f"docs/{page}")
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.removesuffix("/README.md") in _READMES:
        return f"{path.removesuffix('/README.md')}.md"
    return path[5:] if path.startswith("docs/") else f"source/{path}"


def _outside_code(markdown: str, change: object) -> str:
    """Apply `change` to what stands outside fenced code."""
    assert callable(change)
    parts, end = [], 0
    for fence in _CODE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])
