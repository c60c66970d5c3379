"""Fetch what a config needs: packages by pip, model repositories from Hugging Face's hub."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources import package_file
from trtkit.sources.needs import download_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def install_packages(requirements: Sequence[str]) -> None:
    """Install packages without their dependencies into this environment. Raises SourceError."""
    fix = package_file.install_line(" ".join(requirements))
    options = [requirement for requirement in requirements if requirement.startswith("-")]
    if options:
        what = f"`requires` must list packages only; got the option `{options[0]}`"
        raise SourceError(what, fix=f"remove `{options[0]}`")
    done = subprocess.run([*_installer(), "--no-deps", *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise SourceError(f"pip failed: {errors[-1].removeprefix('ERROR: ')}", ", ".join(requirements), fix)
    importlib.invalidate_caches()


def _installer() -> list[str]:
    """Return pip's install command for this Python; uv's if the environment has no pip."""
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip") is None and uv is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check"]


def download(hub_id: str, folder: Path) -> None:
    """Download a model repository from Hugging Face's hub into `folder`.

    Raises SourceError, with the command to run elsewhere, if `huggingface_hub` is missing or the hub cannot be reached.
    """
    fix = f"on a machine that reaches the hub, run: {download_command(hub_id, folder)}"
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        what = "`huggingface_hub` is not installed"
        raise SourceError(what, hub_id, f"pip install huggingface_hub, or run: {fix.partition(': ')[2]}") from None
    try:
        snapshot_download(hub_id, local_dir=folder)
    except Exception as error:  # the hub's client passes on whatever its HTTP library raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SourceError(f"cannot be downloaded: {reason}", hub_id, fix) from None
