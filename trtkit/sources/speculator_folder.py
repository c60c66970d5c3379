"""The files of a draft head."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources.safetensors_file import read_folder

if TYPE_CHECKING:
    from pathlib import Path

_PICKLES = (".bin", ".pt", ".pth")


def speculator_files(folder: Path) -> list[Path]:
    """Return the files of a head. Raises SourceError for a folder that is missing or holds pickles."""
    return [speculator_config(folder), *read_folder(folder)[1]]


def speculator_config(folder: Path) -> Path:
    """Return the path of a head's config.json. Raises SourceError if there is none, or if the weights are a pickle."""
    if not (folder / "config.json").is_file():
        what = "the folder has no `config.json`" if folder.is_dir() else "no such folder"
        raise SourceError(what, str(folder), "give the folder of a head that guesses tokens")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles and not any(folder.glob("*.safetensors")):
        code = "import sys, torch, safetensors.torch as s; f = sys.argv[1]; "
        code += f"t = torch.load(f + '/{pickles[0]}', weights_only=True); "
        code += "s.save_file({k: v.clone().contiguous() for k, v in t.items()}, f + '/model.safetensors')"
        what = f"the head is a pickle (`{pickles[0]}`), which can run code when it is read"
        fix = f"convert it to safetensors: {shlex.join(['python', '-c', code, str(folder)])}"
        raise SourceError(what, str(folder), fix)
    return folder / "config.json"
