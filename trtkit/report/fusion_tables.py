"""The tables of a network's kernels, as printed by `trtkit inspect --fusion` and shown on its page."""

from collections import Counter

from trtkit.network.fusion import Fusion, grouped
from trtkit.report.tables import Facts, Table, Value, counted, named, numbers, size, size_text


def fusion_tables(fusion: Fusion) -> tuple[Facts, Table]:
    """Return a summary and the kernels in order."""
    rows: list[tuple[str, Value]] = [
        (name, f"{list(shape)}") for name, shape in fusion.shapes.items() if not name.startswith("past_")
    ]
    kinds = Counter(kernel.kind for kernel in fusion.kernels)
    names = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    per = "kernels per token" if fusion.phase == "decode" else "kernels"
    share = f" ({fusion.bytes_saved / fusion.bytes_apart:.0%})" if fusion.bytes_apart else ""
    saved, apart = size_text(fusion.bytes_saved), size_text(fusion.bytes_apart)
    rows += [
        (per, f"{len(fusion.kernels)} of {fusion.layers - len(fusion.absent)} layers: {names}"),
        ("generated", f"{fusion.confirmed_kernels} of {fusion.generated_kernels} are in the bundle's engine, too"),
        ("no kernel", f"{len(fusion.absent)} layers: constants, views, computed when building"),
        ("bytes", f"{apart} layer by layer, of which fusing saves {saved}{share}"),
    ]
    kernels = [
        (
            str(group.count),
            group.kind,
            group.text,
            counted(group.flops),
            size(group.bytes_apart),
            size(group.bytes_saved),
        )
        for group in grouped(fusion)
    ]
    columns = (*named("count", "kind", "layers in it"), *numbers("FLOP"), *named("apart", "saved"))
    return Facts(f"kernels of {fusion.title}", rows), Table("kernels in order", columns, kernels)
