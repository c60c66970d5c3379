"""The same decode step in transformers with a static cache, eager and compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.language import SHAPES, TINY, weights_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer


def ask(place: Place, model: str) -> Iterator[Answer]:
    """Time steps of 1 and of all slots, at a quarter of the context."""
    import transformers

    shape = SHAPES[model] if place.has_gpu else TINY
    dtype = torch.float16 if place.has_gpu else torch.float32
    loaded = transformers.AutoModelForCausalLM.from_pretrained(weights_folder(place, shape, "fp16"), dtype=dtype)
    loaded = loaded.to(place.torch_device).eval()
    forms = {"transformers": loaded}
    if place.has_gpu:
        forms["torch.compile"] = torch.compile(loaded, mode="reduce-overhead", fullgraph=True)
    for form, run in forms.items():
        for rows in (1, shape.batch):
            ms = place.median_ms(_step(place, loaded, run, rows, shape.length))
            yield {"what": f"{form}, step of {rows}, static cache", "step_ms": ms, "tokens_per_s": rows / ms * 1e3}


def _step(place: Place, model: Any, run: Any, rows: int, length: int) -> Any:
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=length)
    ids = torch.randint(3, model.config.vocab_size, (rows, length // 4), device=place.torch_device)
    with torch.inference_mode():
        model(ids, past_key_values=cache, use_cache=True)
    position = torch.tensor([length // 4], device=place.torch_device)

    def step() -> None:
        with torch.inference_mode():
            run(ids[:, :1], past_key_values=cache, cache_position=position, use_cache=True)

    return step
