"""LoRA adapters as Dynamo models: each has a model name in the OpenAI API, and workers load and unload them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from dynamo._core import ModelRuntimeConfig, WorkerType
from dynamo.llm import ModelInput, ModelType, register_model, unregister_model

from trtkit.deployment.dynamo.options import BLOCK_SIZE
from trtkit.errors import GenerationError, RequestError
from trtkit.llm.adapters import check_adapter_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from dynamo._core import Endpoint

    from trtkit.llm import AsyncLLM

LOAD, UNLOAD = "load_lora", "unload_lora"
"""Dynamo's names for the updates `POST /engine/update/<name>` on a worker's own port."""
_TYPES = {"chat": ModelType.Chat, "completions": ModelType.Completions}


@dataclass
class ServedAdapters:
    """The adapters of one worker. model: the name under which the model itself is served.

    endpoint: where Dynamo sends requests for adapters; None before it serves.
    """

    options: argparse.Namespace
    model: str
    endpoint: Endpoint | None = None

    def of(self, request: Mapping[str, object]) -> str | None:
        """Return the adapter that a request names as its model, None if that is the model itself.

        Any other name is an adapter's, even if it was unloaded while the request was on its way. Dynamo's own probes
        name no model.
        """
        name = request.get("model")
        return name if isinstance(name, str) and name not in ("", self.model) else None

    async def serve(self, endpoint: Endpoint, llm: AsyncLLM, context_length: int) -> None:
        """Announce the adapters that are loaded at startup."""
        self.endpoint, self._context_length = endpoint, context_length
        adapters = llm.thread.frontend.adapters
        for name in adapters.names if adapters is not None else ():
            await self._announce(name)

    async def update(self, llm: AsyncLLM, update: str, body: Mapping[str, object]) -> None:
        """Load or unload an adapter. Raises RequestError for a body that does not name one, and loading errors."""
        name = body.get("lora_name")
        if not isinstance(name, str) or not name:
            raise RequestError("`lora_name` is missing", update, 'send {"lora_name": "fr", ...}')
        check_adapter_name(name, self.model)
        if update == UNLOAD:
            await llm.unload_adapter(name)
            if self.endpoint is not None:
                await unregister_model(self.endpoint, lora_name=name)
            return
        await llm.load_adapter(name, _folder(body))
        try:
            await self._announce(name)
        except Exception as error:
            await llm.unload_adapter(name)
            raise GenerationError(f"Dynamo does not register the adapter: {error}", update) from error

    async def _announce(self, name: str) -> None:
        """Make the frontend list an adapter as a model and send its requests here."""
        if self.endpoint is None:
            return
        facts, options = ModelRuntimeConfig(), self.options
        facts.context_length = self._context_length
        facts.tool_call_parser, facts.reasoning_parser = options.tool_call_parser, options.reasoning_parser
        first, *others = (_TYPES[name] for name in options.endpoint_types.split(","))
        kinds = first
        for kind in others:
            kinds |= kind
        model = str(options.bundle / "model")
        await register_model(
            ModelInput.Tokens,
            kinds,
            self.endpoint,
            model,
            kv_cache_block_size=BLOCK_SIZE,
            runtime_config=facts,
            user_data={"lora_adapter": True},
            lora_name=name,
            base_model_path=model,
            worker_type=WorkerType.Aggregated,
            needs=[],
            ignore_weights=True,
        )


def _folder(body: Mapping[str, object]) -> str:
    """Return the folder named in a request to load an adapter. Raises RequestError if it is not on this machine."""
    source = body.get("source")
    uri = urlparse(str(source.get("uri") or "")) if isinstance(source, dict) else urlparse("")
    if uri.scheme not in ("", "file") or uri.netloc not in ("", "localhost") or not uri.path:
        fix = 'send {"lora_name": "fr", "source": {"uri": "file:///adapters/fr"}}'
        raise RequestError("`source.uri` is not the path of a folder", LOAD, fix)
    return unquote(uri.path)
