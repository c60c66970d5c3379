"""The tensors of a served language model, named as in TensorRT-LLM's models for Triton.

Its text form (`ensemble`, `tensorrt_llm_bls`: text_input, max_tokens) and its token form (`tensorrt_llm`: input_ids,
request_output_len) are one model here; tensors that both lack have trtkit's names. Names and shapes:
NVIDIA/TensorRT-LLM, triton_backend/all_models/inflight_batcher_llm/*/config.pbtxt, release 1.2.
"""

from dataclasses import dataclass

from trtkit.deployment.triton.model_config import TritonTensor

MANY = (-1,)
ONE = (1,)


@dataclass(frozen=True)
class Field:
    """An input. setting: the SamplingParams field that it sets, empty if it is not a setting."""

    name: str
    dtype: str
    setting: str = ""
    dims: tuple[int, ...] = ONE

    @property
    def tensor(self) -> TritonTensor:
        return TritonTensor(self.name, self.dtype, self.dims, is_optional=True)


FIELDS = (
    Field("text_input", "text"),
    Field("input_ids", "int32", dims=MANY),
    Field("input_lengths", "int32"),
    Field("messages", "text"),
    Field("image", "text", dims=MANY),
    Field("stream", "bool"),
    Field("streaming", "bool"),
    Field("exclude_input_in_output", "bool"),
    Field("return_log_probs", "bool"),
    Field("return_num_input_tokens", "bool"),  # Triton's OpenAI frontend sends both; both are always returned
    Field("return_num_output_tokens", "bool"),
    Field("priority", "int32"),
    Field("user", "text"),
    Field("deadline_s", "fp32"),
    Field("pad_id", "int32"),
    Field("max_tokens", "int32", "max_tokens"),
    Field("request_output_len", "int32", "max_tokens"),
    Field("min_tokens", "int32", "min_tokens"),
    Field("end_id", "int32", "stop_token_ids"),
    Field("stop_words", "text", "stop", MANY),
    Field("bad_words", "text", "bad_words", MANY),
    Field("ignore_eos", "bool", "ignore_eos"),
    Field("temperature", "fp32", "temperature"),
    Field("top_k", "int32", "top_k"),
    Field("runtime_top_k", "int32", "top_k"),
    Field("top_p", "fp32", "top_p"),
    Field("runtime_top_p", "fp32", "top_p"),
    Field("min_p", "fp32", "min_p"),
    Field("typical_p", "fp32", "typical_p"),
    Field("seed", "uint64", "seed"),
    Field("random_seed", "uint64", "seed"),
    Field("repetition_penalty", "fp32", "repetition_penalty"),
    Field("presence_penalty", "fp32", "presence_penalty"),
    Field("frequency_penalty", "fp32", "frequency_penalty"),
    Field("no_repeat_ngram_size", "int32", "no_repeat_ngram_size"),
    Field("num_return_sequences", "int32", "n"),
    Field("beam_width", "int32", "num_beams"),
    Field("length_penalty", "fp32", "length_penalty"),
    Field("len_penalty", "fp32", "length_penalty"),
    Field("early_stopping", "bool", "early_stopping"),
    Field("embedding_bias_words", "text", dims=MANY),
    Field("embedding_bias_weights", "fp32", dims=MANY),
    Field("lora_name", "text", "adapter"),
    Field("guided_decoding_guide_type", "text"),
    Field("guided_decoding_guide", "text"),
)
OUTPUTS = (
    TritonTensor("text_output", "text", MANY),
    TritonTensor("output_ids", "int32", (-1, -1)),
    TritonTensor("sequence_length", "int32", MANY),
    TritonTensor("cum_log_probs", "fp32", MANY),
    TritonTensor("output_log_probs", "fp32", (-1, -1)),
    TritonTensor("finish_reason", "text", MANY),
    TritonTensor("batch_index", "int32", ONE),
    TritonTensor("sequence_index", "int32", ONE),
    TritonTensor("num_input_tokens", "int32", ONE),
    TritonTensor("num_output_tokens", "int32", ONE),
)
