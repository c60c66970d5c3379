"""Text encoders of transformers, and sentence-transformers' pooling after them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtkit.errors import SourceError, reading
from trtkit.files import read_text
from trtkit.pooling import Pooling
from trtkit.sources.huggingface.folder import load_folder, open_config
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_MODULES = "modules.json"
_KINDS = ("Transformer", "Pooling", "Normalize")
_WITH_POOLER = ("bert", "camembert", "roberta", "xlm-roberta")
_LOADERS = {
    "SequenceClassification": "AutoModelForSequenceClassification",
    "TokenClassification": "AutoModelForTokenClassification",
    "QuestionAnswering": "AutoModelForQuestionAnswering",
    "MaskedLM": "AutoModelForMaskedLM",
}
# Weights of heads that checkpoints may still contain and that transformers silently ignores.
_UNUSED = (r"(^|\.)pooler\.", r"^cls\.seq_relationship\.", r"position_ids$")
_POOLINGS: dict[str, Literal["first", "mean"]] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
}
_EAGER = {"attn_implementation": "eager"}


def folder_pooling(folder: Path) -> Pooling | None:
    """Return the pooling in sentence-transformers' `modules.json`; None without that file.

    Raises SourceError for an unsupported module or pooling.
    """
    path = folder / _MODULES
    if not path.is_file():
        return None
    with reading(str(path)):
        modules = [
            (str(module["type"]).rpartition(".")[2], str(module["path"])) for module in json.loads(read_text(path))
        ]
    kinds = tuple(kind for kind, _ in modules)
    if kinds not in (_KINDS, _KINDS[:2]):
        unknown = next((kind for kind in kinds if kind not in _KINDS), ", ".join(kinds))
        fix = f"use a model of {', '.join(_KINDS)}, or remove the file to build the encoder alone"
        raise SourceError(f"the modules `{unknown}` are not supported", str(path), fix)
    file = folder / modules[1][1] / "config.json"
    modes = [name for name, value in json_object(file).items() if name.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        what = f"the pooling is {' and '.join(f'`{mode}`' for mode in modes) or 'not stated'}"
        raise SourceError(what, str(file), f"supported: {' or '.join(f'`{mode}`' for mode in _POOLINGS)}, one of them")
    return Pooling(_POOLINGS[modes[0]], is_normalized=len(kinds) == len(_KINDS))


def from_folder(folder: str, outputs: Sequence[str]) -> torch.nn.Module:
    """Load the model in `folder`, with any pooling; it takes ids, mask and, in some families, token types."""
    import transformers

    config = open_config(folder)
    architecture = str((config.architectures or [""])[0])
    auto = getattr(transformers, _LOADERS.get(architecture.partition("For")[2], "AutoModel"))
    pooling = folder_pooling(Path(folder))
    has_pooler_option = pooling is not None and config.model_type in _WITH_POOLER
    options = {"add_pooling_layer": False} if has_pooler_option else {}
    model = load_folder(auto, folder, unused=_UNUSED if pooling or auto is not transformers.AutoModel else (), **_EAGER,
                        **options)  # fmt: skip
    return _wrapped(model, outputs, pooling)


def _wrapped(model: torch.nn.Module, outputs: Sequence[str], pooling: Pooling | None) -> torch.nn.Module:
    """Wrap `model` so that it takes and returns plain tensors."""
    import torch

    class TextEncoder(torch.nn.Module):
        """Returns the fields of the model's output, or the pooled vector of each text."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, ...]:
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            answer = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
            if pooling is None:
                return tuple(getattr(answer, name) for name in outputs)
            return (_pooled(answer.last_hidden_state, attention_mask, pooling),)

    return TextEncoder()


def _pooled(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return one vector per text, as computed by sentence-transformers: hidden states [B, S, D], mask [B, S]."""
    import torch

    if pooling.tokens == "first":
        vector = hidden[:, 0]
    else:
        shown = mask.unsqueeze(-1).to(hidden.dtype)
        vector = (hidden * shown).sum(1) / shown.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(vector, p=2, dim=1) if pooling.is_normalized else vector
