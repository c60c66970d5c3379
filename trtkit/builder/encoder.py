"""The encoder of an encoder-decoder model: a stage before its decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.builder.jobs import TowerStage
from trtkit.bundle.records import AudioRecord, EncoderRecord
from trtkit.config.schema import DimRange, ModuleInput, TorchSource
from trtkit.errors import SourceError, reader
from trtkit.models.model import ENCODER
from trtkit.models.registry import ENCODER_DECODERS
from trtkit.network.input_spec import ENCODED
from trtkit.sources.package_file import hf_folder
from trtkit.sources.safetensors_file import json_object, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

PROCESSOR_FILES = ("preprocessor_config.json",)
_FRAMES_PER_PLACE = 2
"""Frames per encoder position: the second convolution halves the frames."""
_MODULES = {
    "audio": "trtkit.sources.encoders.whisper:WhisperAudio",
    "text": "trtkit.sources.encoders.t5:T5Text",
}
_FORCED = ("forced_bos_token_id", "forced_eos_token_id")
_OF_ENCODER = ("model.encoder.", "encoder.", "shared.")
_PROJECTIONS = (".encoder_attn.k_proj.", ".encoder_attn.v_proj.", ".EncDecAttention.k.", ".EncDecAttention.v.")


@dataclass(frozen=True)
class OpenedEncoder:
    """An opened encoder, ready to be built. encoder: its record in the bundle."""

    stage: TowerStage
    encoder: EncoderRecord


def open_encoder_source(config: ModelConfig) -> OpenedEncoder:
    """Open the encoder of an encoder-decoder model's config. Raises SourceError."""
    return _open(hf_folder(config.source), config)


@reader
def _open(folder: Path, config: ModelConfig) -> OpenedEncoder:
    kind = ENCODER_DECODERS[str(read_json(folder / "config.json")["model_type"])]
    record = _audio_record(folder) if kind == "audio" else _text_record(config, folder)
    return OpenedEncoder(_encoder_stage(config, folder, record), record)


def _audio_record(folder: Path) -> EncoderRecord:
    fields, processor = read_json(folder / "config.json"), read_json(folder / PROCESSOR_FILES[0])
    if processor.get("feature_extractor_type") != "WhisperFeatureExtractor":
        what = f"`feature_extractor_type` is `{processor.get('feature_extractor_type')}`"
        raise SourceError(what, str(folder / PROCESSOR_FILES[0]), "give a folder of Whisper")
    bins, positions = int(fields.get("num_mel_bins", 80)), int(fields.get("max_source_positions", 1500))
    rate = int(processor.get("sampling_rate", 16_000))
    audio = AudioRecord(mel_bins=bins, frames=positions * _FRAMES_PER_PLACE, sampling_rate=rate)
    layers = int(fields.get("decoder_layers", 4))
    return EncoderRecord(model_type=str(fields["model_type"]), layers=layers, length=positions, audio=audio)


def _text_record(config: ModelConfig, folder: Path) -> EncoderRecord:
    fields = read_json(folder / "config.json")
    layers = fields.get("num_decoder_layers")
    layers = int(fields.get("num_layers", 6) if layers is None else layers)
    generation = json_object(folder / "generation_config.json")
    forced = [name for name in _FORCED if (fields | generation).get(name) is not None]
    if forced:
        raise SourceError(f"`{forced[0]}` is set, which is not supported", str(folder), "remove it")
    length = None if config.llm is None else config.llm.max_source_length
    assert length is not None  # of a config that was resolved
    return EncoderRecord(model_type=str(fields["model_type"]), layers=layers, length=length)


def is_of_encoder(name: str) -> bool:
    """Whether a checkpoint weight belongs to the encoder's stage."""
    return name.startswith(_OF_ENCODER) or any(projection in name for projection in _PROJECTIONS)


def output_names(layers: int) -> tuple[str, ...]:
    """Return the encoder's output names, which are the decoder's inputs, in the order of its layers."""
    return tuple(f"{name}_{index}" for index in range(layers) for name in ENCODED)


def _encoder_stage(config: ModelConfig, folder: Path, record: EncoderRecord) -> TowerStage:
    """Return the encoder's stage, a torch module to export."""
    if record.audio is not None:
        taken = ModuleInput(shape=("batch", record.audio.mel_bins, record.audio.frames))
        sizes = {"batch": DimRange(min=1, opt=1, max=1)}
    else:
        taken = ModuleInput(shape=(1, "tokens"), dtype="int64")
        sizes = {"tokens": DimRange(min=1, opt=max(1, record.length // 4), max=record.length)}
    return TowerStage(
        name=ENCODER,
        part_names=("encoder",),
        folder=folder,
        source=TorchSource(
            factory=_MODULES["text" if record.audio is None else "audio"],
            kwargs={"folder": str(folder)} | ({} if record.audio else {"length": record.length}),
            inputs={record.input_name: taken},
            outputs=output_names(record.layers),
        ),
        sizes=sizes,
        precision=config.precision,
    )
