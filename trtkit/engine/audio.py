"""The encoder of a model that listens: a stage before its decoder, with a config of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.bundle.manifest import AudioRecord
from trtkit.config.schema import InputSpec, ModelConfig, Source, TorchSource
from trtkit.errors import SourceError, reader
from trtkit.models.model import AUDIO
from trtkit.network.input_spec import ENCODED
from trtkit.sources.package_file import hf_folder
from trtkit.sources.safetensors_folder import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import Profile

PROCESSOR_FILES = ("preprocessor_config.json",)
_FRAMES_PER_PLACE = 2
"""The encoder's second convolution halves the frames."""
_MODULE = "trtkit.sources.audio.whisper:WhisperAudio"


@dataclass(frozen=True)
class OpenedAudio:
    """An encoder that is to be built. config: of the encoder alone, a torch module that is exported."""

    config: ModelConfig
    folder: Path
    record: AudioRecord


def open_audio(config: ModelConfig) -> OpenedAudio:
    """Open the encoder of a config that takes audio. Raises SourceError."""
    return _open(hf_folder(config.source), config)


@reader
def _open(folder: Path, config: ModelConfig) -> OpenedAudio:
    fields, processor = read_json(folder / "config.json"), read_json(folder / PROCESSOR_FILES[0])
    if processor.get("feature_extractor_type") != "WhisperFeatureExtractor":
        what = f"`feature_extractor_type` is `{processor.get('feature_extractor_type')}`"
        raise SourceError(what, str(folder / PROCESSOR_FILES[0]), "give a folder of Whisper")
    bins, places = int(fields.get("num_mel_bins", 80)), int(fields.get("max_source_positions", 1500))
    layers = int(fields.get("decoder_layers", 4))
    record = AudioRecord(
        model_type=str(fields["model_type"]),
        mel_bins=bins,
        frames=places * _FRAMES_PER_PLACE,
        sampling_rate=int(processor.get("sampling_rate", 16_000)),
        layers=layers,
    )
    return OpenedAudio(_encoder_config(config, folder, record), folder, record)


def is_of_encoder(name: str) -> bool:
    """Whether a weight of the checkpoint is of the encoder's stage."""
    return name.startswith("model.encoder.") or ".encoder_attn.k_proj." in name or ".encoder_attn.v_proj." in name


def output_names(layers: int) -> tuple[str, ...]:
    """Return what the encoder gives: the decoder's inputs, in the order of its layers."""
    return tuple(f"{name}_{index}" for index in range(layers) for name in ENCODED)


def _encoder_config(config: ModelConfig, folder: Path, record: AudioRecord) -> ModelConfig:
    """Return the config that builds the encoder from a torch module."""
    batch: Profile = {"batch": (1, 1, 1)}  # type: ignore[dict-item]
    return ModelConfig(
        name=AUDIO,
        source=Source(
            torch=TorchSource(
                factory=_MODULE,
                kwargs={"folder": str(folder)},
                inputs={"input_features": InputSpec(shape=("batch", record.mel_bins, record.frames))},
                outputs=output_names(record.layers),
            )
        ),
        precision=config.precision,
        profiles=(batch,),
        target=config.target,
        build=config.build,
    )
