"""The manifest's records: files, stages, inputs and outputs, and the parts of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from trtkit.config.strict import StrictModel
from trtkit.models.model import PartKind, Writer
from trtkit.network.input_spec import Axis, Feeder, InputSpec, ResolvedProfile, Role
from trtkit.network.record import Totals

if TYPE_CHECKING:
    from trtkit.network.onnx.io import OnnxTensorSpec


class FileRecord(StrictModel):
    """A file by content. path: relative to the bundle, or absolute for a source outside it."""

    path: str
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class IoRecord(StrictModel):
    """A network input or output; -1 is a dynamic size.

    axes: the role of each axis of a language model's input. feeder: where an input's values come from: a request, the
    scheduler, a KV cache, or an earlier stage. updated: for a cache, the output with its new contents.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[Role, ...] = ()
    feeder: Feeder | None = None
    updated: str = ""

    @property
    def spec(self) -> InputSpec:
        """The spec of an input whose axes are recorded."""
        assert self.feeder is not None
        axes = tuple(Axis(role, size) for role, size in zip(self.axes, self.shape, strict=True))
        return InputSpec(self.name, self.dtype, axes, self.feeder, self.updated)

    def tensor_spec(self) -> OnnxTensorSpec:
        """Return the tensor's spec, with a separate symbol for each dynamic dimension."""
        from trtkit.network.onnx.io import OnnxTensorSpec

        shape = (f"{self.name}.{axis}" if size == -1 else size for axis, size in enumerate(self.shape))
        return OnnxTensorSpec(self.name, self.dtype, tuple(shape))


class BackendRecord(StrictModel):
    """The TensorRT library that built the plan; only the same version can load it."""

    name: Literal["tensorrt", "tensorrt_rtx"]
    version: str


class BuildMetrics(StrictModel):
    """What the build took. peak_memory_mib: of the process that parsed and built."""

    prepare_s: float
    parse_s: float
    describe_s: float
    build_s: float
    peak_memory_mib: float


