"""Folders of components attached to a model: LoRA adapters saved by PEFT, draft heads."""

import shlex
from pathlib import Path

from trtkit.errors import SourceError
from trtkit.sources.safetensors_file import read_folder

ADAPTER_CONFIG = "adapter_config.json"
_WEIGHTS, _PICKLE = "adapter_model.safetensors", "adapter_model.bin"


def adapter_files(folder: Path) -> tuple[Path, Path]:
    """Return an adapter's config and its matrices. Raises SourceError if either is missing or a pickle."""
    if not folder.is_dir():
        raise SourceError("no such folder", str(folder), "give the folder of an adapter that PEFT saved")
    config, weights = folder / ADAPTER_CONFIG, folder / _WEIGHTS
    if not config.is_file():
        what = f"the folder has no `{ADAPTER_CONFIG}`"
        raise SourceError(what, str(folder), "give the folder of an adapter that PEFT saved")
    if weights.is_file():
        return config, weights
    if not (folder / _PICKLE).is_file():
        fix = "copy or download the adapter again"
        raise SourceError(f"the folder has no `{_WEIGHTS}`", str(folder), fix)
    code = "import sys, torch, safetensors.torch as s; f = sys.argv[1]; "
    code += f"t = torch.load(f + '/{_PICKLE}', weights_only=True); "
    code += f"s.save_file({{k: v.contiguous() for k, v in t.items()}}, f + '/{_WEIGHTS}')"
    command = shlex.join(["python", "-c", code, str(folder)])
    what = f"the adapter is a pickle (`{_PICKLE}`), which can run code when it is read"
    raise SourceError(what, str(folder), f"convert it to safetensors: {command}")


_PICKLES = (".bin", ".pt", ".pth")


def speculator_files(folder: Path) -> list[Path]:
    """Return the files of a draft head. Raises SourceError for a missing folder or one with pickles."""
    return [speculator_config(folder), *read_folder(folder)[1]]


def speculator_config(folder: Path) -> Path:
    """Return a draft head's config.json. Raises SourceError if it is missing, or if the weights are a pickle."""
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
