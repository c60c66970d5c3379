"""transformers' whole vision-language model: what both networks of a bundle are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.huggingface.folder import load_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from PIL import Image


class VisionLanguageReference:
    """A vision-language model of transformers in fp32 on the CPU, with its own image processor.

    Prompts are token ids with a placeholder for each soft token. Raises SourceError where transformers cannot load it.
    """

    def __init__(self, folder: Path) -> None:
        import transformers

        self.model = load_folder(transformers.AutoModelForImageTextToText, folder, attn_implementation="eager")
        try:
            self._processor = transformers.AutoImageProcessor.from_pretrained(
                folder, local_files_only=True, backend="pil"
            )
        except (OSError, ValueError) as error:
            raise SourceError(f"transformers cannot read the image processor: {error}", str(folder)) from None
        self.description = f"transformers {transformers.__version__}, {type(self.model).__name__} in fp32"

    def soft_tokens(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the vectors [P, D] that the model puts into a prompt, and those of inner layers after them."""
        import torch

        with torch.inference_mode():
            features = self.model.get_image_features(**self._images(images))
        deep = [torch.cat(list(layer)) for layer in getattr(features, "deepstack_features", None) or ()]
        tokens = torch.cat([item.reshape(-1, item.shape[-1]) for item in features.pooler_output])
        return torch.cat([tokens, *deep], -1)

    def logits(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Return logits [S, V] of a prompt."""
        import torch

        with torch.inference_mode():
            logits: torch.Tensor = self.model(**self._inputs(ids, images)).logits[0]
        return logits

    def greedy(self, ids: Sequence[int], images: Sequence[Image.Image], count: int) -> list[int]:
        """Return `count` most likely tokens after a prompt, whatever ends a text."""
        import torch

        options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.inference_mode():
            sequences = self.model.generate(**self._inputs(ids, images), **options)
        return [int(token) for token in sequences[0, len(ids) :]]

    def _images(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Return what the model takes of images; Idefics3's processor needs them by prompt."""
        if not images:
            return {}
        is_tiled, is_cropped = hasattr(self.model.config, "scale_factor"), self.model.config.model_type == "internvl"
        crops = {"crop_to_patches": True} if is_cropped else {}
        processed = self._processor([list(images)] if is_tiled else list(images), return_tensors="pt", **crops)
        return {name: processed[name] for name in processed if name not in ("rows", "cols", "num_patches", "num_crops")}

    def _inputs(self, ids: Sequence[int], images: Sequence[Image.Image]) -> dict[str, Any]:
        import torch

        tokens = torch.tensor([list(ids)])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **self._images(images)}
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        if self.model.config.model_type == "gemma3":
            inputs["token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        return inputs
