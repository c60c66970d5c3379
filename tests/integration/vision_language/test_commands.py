"""Images on the command line: `trtkit generate --image`, JSON lines, build, inspect, refusals."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.deployments import relist
from tests.support.docs import DOCS, run_page
from tests.support.tiny_chat import build as build_text_only
from tests.support.tiny_vlm import VLMS, Reference, Vlm, build, bundle_of, folder_of, picture, tokenizer
from trtkit import LLM
from trtkit.builder import vision_language
from trtkit.builder.vision_language import open_vision
from trtkit.builder.write_stages import tower_load
from trtkit.bundle.bundle import open_bundle
from trtkit.cli.tables import show
from trtkit.config.schema import ModelConfig
from trtkit.errors import RequestError
from trtkit.report.models import bundle_summary
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]
    Refuses = Callable[..., str]

FLAGS = ("--runtime", "reference", "--quiet", "--max-tokens", "6", "--ignore-eos")
LLAVA, SMOLVLM, QWEN = VLMS["llava"], VLMS["smolvlm"], VLMS["qwen2-vl"]
some = pytest.mark.parametrize("vlm", [LLAVA, SMOLVLM, QWEN], ids=str)


@pytest.fixture
def photos(workspace: Path) -> list[Path]:
    """Two images as files, of different sizes and formats."""
    paths = [workspace / "a.png", workspace / "b.jpg"]
    for seed, (path, size) in enumerate(zip(paths, [(90, 33), (21, 64)], strict=True)):
        picture(*size, seed).save(path)
    return paths


def copied(bundle: Path, folder: Path) -> Path:
    """Return a copy of a bundle to damage."""
    return Path(shutil.copytree(bundle, folder / "damaged"))


def expected(vlm: Vlm, ids: list[int], images: list[Any]) -> str:
    answer = Reference(vlm).greedy(ids, images, 6)
    return tokenizer(vlm).decode(answer)


@some
def test_images_stand_before_the_text_of_the_prompt(vlm: Vlm, trtkit: Run, photos: list[Path]) -> None:
    words = ["--prompt", "Which is larger?", "--image", photos[0], "--image", photos[1]]
    ran = trtkit("generate", bundle_of(vlm), *words, *FLAGS)
    assert ran.code == 0, ran.err
    text = f"<|im_start|>user\n{vlm.image_text * 2}Which is larger?<|im_end|>\n<|im_start|>assistant\n"
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        ids = llm.frontend.reader.read({"prompt": text, "images": photos}).ids
        images = [picture(90, 33), _jpeg(photos[1])]
    assert ran.out == expected(vlm, ids, images) + "\n"


@some
def test_json_lines_with_and_without_images(vlm: Vlm, trtkit: Run, photos: list[Path]) -> None:
    """Texts, token ids and messages, with images of their own, beside a prompt without."""
    content = [{"type": "image", "path": str(photos[0])}, {"type": "text", "text": "Describe it."}]
    placeholder = tokenizer(vlm).encode(vlm.image_text)
    asked = [
        {"prompt": "Gravity is"},
        {"messages": [{"role": "user", "content": content}], "id": "messages"},
        {"prompt": "Describe it.", "images": [str(photos[0])], "id": "text"},
        {"prompt_token_ids": [*placeholder, 7, 8], "images": [str(photos[1])], "id": "ids"},
    ]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, asked)))
    ran = trtkit("generate", bundle_of(vlm), "--prompts", "prompts.jsonl", "--json", *FLAGS)
    assert ran.code == 0, ran.err
    found = {item["id"]: item for item in map(json.loads, ran.out.splitlines())}
    assert found["messages"]["token_ids"] == found["text"]["token_ids"]
    assert found["text"]["images"] == [str(photos[0])]
    assert "images" not in found[0]
    with LLM(bundle_of(vlm), runtime="reference") as llm:
        ids = llm.frontend.reader.read({"prompt_token_ids": [*placeholder, 7, 8], "images": [photos[1]]}).ids
    assert found["ids"]["token_ids"] == Reference(vlm).greedy(ids, [_jpeg(photos[1])], 6)


def test_inspect_shows_the_tower(trtkit: Run) -> None:
    """Of a bundle, and of a config without building it."""
    for path in (bundle_of(QWEN), config_of(folder_of(LLAVA))):
        ran = trtkit("inspect", path, "--quiet")
        assert ran.code == 0, ran.err
        found = " ".join(ran.out.split())
        if path == bundle_of(QWEN):
            assert (
                "vision qwen2_vl, patches [?, 4, 96], positions [?, 4, 2]; a variable "
                "number of tokens per image, at most 24" in found
            )
        else:
            assert "vision llava, pixel_values [?, 3, 30, 30]; 25 tokens per image, at most 4 images per call" in found


def test_what_ends_a_build_shows_the_tower(capsys: pytest.CaptureFixture[str]) -> None:
    show([bundle_summary(open_bundle(bundle_of(QWEN)))])
    assert "patches [?, 4, 96], positions [?, 4, 2]; a variable number of tokens per image" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_bundle_in_16_bits_answers(trtkit: Run, tmp_path: Path, photos: list[Path]) -> None:
    """bf16 in both engines: as far as the reference executor rounds, an answer comes."""
    from tests.support.tiny_vlm import build

    bundle = build(folder_of(QWEN), tmp_path, "precision=bf16")
    ran = trtkit("generate", bundle, "--prompt", "Hi", "--image", photos[0], *FLAGS, "--json")
    assert len(ran.json()["token_ids"]) == 6


@pytest.mark.parametrize(("count", "found"), [(2, 1), (1, 3), (0, 1)])
def test_images_and_placeholders_are_as_many(count: int, found: int) -> None:
    with LLM(bundle_of(LLAVA), runtime="reference") as llm, pytest.raises(RequestError) as caught:
        llm.generate({"prompt": "<image>" * found + "What?", "images": [picture(9, 9)] * count})
    assert str(caught.value) == (
        f"images: the prompt has {found} placeholders for {count} images\n"
        "fix: write `<image>` once per image, or give messages with image content"
    )


def test_a_file_that_is_no_image(refuses: Refuses, workspace: Path) -> None:
    (workspace / "notes.txt").write_text("no image")
    said = refuses("generate", bundle_of(LLAVA), "--prompt", "Hi", "--image", "notes.txt", *FLAGS, code=2)
    assert "prompt 0: notes.txt: not a readable image" in said
    assert "fix: give a PNG or JPEG file" in said


def test_a_file_that_is_missing(refuses: Refuses) -> None:
    said = refuses("generate", bundle_of(LLAVA), "--prompt", "Hi", "--image", "gone.png", *FLAGS, code=2)
    assert "gone.png: not a readable image: [Errno 2] No such file or directory" in said


def test_an_image_for_a_model_of_text(refuses: Refuses, tmp_path: Path, photos: list[Path]) -> None:
    bundle = build_text_only(tmp_path)
    said = refuses("generate", bundle, "--prompt", "Hi", "--image", photos[0], *FLAGS, code=2)
    assert "the model takes text only" in said
    assert "fix: give a bundle of a vision-language model" in said
    with LLM(bundle, runtime="reference") as llm, pytest.raises(RequestError, match="the model takes text only"):
        llm.generate({"prompt": "Hi", "images": [picture(9, 9)]})


def test_an_image_without_a_prompt(trtkit: Run, photos: list[Path]) -> None:
    ran = trtkit("generate", bundle_of(LLAVA), "--prompts", "p.jsonl", "--image", photos[0])
    assert ran.code == 2
    assert "--image goes with TEXT; in a JSONL file, list images in `images`" in ran.err


def test_images_that_are_no_list(refuses: Refuses, workspace: Path) -> None:
    (workspace / "p.jsonl").write_text('{"prompt": "Hi", "images": "a.png"}')
    said = refuses("generate", bundle_of(LLAVA), "--prompts", "p.jsonl", *FLAGS, code=2)
    assert 'p.jsonl:1: `images` is "a.png", not a list of paths' in said


def test_a_processor_of_another_size(tmp_path: Path) -> None:
    bundle = copied(bundle_of(LLAVA), tmp_path)
    path = bundle / "model/preprocessor_config.json"
    path.write_text(path.read_text().replace("30", "24"))
    with (
        LLM(relist(bundle, "model/preprocessor_config.json"), runtime="reference") as llm,
        pytest.raises(RequestError) as caught,
    ):
        llm.generate({"prompt": "<image>", "images": [picture(40, 40)]})
    assert str(caught.value) == (
        "images: the image processor gives pixels [3, 24, 24], the vision tower takes [3, 30, 30]\n"
        "fix: correct the size in preprocessor_config.json and build the bundle again"
    )


def test_an_image_of_too_many_tokens(tmp_path: Path) -> None:
    bundle = copied(bundle_of(QWEN), tmp_path)
    path = bundle / "model/preprocessor_config.json"
    path.write_text(path.read_text().replace(str(64 * 24), str(64 * 400)))
    with (
        LLM(relist(bundle, "model/preprocessor_config.json"), runtime="reference") as llm,
        pytest.raises(RequestError) as caught,
    ):
        llm.generate({"prompt": QWEN.image_text, "images": [picture(80, 80)]})
    assert str(caught.value) == (
        "images: the image becomes 100 tokens, the engine takes 24\n"
        "fix: give a smaller image, or build with a larger `vision.max_tokens`"
    )


def test_an_image_of_a_shape_that_the_model_refuses() -> None:
    with LLM(bundle_of(QWEN), runtime="reference") as llm, pytest.raises(RequestError, match="aspect ratio"):
        llm.generate({"prompt": QWEN.image_text, "images": [picture(900, 3)]})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "video"}], "message content cannot be {'type': 'video'}"),
        (["Hi"], "message content cannot be Hi"),
        ([{"type": "image"}], "a message has an image without a file, and `images` has none left"),
    ],
)
def test_content_that_is_neither_text_nor_image(content: list[Any], said: str) -> None:
    with LLM(bundle_of(LLAVA), runtime="reference") as llm, pytest.raises(RequestError) as caught:
        llm.chat([{"role": "user", "content": content}])
    assert caught.value.what == said


def test_images_that_no_message_has_a_place_for() -> None:
    with LLM(bundle_of(LLAVA), runtime="reference") as llm, pytest.raises(RequestError) as caught:
        llm.generate({"messages": [{"role": "user", "content": "Hi"}], "images": [picture(9, 9)]})
    assert caught.value.what == "1 images have no place in any message"


def test_something_that_cannot_be_an_image() -> None:
    with LLM(bundle_of(LLAVA), runtime="reference") as llm, pytest.raises(RequestError) as caught:
        llm.generate({"prompt": "<image>", "images": [7]})
    assert str(caught.value) == "images: an image cannot be a int\nfix: give a path or a PIL image"


def test_a_folder_without_an_image_processor(refuses: Refuses, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of(LLAVA), tmp_path / "model"))
    (folder / "preprocessor_config.json").unlink()
    said = refuses("build", config_of(folder))
    assert "`preprocessor_config.json` is missing, which defines the image preprocessing" in said
    assert "`vision.enabled=false` for text only" in said


def test_a_folder_without_the_towers_weights(refuses: Refuses, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of(LLAVA), tmp_path / "model"))
    arrays = load_file(folder / "model.safetensors")
    save_file({name: array for name, array in arrays.items() if "projector" not in name}, folder / "model.safetensors")
    said = refuses("build", config_of(folder))
    assert "4 weights of the vision tower are missing, such as `multi_modal_projector.linear_1.weight`" in said


def test_a_tower_that_is_not_known(refuses: Refuses, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of(LLAVA), tmp_path / "model"))
    path = folder / "config.json"
    path.write_text(path.read_text().replace("clip_vision_model", "ijepa"))
    said = refuses("build", config_of(folder))
    assert "`vision_config.model_type` is `ijepa`" in said
    assert "fix: known: clip_vision_model, siglip_vision_model" in said


def test_a_model_that_memory_cannot_hold_is_refused_before_its_tower_is_exported(
    refuses: Refuses, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folder_of(LLAVA), tmp_path / "model"))
    fields = json.loads((folder / "config.json").read_text())
    fields["text_config"]["intermediate_size"] = 2**28
    (folder / "config.json").write_text(json.dumps(fields))
    assert "GiB of memory needed" in refuses("build", config_of(folder))


def test_room_is_checked_for_both_networks_in_their_own_precision() -> None:
    folder = folder_of(LLAVA)
    sizes = {name: array.numel() for name, array in load_file(folder / "model.safetensors").items()}
    tower = sum(size for name, size in sizes.items() if "language_model" not in name and "lm_head" not in name)
    text = sum(sizes.values()) - tower
    quantize = {"method": "int8_wo"}
    for keys, expected_bytes in (
        ({"precision": "fp32"}, 4 * (text + tower)),
        ({"precision": "bf16", "vision": {"precision": "fp32"}}, 2 * text + 4 * tower),
        ({"precision": "bf16", "quantize": quantize}, 2 * tower),  # the checkpoint is counted when it is there
    ):
        fields = {
            "name": "tiny",
            "source": {"hf": str(folder)},
            "llm": {"max_sequence_length": 96, "max_prefill_length": 32},
        }
        model = resolve(ModelConfig.model_validate({**fields, **keys}))
        load = tower_load(model, open_vision(model.config))
        assert (load.engine_bytes, load.exported) == (expected_bytes, tower)


def test_a_build_resolves_its_model_and_opens_its_tower_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for module, name in ((sys.modules["trtkit.resolve"], "_language_model"), (vision_language, "_open_vision")):
        run = getattr(module, name)

        def note(*values: Any, name: str = name, run: Any = run) -> Any:
            calls.append(name)
            return run(*values)

        monkeypatch.setattr(module, name, note)
    build(folder_of(LLAVA), tmp_path, "quantize={method: int8_wo, exclude: [layers.0.mlp.*]}")
    assert sorted(calls) == ["_language_model", "_open_vision"]


def test_a_vision_language_model_for_text_only(trtkit: Run, tmp_path: Path, photos: list[Path]) -> None:
    config, bundle = config_of(folder_of(QWEN)), tmp_path / "text"
    built = trtkit("build", config, "--set", "vision.enabled=false", "-o", bundle)
    assert built.code == 0, built.err
    assert not (bundle / "engines/vision.plan").exists()
    ran = trtkit("generate", bundle, "--prompt", "Gravity is", "--no-chat", "--json", *FLAGS)
    ids = tokenizer(QWEN).encode("Gravity is")
    assert ran.json()["token_ids"] == Reference(QWEN).greedy(ids, [], 6)
    assert "text only" in trtkit("generate", bundle, "--prompt", "Hi", "--image", photos[0], *FLAGS).err


@pytest.mark.slow
def test_every_command_and_program_of_the_docs_runs(workspace: Path) -> None:
    picture(70, 50).save("photo.png")
    picture(60, 50).save("photo.jpg")
    folder = f"{folder_of(LLAVA)} --set llm.max_sequence_length=96 --set llm.max_prefill_length=32 --set precision=fp32"
    run_page(DOCS / "vision-language.md", workspace, {"FOLDER": folder})
    assert len((workspace / "answers.jsonl").read_text().splitlines()) == 3


def config_of(folder: Path) -> Path:
    """Write a config for the model in `folder`, beside the workspace."""
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(f"source: {{hf: {folder}}}\nllm: {{max_sequence_length: 96, max_prefill_length: 32}}\n")
    return path


def _jpeg(path: Path) -> Any:
    """Return an image as its file holds it: JPEG changes it."""
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")
