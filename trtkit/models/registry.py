"""Find a family by its config's `model_type`."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any, Literal

from trtkit.errors import SourceError, reading
from trtkit.models.hf_config import FIX, HfConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trtkit.models.spec import DecoderSpec

# `model_type` -> module in `trtkit.models.decoders`.
FAMILIES = {
    "afmoe": "afmoe",
    "apertus": "apertus",
    "arcee": "arcee",
    "axk1": "axk1",
    "bamba": "bamba",
    "bitnet": "bitnet",
    "bloom": "bloom",
    "codegen": "gptj",
    "cohere": "cohere",
    "cohere2": "cohere2",
    "cohere2_moe": "cohere2_moe",
    "cwm": "cwm",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5_moe",
    "exaone4": "exaone4",
    "exaone_moe": "exaone_moe",
    "falcon": "falcon",
    "falcon_h1": "falcon_h1",
    "flex_olmo": "flex_olmo",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "glm": "glm",
    "glm4": "glm4",
    "glm4_moe": "glm4_moe",
    "glm4_moe_lite": "glm4_moe_lite",
    "gpt2": "gpt2",
    "gpt_bigcode": "gpt_bigcode",
    "gpt_neo": "gpt_neo",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "gptj": "gptj",
    "granite": "granite",
    "granite_swa": "granite_swa",
    "granitemoe": "granitemoe",
    "granitemoe_swa": "granitemoe_swa",
    "granitemoehybrid": "granitemoehybrid",
    "granitemoeshared": "granitemoe",
    "helium": "helium",
    "hunyuan_v1_dense": "hunyuan_v1_dense",
    "hunyuan_v1_moe": "hunyuan_v1_moe",
    "hy_v3": "hy_v3",
    "hyperclovax": "hyperclovax",
    "internlm3": "internlm3",
    "iquestcoder": "iquestcoder",
    "jais2": "jais2",
    "kimi_linear": "kimi_linear",
    "laguna": "laguna",
    "lfm2": "lfm2",
    "llama": "llama",
    "llama4_text": "llama4",
    "mamba2": "mamba2",
    "mellum": "mellum",
    "mimo_v2_flash": "mimo_v2_flash",
    "minicpm3": "minicpm3",
    "minimax_m2": "minimax_m2",
    "ministral": "mistral",
    "ministral3": "ministral3",
    "mistral": "mistral",
    "mistral4": "mistral4",
    "mixtral": "mixtral",
    "mpt": "mpt",
    "mt5": "t5",
    "nanochat": "nanochat",
    "nemotron": "nemotron",
    "nemotron-nas": "nemotron_nas",
    "nemotron_h": "nemotron_h",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo3",
    "olmoe": "olmoe",
    "opt": "opt",
    "phi": "phi",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen2": "qwen2",
    "qwen2_5_vl_text": "qwen2_vl",
    "qwen2_moe": "qwen2_moe",
    "qwen2_vl_text": "qwen2_vl",
    "qwen3": "qwen3",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "qwen3_vl_text": "qwen3_vl",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "solar_open": "solar_open",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "t5": "t5",
    "umt5": "t5",
    "vaultgemma": "vaultgemma",
    "whisper": "whisper",
    "xglm": "xglm",
    "youtu": "youtu",
}

ENCODER_DECODERS: dict[str, Literal["audio", "text"]] = {
    "mt5": "text",
    "t5": "text",
    "umt5": "text",
    "whisper": "audio",
}
"""The families whose decoder reads an encoder, with what that takes."""

ARCHITECTURES = {
    "afmoe": "AfmoeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "axk1": "AXK1ForCausalLM",
    "bamba": "BambaForCausalLM",
    "bitnet": "BitNetForCausalLM",
    "bloom": "BloomForCausalLM",
    "codegen": "CodeGenForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "cohere2_moe": "Cohere2MoeForCausalLM",
    "cwm": "CwmForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "flex_olmo": "FlexOlmoForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gptj": "GPTJForCausalLM",
    "granite": "GraniteForCausalLM",
    "granite_swa": "GraniteSWAForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoe_swa": "GraniteMoeSWAForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "helium": "HeliumForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "internlm3": "LlamaForCausalLM",
    "iquestcoder": "LlamaForCausalLM",
    "jais2": "Jais2ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "laguna": "LagunaForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mellum": "MellumForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "mpt": "MptForCausalLM",
    "mt5": "MT5ForConditionalGeneration",
    "nanochat": "NanoChatForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron-nas": "DeciLMForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "phimoe": "PhimoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2_5_VLTextModel",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2_vl_text": "Qwen2VLTextModel",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextModel",
    "qwen3_vl_text": "Qwen3VLTextModel",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "solar_open": "SolarOpenForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "vaultgemma": "VaultGemmaForCausalLM",
    "whisper": "WhisperForConditionalGeneration",
    "xglm": "XGLMForCausalLM",
    "youtu": "YoutuForCausalLM",
}
"""The class of transformers for each `model_type`; text models of some vision-language models have none with a head."""


def decoder_spec(fields: Mapping[str, Any], where: str = "config.json") -> DecoderSpec:
    """Return the model that a `config.json` describes.

    Raises SourceError for an unknown `model_type`, and for fields that are missing, unknown or not supported.
    """
    model_type = str(HfConfig(fields, where).need("model_type"))
    if model_type not in FAMILIES:
        near = difflib.get_close_matches(model_type, FAMILIES, n=3)
        known = "did you mean " + " or ".join(f"`{name}`" for name in near) if near else "known: " + _listed()
        raise SourceError(f"unknown `model_type` `{model_type}`", where, known)
    family = importlib.import_module(f"trtkit.models.decoders.{FAMILIES[model_type]}")
    config = HfConfig(fields, where, getattr(family, "ALIASES", None), getattr(family, "DEFAULTS", None))
    config.refuse("quantization_config")
    with reading(where, FIX):
        spec: DecoderSpec = family.spec(config)
        config.check_all_read()
    return spec


def is_language_model(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` of any family describes a model that writes or reads text."""
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    names = [str(name) for name in fields.get("architectures") or ()]
    if any(name.endswith(heads) for name in names):
        return True
    takes_images = {"image_size", "input_size", "num_channels"} & fields.keys() or any("Image" in n for n in names)
    return "vocab_size" in fields and not takes_images


