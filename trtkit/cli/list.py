"""`trtkit list`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.options import json_option, run_options
from trtkit.cli.visible import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

EPILOG = """\b
Examples:
  trtkit list
  trtkit list engines --json
  trtkit list --families
  trtkit list --published
  trtkit list --clean --yes"""


@dataclass(frozen=True)
class ConfigRow:
    """A shipped config.

    missing: packages and folders that it needs and that are not installed. fix: how to get them.
    """

    name: str
    description: str
    missing: tuple[str, ...]
    fix: str


@dataclass(frozen=True)
class BundleRow:
    """A bundle. verified: its verdict, empty if it was never verified. error: why it cannot be read."""

    path: str
    precision: str = ""
    size_bytes: int = 0
    verified: str = ""
    error: str = ""


@dataclass(frozen=True)
class CacheRow:
    """The build cache."""

    path: str
    bundles: int
    size_bytes: int


@click.command(epilog=EPILOG)
@click.argument("folder", type=click.Path(path_type=Path), default=Path("bundles"), shell_complete=completions.folders)
@click.option("--families", is_flag=True, help="List the decoder families instead, by `model_type`.")
@click.option("--published", is_flag=True, help="List the published models that `plan` knows by name instead.")
@click.option("--clean", is_flag=True, help="Empty the build cache instead; bundles elsewhere stay.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before cleaning.")
@json_option
@run_options
def command(folder: Path, families: bool, published: bool, clean: bool, yes: bool, as_json: bool) -> None:
    """List shipped configs, the bundles in FOLDER (default: bundles), and the build cache."""
    if families or published:
        names = _families() if families else _published()
        echo(json.dumps(names) if as_json else "\n".join(names))
        return
    cache = _cache()
    if clean:
        _clean(cache, yes=yes, as_json=as_json)
        return
    configs, bundles = list(_configs()), list(_bundles(folder))
    if as_json:
        rows = {"configs": [*map(asdict, configs)], "bundles": [*map(asdict, bundles)], "cache": asdict(cache)}
        click.echo(json.dumps(rows))
        return
    from trtkit.cli.tables import show

    show([_configs_table(configs), _bundles_table(folder, bundles) if bundles else f"no bundles in {folder}"])
    echo(f"\n{_cache_text(cache)}")


def _families() -> list[str]:
    from trtkit.models.registry import known_families

    return sorted(known_families())


def _published() -> list[str]:
    from trtkit.planning.source import architectures

    return list(architectures())


def _configs() -> Iterator[ConfigRow]:
    from trtkit.config import load_config
    from trtkit.config.load import shipped_configs
    from trtkit.sources.fetch import needs

    for name in shipped_configs():
        config = load_config(name)
        missing = [need for need in needs(config) if not need.is_present]
        names = tuple(need.name for need in missing)
        fix = f"trtkit fetch {name}" if all(need.command for need in missing) else f"needs {', '.join(names)}"
        yield ConfigRow(name, config.description, names, fix if missing else "")


def _bundles(folder: Path) -> Iterator[BundleRow]:
    """Yield `folder` if it is a bundle, else the bundles in it."""
    from trtkit.builder.cache import size_bytes
    from trtkit.bundle.bundle import is_bundle, open_bundle
    from trtkit.errors import BundleError

    if not folder.is_dir() and folder != Path("bundles"):
        raise BundleError("no such folder", str(folder), "give a folder that holds bundles")
    for path in [folder] if is_bundle(folder) else sorted(filter(is_bundle, folder.glob("*"))):
        try:
            manifest = open_bundle(path).manifest
        except BundleError as error:
            yield BundleRow(str(path), error=error.what)
            continue
        quantized = manifest.config.quantize
        method = f", {quantized.method}" if quantized is not None else ""
        verified = manifest.verify.verdict if manifest.verify is not None else ""
        yield BundleRow(str(path), f"{manifest.config.precision}{method}", size_bytes(path), verified)


def _cache() -> CacheRow:
    from trtkit.builder.cache import cached_bundles, size_bytes
    from trtkit.files import cache_folder

    return CacheRow(str(cache_folder()), len(cached_bundles()), size_bytes(cache_folder()))


def _clean(cache: CacheRow, *, yes: bool, as_json: bool) -> None:
    """Empty the cache after the user confirms."""
    from trtkit.builder.cache import clear_cache

    if not yes:
        if as_json:
            raise click.UsageError("--clean --json cannot ask: add --yes")
        click.confirm(f"{_cache_text(cache)}; remove all?", abort=True, err=True)
    clear_cache()
    if as_json:
        click.echo(json.dumps({"removed": asdict(cache)}))
    else:
        echo(f"removed {_bundle_count(cache)}")


def _configs_table(rows: list[ConfigRow]) -> Table:
    from trtkit.cli.tables import listing

    table = listing("shipped configs", "name", "description", "to use it")
    for row in rows:
        table.add_row(row.name, row.description, row.fix or "ready")
    return table


def _bundles_table(folder: Path, rows: list[BundleRow]) -> Table:
    from trtkit.cli.tables import listing
    from trtkit.report.tables import size_text

    table = listing(f"bundles in {folder}", "path", "precision", "size", "verified")
    for row in rows:
        size = "" if row.error else size_text(row.size_bytes)
        table.add_row(row.path, row.precision, size, row.error or row.verified or "not verified")
    return table


def _cache_text(cache: CacheRow) -> str:
    return f"build cache {cache.path}: {_bundle_count(cache)}"


def _bundle_count(cache: CacheRow) -> str:
    from trtkit.report.tables import size_text

    return f"{cache.bundles} bundle{'s' * (cache.bundles != 1)}, {size_text(cache.size_bytes)}"
