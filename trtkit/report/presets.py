"""What a preset decides, as a table."""

from trtkit.builder.presets import ChosenPreset
from trtkit.report.tables import Lines, Part, Table, named

_ORIGINS = {"preset": "preset", "model": "model", "config": "config"}


def preset_tables(chosen: ChosenPreset) -> list[Part]:
    """Return every decision with what it means, and what does not apply to the model."""
    rows = [(row.key, _text(row.value), _ORIGINS[row.origin], row.meaning) for row in chosen.decisions]
    title = f"preset {chosen.name}: decided when the engine is built; --set KEY=VALUE changes any"
    parts: list[Part] = [Table(title, (*named("key", "value", kind="name"), *named("from", "meaning")), rows)]
    if chosen.left_out:
        parts.append(Lines("does not apply", [f"{key}: {why}" for key, why in chosen.left_out]))
    return parts


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