def is_of_another_kind(model_type: str) -> bool:
    """Whether an unsupported family is one of text encoders or encoder-decoders."""
    return any(model_type in names.split() for names, _ in _OTHER_KINDS.values())


def unsupported_family(model_type: str, where: str) -> SourceError:
    """Return the error for a language model of a family that is not supported, which names the nearest."""
    for kind, (names, known) in _OTHER_KINDS.items():
        if model_type in names.split():
            what = f"`{model_type}` is {kind} of a family that is not supported"
            return SourceError(what, where, f"supported are {', '.join(f'`{name}`' for name in sorted(known))}")
    near = difflib.get_close_matches(model_type, FAMILIES, n=3, cutoff=0.7)
    near = near or [name for name in FAMILIES if model_type.startswith(name)]
    nearest = f"the nearest supported are {', '.join(f'`{name}`' for name in near)}" if near else ""
    what = f"`{model_type}` is a language model of a family that is not supported"
    return SourceError(what, where, nearest or f"supported are {_listed()}")


# Encoders and encoder-decoders that are not supported, and the families of their kind.
_OTHER_KINDS: dict[str, tuple[str, Iterable[str]]] = {
    "a text encoder": (
        "albert big_bird deberta deberta-v2 electra ernie esm funnel longformer megatron-bert mobilebert mpnet "
        "nomic_bert nystromformer rembert roformer squeezebert xlm-roberta-xl xmod",
        ("bert", "camembert", "distilbert", "modernbert", "roberta", "xlm-roberta"),
    ),
    "an encoder-decoder": (
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart moonshine mvp pegasus "
        "pegasus_x plbart prophetnet speech_to_text switch_transformers t5gemma",
        ENCODER_DECODERS,
    ),
}


def _listed() -> str:
    return ", ".join(sorted(FAMILIES))