class PortRecord(StrictModel):
    """An input or output of a part; a symbol is a size known at run time."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class PartRecord(StrictModel):
    """A part of a stage.

    kind: `onnx` if parsed from the stage's ONNX file, `network` if written by the network API. feeds: the source of
    each input: an input of the model, or `part.output`. layers: of its network.
    """

    name: str
    kind: PartKind
    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    feeds: dict[str, str]
    layers: int


class OnnxRecord(StrictModel):
    """The ONNX parts of a stage as one file.

    path: the file with custom ops as functions, used by verification and ONNX Runtime. parsed: what TensorRT parsed:
    the same file, or one with custom ops as plugins. files: both, with their external data. grid_samples: node and mode
    of each GridSample, for checking the parser's result.
    """

    path: str
    parsed: str
    files: tuple[FileRecord, ...]
    grid_samples: tuple[tuple[str, str], ...]


class LayersRecord(StrictModel):
    """A network's layers, which the reference executor runs without TensorRT and without the model's source.

    layers: the JSON file. weights: the file of those that no source holds; None if the sources hold all. sources:
    indices of the files that hold weights: the sources, then the quantized checkpoint's files.
    """

    layers: FileRecord
    weights: FileRecord | None
    sources: tuple[int, ...]


class RankRecord(StrictModel):
    """One rank's network and engine of a decoder split over several ranks; see `parallel` in the config.

    weight_bytes, kv_bytes_per_slot: on its GPU.
    """

    rank: int = Field(ge=0)
    engine: str
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[ResolvedProfile, ...]
    totals: Totals
    weight_bytes: int
    kv_bytes_per_slot: int
    layers: LayersRecord | None = None


class StageRecord(StrictModel):
    """One network and its engine, with its parts and the ONNX file of the parsed ones.

    Stages run in order. Inputs and outputs are named like the model's own, or `part.output`: a stage reads an earlier
    stage's output of the same name. writer: what wrote the network: TensorRT's parser, a hybrid's parts, or the decoder
    of language models. engine: the plan's path. layers: the network as data; None if it has plugins, which only
    TensorRT runs. ranks: of a decoder that several share; then the stage's own engine, layers, inputs and profiles are
    those of the first rank, its outputs those of the last, and its totals sums over all.
    """

    name: str
    writer: Writer
    parts: tuple[PartRecord, ...]
    engine: str
    onnx: OnnxRecord | None
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[ResolvedProfile, ...]
    totals: Totals
    layers: LayersRecord | None = None
    ranks: tuple[RankRecord, ...] = ()

    @property
    def networks(self) -> tuple[StageRecord | RankRecord, ...]:
        """The networks and engines of all ranks; only the stage itself if it is not split over ranks."""
        return self.ranks or (self,)


class ImagesRecord(StrictModel):
    """How a language model's prompt holds the soft tokens of the stage `vision`.

    layout: an image is one picture, one picture between the tokens of `frame`, several tiles or crops, or as many
    patches as its size gives. image_token_id: the placeholder of a soft token. tokens_per_image: of a picture or a
    tile; 0 if it depends on the size, one per merge_size x merge_size patches. pixel_shape: of the tower's first input
    without its first axis, -1 for dynamic sizes. window_size: side of an attention window in tokens, 0 for none.
    has_grid_positions: M-RoPE. max_images, max_tokens: per call. max_block: tokens of adjacent images, which attend to
    each other and are computed in one call; 0 if attention is causal. position_side: side of the square of learned
    positions that is interpolated to an image's patches, 0 for none.
    """

    model_type: str
    layout: Literal["image", "framed", "tiles", "crops", "patches"]
    image_token_id: int
    tokens_per_image: int
    pixel_shape: tuple[int, ...]
    merge_size: int
    window_size: int
    has_grid_positions: bool
    max_images: int
    max_tokens: int
    max_block: int = 0
    frame: tuple[int, int] | None = None
    position_side: int = 0


class AudioRecord(StrictModel):
    """Audio input of an encoder: log-mel features [1, mel_bins, frames] of `sampling_rate` samples per second."""

    mel_bins: int
    frames: int
    sampling_rate: int


class EncoderRecord(StrictModel):
    """Inputs and outputs of the stage `encoder`.

    layers: of the decoder, each of which reads `length` keys and values. audio: its audio input; None if it reads the
    token ids [1, S] of a text, up to `length` of them.
    """

    model_type: str
    layers: int
    length: int
    audio: AudioRecord | None = None

    @property
    def input_name(self) -> str:
        return "input_ids" if self.audio is None else "input_features"

    @property
    def kind(self) -> str:
        """The model's kind as named in errors."""
        return "an encoder-decoder model" if self.audio is None else "a speech recognizer"


class SizeRecord(StrictModel):
    """A decoder-only network's size in the engine's precision; KV bytes per slot are for the engine's full length."""

    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_slot: int
    state_bytes_per_slot: int = 0


class SpeculatorRecord(SizeRecord):
    """Contents of the stage `speculator`, the draft head.

    model_type: its kind. weight_bytes: including its copies of the model's weights and the projection in the model's
    network. kv_bytes_per_token, kv_bytes_per_slot: in addition to the model's. most_tokens: that it can guess per step;
    None for no limit.
    """

    model_type: str
    most_tokens: int | None = None


class DecoderRecord(SizeRecord):
    """A decoder-only LLM.

    weight_bytes, kv_bytes_per_token, kv_bytes_per_slot, state_bytes_per_slot (recurrent states, and what layers read of
    an encoder): over all ranks. has_read_only_caches: whether the network returns new keys and values, which its
    runtime writes to the caches. embeddings: the table of an engine that takes embeddings. images: of a vision-language
    model. encoder: of an encoder-decoder model. speculator: the draft head, if there is one.
    """

    vocab_size: int
    has_read_only_caches: bool
    embeddings: FileRecord | None = None
    images: ImagesRecord | None = None
    encoder: EncoderRecord | None = None
    speculator: SpeculatorRecord | None = None


class VerificationRecord(BaseModel):
    """The last verification: its report's JSON form without layers; only these fields are read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    verified_at: str = Field(description="UTC, ISO 8601.")
    trtkit: str = Field(description="Version.")
    passed: bool
    verdict: str = Field(description="PASS or FAIL, with the reason in parentheses.")
    reference: str
    batch_rows: Literal["independent", "mixed"] | None = Field(
        None, description="Whether each row of axis 0 has the outputs that it has alone; None if unknown."
    )
