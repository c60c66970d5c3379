"""The stage before a language model, a vision tower or an encoder: a model of arrays with a config of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.builder import encoder, vision_language

if TYPE_CHECKING:
    from trtkit.builder.encoder import OpenedEncoder
    from trtkit.builder.vision_language import OpenedVision
    from trtkit.models.model import StagedModel


def open_tower(model: StagedModel) -> OpenedVision | OpenedEncoder | None:
    """Open the stage before a model's decoder; None if there is none. Raises SourceError, ProblemsError."""
    if model.takes_images:
        return vision_language.open_vision(model.config)
    return encoder.open_encoder_source(model.config) if model.has_encoder else None


def processor_files(model: StagedModel) -> tuple[str, ...]:
    """Return the files of the source that say how images or audio become inputs."""
    if model.takes_images:
        return vision_language.PROCESSOR_FILES
    return encoder.PROCESSOR_FILES if model.has_encoder else ()
