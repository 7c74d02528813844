"""The hub: models by name and revision, from huggingface_hub's own cache, downloaded when they are not in it.

A name and a revision only tell where files come from. An encoder stays known by the content of its files, wherever they
lie: a branch that moves is another encoder only if its files are others.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precook.encode.torch_tools import library, named_shards, summary
from precook.errors import EncodeError, printable
from precook.report import SILENT, Reporter, Task

_UNUSED = (
    "*.onnx",
    "*.onnx_data",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.tflite",
    "*.mlmodel",
    "*.ckpt",
    "*.pth",
    "*pytorch_model*.bin",
    "*pytorch_model*.bin.index*.json",
    "*.fp16.*",
    "*.non_ema.*",
    "consolidated*.safetensors",
)
"""Weights in formats and variants that no encoder of ours ever loads: neither downloaded nor part of a recipe."""


def is_unused(name: str) -> bool:
    """Whether a file inside of a model's folder is never looked at."""
    return any(fnmatchcase(name, pattern) for pattern in _UNUSED)


class HubSnapshots:
    """The folders of models of the hub as one project's last plan found them: by name, revision and the parts wanted.

    Whoever loads a model after the plan takes these files, whose content is in the keys, though the branch may have
    moved in the hub's cache since.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, tuple[str, ...]], Path] = {}

    def planned(self, name: str, revision: str, folders: Sequence[str]) -> Path:
        """What the last plan found; without a plan, what is there now."""
        return self._found.get((name, revision, tuple(folders))) or self.find(name, revision, folders, SILENT)

    def find(self, name: str, revision: str, folders: Sequence[str], report: Reporter) -> Path:
        """The folder of a model, with all that lies in these folders of it (or in it, where there are none).

        A name that ends with .json is a file and not a folder.

        What the cache has is taken as it is, without asking the hub; the rest is downloaded. A cache that somebody else
        has filled may have only some files of a folder: where no weights lie beside a config, the hub is asked what is
        missing.
        """
        hub: Any = library("huggingface_hub")
        wanted: dict[str, Any] = {
            "revision": revision,
            "allow_patterns": list(map(_pattern, folders)) or None,
            "ignore_patterns": list(_UNUSED),
        }
        try:
            snapshot = _cached(hub, name, folders, wanted)
            if snapshot is None or not all(_is_whole(snapshot / folder) for folder in folders or [""]):
                with report.task(f"downloading {name}", total=None, unit="files") as task:
                    snapshot = Path(hub.snapshot_download(name, tqdm_class=_bar(task), **wanted))
        except (OSError, ValueError, hub.errors.HTTPError) as error:
            raise _unavailable(hub, name, revision, folders, error) from error
        self._found[name, revision, tuple(folders)] = snapshot
        return snapshot


def _cached(hub: Any, name: str, folders: Sequence[str], wanted: dict[str, Any]) -> Path | None:
    """What the hub's cache has of a model, if every folder that is wanted is among it."""
    try:
        snapshot = Path(hub.snapshot_download(name, local_files_only=True, **wanted))
    except hub.errors.LocalEntryNotFoundError:
        return None
    # A cache filled by somebody else may have other parts of the model.
    return snapshot if all((snapshot / folder).exists() for folder in folders) else None


def _pattern(name: str) -> str:
    """What belongs to a folder, or a file itself."""
    return name if name.endswith(".json") else f"{name}/*"


def _is_whole(folder: Path) -> bool:
    """Whether a folder seems to have all its files: weights beside a config, and all that an index of weights names."""
    if not folder.is_dir():
        return True
    names = {file.name for file in folder.iterdir()}
    for index in folder.glob("*.safetensors.index.json"):
        shards = named_shards(index)
        if not shards or not shards <= names:
            return False
    return "config.json" not in names or any(name.endswith(".safetensors") for name in names)


def _bar(task: Task) -> Any:
    """A bar of tqdm's kind that shows nothing and tells us of each file."""
    tqdm: Any = importlib.import_module("tqdm.auto").tqdm  # comes with huggingface_hub

    class DownloadBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            # Newer versions have two more bars, which count bytes.
            self._files = options.get("unit") != "B"
            super().__init__(*args, **{**options, "disable": True})

        def __iter__(self) -> Any:
            for file in self.iterable:
                yield file
                self.update()

        def update(self, n: float | None = 1) -> None:
            if self._files:
                task.advance(int(n or 0))

    return DownloadBar


def _unavailable(hub: Any, name: str, revision: str, folders: Sequence[str], error: Exception) -> EncodeError:
    errors = hub.errors
    place = f"{printable(name)}, revision {printable(revision)}"
    if isinstance(error, errors.HFValidationError):
        hint = "name a folder, or a model of the hub as owner/name"
        return EncodeError(f"no such folder, and no name of a model on the hub: {printable(name)}", hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        hint = "name a branch, a tag or a commit that is there, such as main"
        return EncodeError(f"{place}: the hub has no such revision", hint=hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "check the name; a private or gated model needs `hf auth login` first"
        return EncodeError(f"{place}: the hub has no such model, or does not show it to you", hint=hint)
    includes = [part for folder in folders for part in ("--include", _pattern(folder))]
    command = shlex.join(["hf", "download", name, "--revision", revision, *includes])
    hint = f"run `{printable(command)}` where there is a network, or name a folder that is here"
    if not isinstance(error, errors.LocalEntryNotFoundError):
        reason = summary(error)
    elif hub.constants.HF_HUB_OFFLINE:
        reason = "it is not in the hub's cache here, and HF_HUB_OFFLINE forbids to download it"
    else:
        reason = "it is not in the hub's cache here, and the hub cannot be reached"
    return EncodeError(f"{place}: {reason}", hint=hint)
