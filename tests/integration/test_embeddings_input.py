"""Language models whose engine takes embeddings: with the token table next to it, results equal those of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.support.decoders import graph_of, model_of, relative_rms
from tests.support.generation import case_of
from tests.support.tiny_chat import build
from trtkit import LLM, SamplingParams
from trtkit.builder.embeddings import EMBEDDINGS, embedding_table
from trtkit.dtypes import FP32
from trtkit.errors import BundleError
from trtkit.llm.execution import DecoderNetwork, ReferenceDecoder
from trtkit.llm.execution.embeddings import TokenEmbeddings
from trtkit.models.weights import find_weights
from trtkit.network.decoder_options import DecoderOptions
from trtkit.verification.stepper import Stepper

if TYPE_CHECKING:
    from pathlib import Path

IDS = [5, 17, 3, 66, 21, 9, 9, 40, 12]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.mark.parametrize("model_type", ["llama", "gemma", "gpt2", "bloom"])
def test_rows_of_the_table_are_what_ids_stand_for(model_type: str) -> None:
    """Scaled embeddings (Gemma), learned positions (GPT-2), a norm behind the embedding (BLOOM)."""
    case = case_of(model_type)
    model = model_of(case)
    graph = graph_of(model, DecoderOptions(FP32, 32, has_all_logits=True, has_embeds_input=True))
    weights = find_weights(model.spec, {name: value.numpy() for name, value in model.checkpoint.items()})
    table = TokenEmbeddings(embedding_table(model.spec, weights, FP32))
    network = DecoderNetwork(
        graph.layers(), graph.inputs, model.spec.vocab_size, 32, 16, has_all_logits=True, embeddings=table
    )
    stepper = Stepper(ReferenceDecoder(network, 1))
    got = torch.cat([stepper.step([part])[0] for part in (IDS[:4], IDS[4:5], IDS[5:])])
    assert relative_rms(got, model.logits(torch.tensor([IDS]))[0]) <= 1e-4


def test_a_bundle_that_takes_vectors_answers_as_one_that_takes_ids(tmp_path: Path) -> None:
    for name in ("ids", "embeds"):
        (tmp_path / name).mkdir()
    plain, other = build(tmp_path / "ids"), build(tmp_path / "embeds", "llm.inputs=embeds")
    with LLM(plain, runtime="reference") as one, LLM(other, runtime="reference") as two:
        answers = [llm.generate(["Gravity is", "Paris"], GREEDY) for llm in (one, two)]
    ids, embeds = ([output.outputs[0].token_ids for output in outputs] for outputs in answers)
    assert ids == embeds
    (other / EMBEDDINGS).write_bytes(b"no table")
    with pytest.raises(BundleError, match=r"embeddings\.safetensors: the file has changed since the build"):
        LLM(other, runtime="reference")
