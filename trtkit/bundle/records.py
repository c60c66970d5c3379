"""What a manifest says of files, stages, inputs and outputs, and of a language model's parts."""

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

    axes: the role of each axis, of a language model's inputs. feeder: where an input's values come from: a request,
    the scheduler that places its tokens, a KV cache, or an earlier stage. updated: of a cache, the output that holds
    its new contents.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[Role, ...] = ()
    feeder: Feeder | None = None
    updated: str = ""

    @property
    def spec(self) -> InputSpec:
        """What the network knew of an input whose axes are recorded."""
        assert self.feeder is not None
        axes = tuple(Axis(role, size) for role, size in zip(self.axes, self.shape, strict=True))
        return InputSpec(self.name, self.dtype, axes, self.feeder, self.updated)

    def tensor_spec(self) -> OnnxTensorSpec:
        """Return it with a symbol of its own for every dynamic dimension."""
        from trtkit.network.onnx.io import OnnxTensorSpec

        shape = (f"{self.name}.{axis}" if size == -1 else size for axis, size in enumerate(self.shape))
        return OnnxTensorSpec(self.name, self.dtype, tuple(shape))


class BackendRecord(StrictModel):
    """The TensorRT library that built the plan; only the same one can load it."""

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
    """A tensor that a part takes or gives; a symbol is a size known at run time."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class PartRecord(StrictModel):
    """A part of a stage.

    kind: `onnx` was parsed from the stage's ONNX file, `network` was written by the network API.
    feeds: by input, where it comes from: an input of the model, or `part.output`. layers: of its network.
    """

    name: str
    kind: PartKind
    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    feeds: dict[str, str]
    layers: int


class OnnxRecord(StrictModel):
    """The ONNX parts of a stage, as one file.

    path: with custom ops as functions, which is verified and runs in ONNX Runtime. parsed: what TensorRT parsed, the
    same or with custom ops as plugins. files: both, and the data next to them. grid_samples: node and mode of each
    GridSample, to check the parser.
    """

    path: str
    parsed: str
    files: tuple[FileRecord, ...]
    grid_samples: tuple[tuple[str, str], ...]


class LayersRecord(StrictModel):
    """A network's layers, which the reference executor runs without TensorRT and without the model's source.

    layers: the JSON file. weights: those that no source holds; None if the sources hold all.
    sources: numbers of the sources, then of the quantized checkpoint's files, that hold weights.
    """

    layers: FileRecord
    weights: FileRecord | None
    sources: tuple[int, ...]


class RankRecord(StrictModel):
    """One rank's network and engine of a decoder that several ranks share; see `parallel` in the config.

    weight_bytes, kv_bytes_per_slot: what its GPU holds.
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
    """One network and its engine: the parts in it and the ONNX file of those that were parsed.

    Stages run in order. Inputs and outputs are called as the model's own, or `part.output`: each stage takes what an
    earlier one gives by the same name. writer: who made the network: TensorRT's parser, a family's parts, or the
    decoder of language models. engine: the plan's path. layers: the network as data; None if it has plugins, which only
    TensorRT runs. ranks: of a decoder that several share; the stage's own engine, layers, inputs and profiles are the
    first one's, its outputs the last one's, its totals all of theirs.
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
        """Every rank's network and engine by rank; the stage itself if no ranks share it."""
        return self.ranks or (self,)


class ImagesRecord(StrictModel):
    """How a language model's prompt holds the soft tokens of the stage `vision`.

    layout: an image is one picture, one between the tokens of `frame`, several tiles or crops, or as many patches as it
    has. image_token_id: the placeholder of a soft token. tokens_per_image: of a picture or a tile; 0 where the size
    decides, by groups of merge_size squared patches. pixel_shape: of the tower's first input without its first axis, -1
    for dynamic sizes. window_size: tokens on the side of an attention window, 0 for none. has_grid_positions: M-RoPE.
    max_images, max_tokens: of one call. max_block: tokens of neighbouring images, which see each other and are computed
    in one call; 0 if tokens see earlier ones only. position_side: of the square of learned positions that is stretched
    to an image's patches, 0 for none.
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
    """Audio as an encoder takes it: log-mel features [1, mel_bins, frames], from `sampling_rate` samples a second."""

    mel_bins: int
    frames: int
    sampling_rate: int


class EncoderRecord(StrictModel):
    """What the stage `encoder` takes and gives.

    layers: of the decoder, each of which reads a key and a value of `length` places. audio: what it listens to; None if
    it reads the token ids [1, S] of a text, up to `length` of them.
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
        """What the model is called in errors."""
        return "an encoder-decoder model" if self.audio is None else "a speech recognizer"


class SizeRecord(StrictModel):
    """What a decoder-only network weighs, in the engine's precision; KV of one slot is at the engine's full length."""

    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_slot: int
    state_bytes_per_slot: int = 0


class SpeculatorRecord(SizeRecord):
    """What the stage `speculator` holds: the draft head.

    model_type: its kind. weight_bytes: with its copies of the model's weights, and with the projection in the model's
    network. kv_bytes_per_token, kv_bytes_per_slot: in addition to the model's. most_tokens: that it can guess in a
    step; None for any number.
    """

    model_type: str
    most_tokens: int | None = None


class DecoderRecord(SizeRecord):
    """A decoder-only LLM.

    weight_bytes, kv_bytes_per_token, kv_bytes_per_slot, state_bytes_per_slot (recurrent states, and what layers read of
    an encoder): what all ranks hold together.
    has_read_only_caches: whether the network gives new keys and values, which its runtime keeps.
    embeddings: the table that is read next to an engine which takes vectors. images: of a vision-language model.
    encoder: of an encoder-decoder model. speculator: the draft head, if there is one.
    """

    vocab_size: int
    has_read_only_caches: bool
    embeddings: FileRecord | None = None
    images: ImagesRecord | None = None
    encoder: EncoderRecord | None = None
    speculator: SpeculatorRecord | None = None


class VerificationRecord(BaseModel):
    """The last verification: its report's JSON form without layers, of which only these fields are read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    verified_at: str = Field(description="UTC, ISO 8601.")
    trtkit: str = Field(description="Version.")
    passed: bool
    verdict: str = Field(description="PASS or FAIL, with the reason in parentheses.")
    reference: str
    batch_rows: Literal["independent", "mixed"] | None = Field(
        None, description="Whether each row of axis 0 has the outputs that it has alone; None if unknown."
    )
