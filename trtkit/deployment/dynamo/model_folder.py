"""The files of a bundle that Dynamo's frontend reads (tokenizer, config, chat template), checked before any start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.bundle.bundle import open_bundle
from trtkit.errors import DeployError
from trtkit.runtime.text.trial import try_patterns, try_template
from trtkit.sources.safetensors_file import json_object

_AGAIN = "build it again with `trtkit build --no-cache`"


@dataclass(frozen=True)
class ServableBundle:
    """A servable bundle. name: in requests. has_chat: whether it has a chat template.

    ranks: number of ranks, each on its own GPU. has_states: whether layers keep recurrent states. tensorrt,
    tensorrt_version: the library that built its plans, which load in no other version. lora: folders of its adapters by
    name, overriding those for all models. tool_call_parser, reasoning_parser: Dynamo's names of the parsers of its
    answers.
    """

    path: Path
    name: str
    has_chat: bool
    takes_images: bool
    ranks: int = 1
    has_states: bool = False
    tensorrt: str = "tensorrt_rtx"
    tensorrt_version: str = ""
    lora: Mapping[str, str | Path] | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None

    @property
    def endpoint_types(self) -> str:
        """OpenAI's endpoints, as Dynamo names them."""
        return "chat,completions" if self.has_chat else "completions"


def read_model(bundle: Path, name: str | None = None) -> ServableBundle:
    """Return the bundle as a servable model. name: in requests; the folder's name by default.

    Raises BundleError, and DeployError for files that the frontend could not read.
    """
    opened = open_bundle(bundle)
    folder = opened.path / "model"
    if opened.manifest.interface != "tokens":
        fix = f"`trtkit deploy {bundle} --to triton`, then `trtkit serve models`"
        raise DeployError("OpenAI's API serves language models; the bundle holds a vision model", str(bundle), fix)
    if (encoder := opened.manifest.encoder) is not None:
        fix = "use `trtkit generate` or `trtkit.LLM`"
        raise DeployError(f"{encoder.kind} cannot be served: requests carry nothing to its encoder", str(bundle), fix)
    if not (folder / "tokenizer.json").is_file():
        fix = "build from a source with a `tokenizer.json`, or serve token ids with Triton"
        raise DeployError("the bundle has no `model/tokenizer.json`", str(bundle), fix)
    if not json_object(folder / "config.json").get("architectures"):
        raise DeployError("`model/config.json` does not name its `architectures`", str(bundle), _AGAIN)
    settings = json_object(folder / "tokenizer_config.json")
    has_chat = bool(settings.get("chat_template")) or (folder / "chat_template.jinja").is_file()
    try_patterns(folder)  # the frontend runs both, and starts only after the workers
    if has_chat:
        try_template(folder)
    decoder, ranks = opened.manifest.decoder, opened.manifest.grid.ranks
    has_states = decoder is not None and decoder.state_bytes_per_slot > 0
    library = opened.manifest.backend
    takes_images = opened.manifest.images is not None
    name = name or bundle.resolve().name
    return ServableBundle(opened.path, name, has_chat, takes_images, ranks, has_states, library.name, library.version)
