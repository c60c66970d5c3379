"""Models by their id on Hugging Face's hub: the real client against a local hub."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

import trtkit as api
from tests.support import tiny_llm
from tests.support.hub_server import REVISION, hub_server, use_hub
from tests.support.tiny_chat import save_model
from trtkit.cli.local_model import local_config
from trtkit.errors import SourceError
from trtkit.jobs.runner import inline_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran
    from tests.support.hub_server import Hub

pytest.importorskip("huggingface_hub")
NAME = "acme/Tiny-0.5B"
LIMITS = ("--set", "llm.max_sequence_length=64", "--set", "llm.max_prefill_length=16", "--set", "llm.max_batch_size=2")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as authors publish them: with a second copy of the weights, code and pictures."""
    folder = save_model(tmp_path_factory.mktemp("repository"))
    for extra in ("consolidated.safetensors", "pytorch_model.bin", "modeling_tiny.py", "original/params.json", "a.png"):
        (folder / extra).parent.mkdir(exist_ok=True)
        (folder / extra).write_bytes(b"x" * 100)
    return folder


@pytest.fixture
def hub(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        server.add(NAME, repository)
        use_hub(server, tmp_path / "cache-of-the-hub", monkeypatch)
        yield server


def test_a_name_is_downloaded_built_and_answers(hub: Hub, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    with inline_jobs():
        built = trtkit("build", NAME, "--yes", *LIMITS)
    assert built.code == 0, built.err
    assert "downloading acme/Tiny-0.5B: " in built.err
    assert "all digests are right" in built.err
    assert "built bundles/Tiny-0.5B" in built.out
    unwanted = {"consolidated.safetensors", "pytorch_model.bin", "modeling_tiny.py", "original/params.json", "a.png"}
    assert not unwanted & set(hub.served)
    assert hub.served[-1] == "config.json"
    hub.served.clear()
    answer = trtkit("generate", NAME, "Hi", "--max-tokens", 4, "--json").json()
    assert answer["metrics"]["output_tokens"] == 4
    assert trtkit("build", NAME, *LIMITS).out.startswith("up to date (cache hit): bundles/Tiny-0.5B")
    assert hub.served == []
    assert api.load_config(NAME).name == "Tiny-0.5B"


def test_a_bundle_that_is_missing_is_built_first(hub: Hub, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    with inline_jobs():
        ran = trtkit("generate", NAME, "Hi", "--max-tokens", 4, "--json", "--yes")
    assert ran.code == 0, ran.err
    assert "`bundles/Tiny-0.5B` is not there yet: building it with defaults" in ran.err
    assert "trtkit build acme/Tiny-0.5B --set KEY=VALUE" in ran.err
    hub.add("other/Tiny-0.5B", workspace.parent / "none")
    hub.repositories["other/Tiny-0.5B"] = hub.repositories[NAME]
    message = trtkit("generate", "other/Tiny-0.5B", "Hi", "--yes").err
    assert "`bundles/Tiny-0.5B` was built from another model than `other/Tiny-0.5B`" in message


@pytest.mark.parametrize("line", ["build", "verify", "inspect", "quantize --method int8_wo", "generate hello", "serve"])
def test_nothing_is_downloaded_without_consent(hub: Hub, refuses: Callable[..., str], line: str) -> None:
    command, *words = line.split()
    message = refuses(command, NAME, *words)
    assert "not on this machine (acme/Tiny-0.5B: " in message
    assert message.endswith("fix: add --yes to download it")
    assert hub.served == []


@pytest.mark.parametrize(("reply", "is_fetched"), [("n", False), ("", True)])
def test_a_terminal_is_asked_once(
    hub: Hub, workspace: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, reply: str, is_fetched: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(f"{reply}\n"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ran = trtkit("inspect", NAME, "--json")
    assert ran.err.count("from Hugging Face's hub. Download? [Y/n]") == 1
    assert (ran.code == 0, bool(hub.served)) == (is_fetched, is_fetched)


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def test_a_plan_needs_the_config_only(hub: Hub, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("plan", NAME, "--gpu", "l4", "--input-len", 8, "--output-len", 8, "--json")
    planned = trtkit(*words).json()
    assert (planned["model"]["name"], hub.served) == ("Tiny-0.5B", ["config.json"])
    simulated = trtkit(
        "simulate", NAME, "--gpu", "l4", "--rate", 1, "--requests", 5, "--input-len", 8, "--output-len", 8, "--json"
    )
    assert simulated.code == 0, simulated.err
    assert hub.served == ["config.json"]
    # A config alone, which other programs fetch too, is not a copy of the model.
    assert "fix: download it: `trtkit fetch acme/Tiny-0.5B`" in _error(lambda: api.load_config(NAME))


def test_a_download_goes_on_where_it_stopped(
    hub: Hub, workspace: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)
    size = len(hub.repositories[NAME]["model.safetensors"])
    hub.cut["model.safetensors"] = size // 2
    assert trtkit("fetch", NAME).code == 0
    ((name, wanted),) = hub.ranges
    assert name == "model.safetensors"
    assert size // 2 - 1024 <= int(wanted.removeprefix("bytes=").rstrip("-")) <= size // 2
    assert trtkit("fetch", NAME, "--json").json()["fetched"] is False


def test_a_file_that_differs_from_its_digest_is_removed(hub: Hub, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        hub.wrong_digests = {name}
        ran = trtkit("fetch", NAME)
        assert (ran.code, ran.out) == (1, "")
        assert f"{NAME}: not what the hub has, by size or digest, and removed: {name}" in ran.err
        assert trtkit("fetch", NAME, "--dry-run").out.startswith("folder the hub's cache: missing")
    hub.wrong_digests = set()
    ran = trtkit("fetch", NAME)
    assert ran.code == 0, ran.err
    assert ran.out.endswith(f"snapshots/{REVISION}: ready\n")


@pytest.mark.parametrize(
    ("status", "what", "fix"),
    [
        (401, "no such model on Hugging Face's hub, and no such folder here", "`hf auth login` or set HF_TOKEN"),
        (403, "the model is gated", "accept its terms at https://huggingface.co/acme/Tiny-0.5B"),
        (500, "cannot be downloaded: ", "hf download acme/Tiny-0.5B --local-dir models/Tiny-0.5B"),
    ],
)
def test_the_hub_refuses(hub: Hub, refuses: Callable[..., str], status: int, what: str, fix: str) -> None:
    hub.statuses[NAME] = status
    message = refuses("build", NAME, "--yes")
    assert what in message
    assert fix in message


def test_no_network(hub: Hub, refuses: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.url = "http://127.0.0.1:9"
    use_hub(hub, tmp_path / "empty", monkeypatch)
    for line in ("build", "plan", "chat"):
        message = refuses(line, NAME)
        assert "cannot be downloaded" in message
        assert "run `hf download acme/Tiny-0.5B --local-dir models/Tiny-0.5B`, then give that folder here" in message


def test_a_disk_that_is_too_small(hub: Hub, refuses: Callable[..., str]) -> None:
    hub.stated_sizes["model.safetensors"] = 2**60
    message = refuses("build", NAME, "--yes")
    assert "needs 1073741824.0 GiB; " in message
    assert "HF_HOME" in message
    assert hub.served == []


def test_repositories_without_safetensors(hub: Hub, refuses: Callable[..., str]) -> None:
    hub.repositories["acme/gguf"] = {"README.md": b"", "tiny.Q4_0.gguf": b"GGUF"}
    hub.repositories["acme/old"] = {"config.json": b"{}", "pytorch_model.bin": b""}
    message = refuses("build", "acme/gguf", "--yes")
    assert "`hf download acme/gguf tiny.Q4_0.gguf --local-dir .`, then `trtkit build tiny.Q4_0.gguf`" in message
    assert "lacks `config.json` or .safetensors files" in refuses("build", "acme/old", "--yes")


def test_a_shipped_config_is_fetched_unless_a_package_has_its_model(
    hub: Hub, workspace: Path, refuses: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    hub.repositories["Qwen/Qwen3-0.6B"] = hub.repositories[NAME]
    assert "not on this machine (Qwen/Qwen3-0.6B: " in refuses("build", "qwen3")
    assert local_config("all-minilm-l6-v2").source.hub is not None
    assert hub.served == []


def test_paths_of_outputs_are_no_ids(hub: Hub, refuses: Callable[..., str]) -> None:
    for path in ("bundles/llama", "quantized/llama", "models/llama"):
        assert "hub" not in refuses("generate", path, "Hi")
    assert hub.served == []


def test_a_folder_of_choice(hub: Hub, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("fetch", NAME, "-o", "here").out == "folder here: ready\n"
    assert json.loads((workspace / "here/config.json").read_text())["model_type"] == "llama"
    assert not (workspace / "here/pytorch_model.bin").exists()


def _error(action: Callable[[], object]) -> str:
    with pytest.raises(SourceError) as raised:
        action()
    return str(raised.value)


def test_names_keep_what_follows_a_dot(workspace: Path) -> None:
    tiny_llm.save(workspace / "Tiny-0.5B")
    assert api.load_config("./Tiny-0.5B").name == "Tiny-0.5B"
