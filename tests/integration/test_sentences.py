"""A sentence-transformers folder becomes one engine, from texts to vectors or classes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import trtkit as library
from tests.support.decoders import relative_rms
from tests.support.docs import DOCS, run_page
from tests.support.hybrids import Case, saved
from tests.support.text_encoders import CASES, HIDDEN, LENGTH, SMALL, make_encoder, texts
from trtkit.runtime.tasks.answers import Classes, Embedding, Outputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat on mat runs fast is what"
KINDS = ("Transformer", "Pooling", "Normalize")
BERT = Case("BertModel", "bert", HIDDEN, SMALL)


def add_pooling(folder: Path, mode: str = "mean_tokens", kinds: tuple[str, ...] = KINDS) -> None:
    """Write the files that sentence-transformers saves with a model."""
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_cls_token": False, f"pooling_mode_{mode}": True})
    )


def add_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate(WORDS.split())}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    return fast


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token"])
@pytest.mark.parametrize("kinds", [KINDS, KINDS[:2]], ids=["normalized", "plain"])
def test_pooling_is_part_of_the_network(mode: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    model = saved(BERT, tmp_path / "model")
    model.set_attn_implementation("eager")
    add_pooling(tmp_path / "model", mode, kinds)
    encoder = make_encoder(tmp_path / "model")
    feed = texts(encoder, 3, 11)
    found = encoder.execution.run(feed)
    assert list(found) == ["sentence_embedding"]
    with torch.inference_mode():
        hidden = model(**feed).last_hidden_state
    shown = [row[: int(mask.sum())] for row, mask in zip(hidden, feed["attention_mask"], strict=True)]
    wanted = torch.stack([row[0] if mode == "cls_token" else row.mean(0) for row in shown])
    if len(kinds) == len(KINDS):
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    assert relative_rms(found["sentence_embedding"], wanted) <= 1e-5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    saved(BERT, folder / "model")
    add_pooling(folder / "model")
    add_tokenizer(folder / "model")
    library.build(str(folder / "model"), precision="fp32", out=folder / "bundle")
    return folder / "bundle"


def test_texts_become_vectors(bundle: Path, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    sentences = ["the cat sat on the mat", "a dog runs", "what is a mat", "the dog sat on a dog " * 20]
    model = library.open_model(bundle)
    answers = list(model.predict(sentences, batch=3))
    assert all(isinstance(answer, Embedding) and answer.vector.shape == (32,) for answer in answers)
    alone = [next(model.predict(sentence)) for sentence in sentences]
    for one, other in zip(answers, alone, strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-5)
    (tmp_path / "sentences.txt").write_text("\n".join(sentences))
    lines = trtkit("run", bundle, tmp_path / "sentences.txt", "--json").out.splitlines()
    assert [json.loads(line)["input"] for line in lines] == [f"sentences.txt:{number}" for number in (1, 2, 3, 4)]
    np.testing.assert_allclose(json.loads(lines[1])["embedding"], answers[1].vector, atol=1e-5)


def test_verify_of_the_bundle_passes(bundle: Path, trtkit: Callable[..., Ran]) -> None:
    report = trtkit("verify", bundle, "--json").json()
    assert report["passed"]
    assert report["batch_rows"] == "independent"


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "BertForTokenClassification"])
def test_pairs_and_tokens_are_what_transformers_says(architecture: str, tmp_path: Path) -> None:
    case = next(each for each in CASES if str(each) == architecture)
    model = saved(case, tmp_path / "model").eval()
    tokenizer = add_tokenizer(tmp_path / "model")
    library.build(str(tmp_path / "model"), precision="fp32", out=tmp_path / "bundle")
    pairs = [("what is fast", "a dog runs fast"), ("what sat", "the cat")]
    for pair, answer in zip(pairs, library.open_model(tmp_path / "bundle").predict(pairs), strict=True):
        with torch.inference_mode():
            logits = model(**tokenizer(*pair, return_token_type_ids=True, return_tensors="pt")).logits
        if isinstance(answer, Outputs):
            assert relative_rms(torch.from_numpy(answer.outputs["logits"]), logits) <= 1e-5
        else:
            assert isinstance(answer, Classes)
            np.testing.assert_allclose(sorted(answer.scores), sorted(logits.softmax(-1)[0].tolist()), atol=1e-5)


def test_names_of_the_first_checkpoints_are_read(tmp_path: Path) -> None:
    model = saved(BERT, tmp_path / "model")
    model.set_attn_implementation("eager")
    file = tmp_path / "model" / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    arrays = {}
    for name, array in load_file(file).items():
        ending = ".".join(name.split(".")[-2:])
        arrays[name.removesuffix(ending) + old.get(ending, ending)] = array
    save_file(arrays, file, {"format": "pt"})
    encoder = make_encoder(tmp_path / "model")
    feed = texts(encoder, 2, 7)
    with torch.inference_mode():
        wanted = model(**feed).last_hidden_state
    assert relative_rms(encoder.execution.run(feed)["last_hidden_state"], wanted) <= 1e-5


def changed(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_decoder": True}, "`is_decoder` is `True`, only `False` is supported"),
        ({"position_embedding_type": "relative_key"}, "`position_embedding_type` is `relative_key`"),
        ({"architectures": ["BertForPreTraining"]}, "`architectures` is `BertForPreTraining`"),
        ({"embedding_size": 16}, "`embedding_size` is `16`"),
        ({"num_hidden_layers": 2}, "is not a weight of this model"),
    ],
)
def test_what_is_not_supported_is_refused(
    fields: dict[str, Any], said: str, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    saved(BERT, tmp_path / "model")
    changed(tmp_path / "model", **fields)
    ran = trtkit("build", tmp_path / "model", "--output", tmp_path / "bundle")
    assert ran.code in (1, 2)
    assert said in " ".join(ran.err.split())
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("mode", "kinds", "said"),
    [
        ("max_tokens", KINDS, "the pooling is `pooling_mode_max_tokens`"),
        ("mean_tokens", ("Transformer", "Pooling", "Dense"), "the modules `Dense` are not supported"),
    ],
)
def test_other_modules_are_refused(
    mode: str, kinds: tuple[str, ...], said: str, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    saved(BERT, tmp_path / "model")
    add_pooling(tmp_path / "model", mode, kinds)
    ran = trtkit("build", tmp_path / "model", "--output", tmp_path / "bundle")
    assert ran.code in (1, 2)
    assert said in " ".join(ran.err.split())


def test_longer_texts_than_the_model_takes_are_refused(tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    saved(BERT, tmp_path / "model")
    ran = trtkit(
        "build", tmp_path / "model", "--set", f"profiles.0.tokens=[1,8,{LENGTH + 1}]", "--output", tmp_path / "bundle"
    )
    assert ran.code == 2
    assert f"`tokens` goes up to {LENGTH + 1}; the model takes at most {LENGTH}" in " ".join(ran.err.split())


@pytest.mark.slow
def test_the_commands_of_the_page_embed_sentences(tmp_path: Path) -> None:
    """With the real all-MiniLM-L6-v2: sentences about one thing are nearer to each other."""
    (tmp_path / "sentences.txt").write_text("A kitten plays with wool.\nThe cat chases a toy.\nShares fell by three.\n")
    run_page(DOCS / "text-encoders.md", tmp_path, {"pip install": "# pip install"})
    lines = (tmp_path / "embeddings.jsonl").read_text().splitlines()
    kitten, cat, shares = (np.array(json.loads(line)["embedding"]) for line in lines)
    assert kitten @ cat > 0.4 > kitten @ shares
