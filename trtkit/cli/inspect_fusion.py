"""`trtkit inspect --fusion`: the kernels that a bundle's layers became."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from trtkit.cli.measured_layers import check_layers, measured_of, read_layers
from trtkit.cli.pages import check_page, page_origin
from trtkit.cli.say import say
from trtkit.files import write_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from trtkit.bundle.bundle import Bundle
    from trtkit.network.fusion import Fusion


def show_fusion(bundle: Bundle, html: Path | None, measured: Sequence[Path], *, as_json: bool, quiet: bool) -> None:
    """Print which layers became which kernels; `html`: write a page, too. measured: JSON files of verify and bench."""
    from trtkit.cli.progress import show_progress
    from trtkit.engine.fusion import bundle_fusions

    check_page(html)
    reports = [read_layers(path) for path in measured]
    with show_progress(quiet=quiet or as_json) as runner:
        results = list(bundle_fusions(bundle, runner))
    fusions = [fusion for fusion, _ in results]
    if html is not None:
        from trtkit.report.fusion import fusion_page

        # Of a language model's bundle, the model alone is measured; other networks have layers of the same names.
        stages = bundle.manifest.stages[-1:] if bundle.manifest.decoder is not None else bundle.manifest.stages
        names = {stage.name for stage in stages}
        own = [(fusion, [each.name for each in network.layers]) for fusion, network in results if fusion.stage in names]
        check_layers(reports, own)
        marks = [measured_of(reports if fusion.stage in names else (), fusion) for fusion in fusions]
        write_output(html, fusion_page(bundle.manifest.name, results, marks, page_origin(bundle)))
    if as_json:
        click.echo(json.dumps({"kind": "fusion", "fusions": [asdict(fusion) for fusion in fusions]}))
        return
    from trtkit.cli.tables import show

    show(table for fusion in fusions for table in _tables(fusion))
    if html is not None:
        say(f"wrote {html}")


def _tables(fusion: Fusion) -> Iterator[Table]:
    """Yield a summary and the kernels."""
    from trtkit.cli.tables import count_text, listing, pairs
    from trtkit.network.fusion import grouped
    from trtkit.report.cells import size_text

    table = pairs(f"kernels of {fusion.title}")
    for name, shape in fusion.shapes.items():
        if not name.startswith("past_"):
            table.add_row(name, f"{list(shape)}")
    kinds = Counter(kernel.kind for kernel in fusion.kernels)
    names = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    per = "kernels per token" if fusion.phase == "decode" else "kernels"
    table.add_row(per, f"{len(fusion.kernels)} of {fusion.layers - len(fusion.absent)} layers: {names}")
    table.add_row(
        "generated", f"{fusion.confirmed_kernels} of {fusion.generated_kernels} are in the bundle's engine, too"
    )
    table.add_row("no kernel", f"{len(fusion.absent)} layers: constants, views, computed when building")
    share = f" ({fusion.bytes_saved / fusion.bytes_apart:.0%})" if fusion.bytes_apart else ""
    saved, apart = size_text(fusion.bytes_saved), size_text(fusion.bytes_apart)
    table.add_row("bytes", f"{apart} layer by layer, of which fusing saves {saved}{share}")
    yield table
    rows = listing("kernels in order", "count", "kind", "layers in it", "FLOP", "apart", "saved")
    for each in grouped(fusion):
        sizes = size_text(each.bytes_apart), size_text(each.bytes_saved)
        rows.add_row(str(each.count), each.kind, each.text, count_text(each.flops), *sizes)
    yield rows
