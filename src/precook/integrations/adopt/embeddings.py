"""Old folders of embeddings, as qwen-image-finetune writes them: one file per tensor, and one that lists a sample's.

    metadata/<main hash>.json      the hash of each tensor of a sample
    <name of the tensor>/<hash>.pt

Each sample is found again by the trainer's own hashes of its files, which `EmbeddingCacheManager` makes too. Where the
old names cannot tell whose a tensor is, the sample is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from precook.errors import EncodeError, SourceError, printable
from precook.fs.old_caches import EMBEDDING_METADATA, EMBEDDINGS, name_old_cache
from precook.fs.read import NotAFileError, TooLargeError, read_small
from precook.integrations.adopt.formats import UnusableError
from precook.integrations.adopt.search import FrontAdoption, LeftOut
from precook.integrations.adopted import STATUS
from precook.integrations.embedding import EmbeddingCacheManager
from precook.integrations.torch_file import read_torch_file
from precook.report import SILENT, Reporter
from precook.store.dtypes import load_torch
from precook.store.store import Store
from precook.values import Key

TOOL = "qwen-image-finetune"
_LIMIT = 1 << 20
_HASH = re.compile(r"([0-9a-f]{32})+")
"""One MD5 after the other; a hash of a picture that was never a file is shorter."""
_NAME = re.compile(r"[A-Za-z0-9_]+")
_NOT_TENSORS = ("version", "img_shapes")
_CONTROLS = "control_latents"
_PROMPTS_ALONE = "pooled_prompt_embeds"
"""A model that makes these encodes prompts without a picture."""


@dataclass(frozen=True, slots=True)
class OldSample:
    """A sample that was cached, with the file of each of its tensors."""

    main_hash: str
    controls: str | None
    """The hashes of its control pictures, one after the other."""
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class EmbeddingAdoptionPlan:
    """What would be adopted of a folder; nothing is stored before `execute`."""

    entries: tuple[OldSample, ...]
    left_out: tuple[LeftOut, ...]
    nbytes: int
    """Of the files."""
    tool: ClassVar[str] = TOOL
    part: ClassVar[str] = "sample"
    doubt: ClassVar[str] = "; which encoder made them is not known"
    next_step: ClassVar[str] = "; name it as cache_dir"

    def execute(self, store: Store, *, report: Reporter = SILENT) -> FrontAdoption:
        """Store the tensors as samples of `EmbeddingCacheManager`: durable when it returns. The files stay as they are.

        A sample that the store has already, perhaps cached since, stays as it is there.
        """
        names = {name for sample in self.entries for name in sample.files}
        manager = EmbeddingCacheManager(store, encoders={name: {"status": STATUS, "tool": TOOL} for name in names})
        keys: dict[Path, Key] = {}
        failed = []
        adopted = 0
        with report.task("adopting", total=len(self.entries), unit="samples") as task:
            for sample in self.entries:
                hashes = {"main_hash": sample.main_hash}
                if sample.controls is not None:
                    hashes["controls_sum_hash"] = sample.controls
                try:
                    if not manager.has_sample(hashes):
                        for name, path in sample.files.items():
                            if path not in keys:
                                keys[path] = manager.save_tensor(name, _read(path), str(path))
                        manager.save_sample(hashes, {name: keys[path] for name, path in sample.files.items()})
                    adopted += 1
                except (UnusableError, EncodeError) as error:
                    failed.append(LeftOut(_metadata_name(sample.main_hash), str(error)))
                task.advance()
        manager.close()
        return FrontAdoption(adopted, tuple(failed))


def plan_adopt_embeddings(folder: Path) -> EmbeddingAdoptionPlan:
    """Look through an old folder of embeddings; nothing is changed, and no tensor is read."""
    old = name_old_cache(folder)
    if old is None or old.what != EMBEDDINGS:
        raise SourceError(folder, f"no embeddings of {TOOL} here", hint="name the folder that `cache_dir` names")
    samples: list[OldSample] = []
    left_out: list[LeftOut] = []
    for path in sorted((folder / EMBEDDING_METADATA).glob("*.json")):
        try:
            samples.append(_read_metadata(path, folder))
        except UnusableError as error:
            left_out.append(LeftOut(f"{EMBEDDING_METADATA}/{path.name}", str(error)))
    kept = list(_unambiguous(samples, left_out))
    files = {path for sample in kept for path in sample.files.values()}
    return EmbeddingAdoptionPlan(tuple(kept), tuple(left_out), sum(path.stat().st_size for path in files))


def _read_metadata(path: Path, folder: Path) -> OldSample:
    try:
        metadata = json.loads(read_small(path, _LIMIT))
    except (NotAFileError, TooLargeError, OSError, ValueError, RecursionError) as error:
        raise UnusableError(f"not the list of a sample's tensors: {printable(error)}") from error
    listed = metadata if isinstance(metadata, dict) else {}
    hashes = {name: text for name, text in listed.items() if name not in _NOT_TENSORS}
    if not hashes:
        raise UnusableError("it lists no tensors")
    for name, text in [("the main hash", path.stem), *hashes.items()]:
        # Also before a path is made of it.
        if not isinstance(text, str) or not _HASH.fullmatch(text):
            reason = "pictures that were no files have hashes that similar ones share"
            raise UnusableError(f"{name} is no MD5 of files: {reason}; cache it anew")
        if name != "the main hash" and not _NAME.fullmatch(name):
            raise UnusableError(f"{name!r} is no name of a tensor")
    files = {name: folder / name / f"{text}.pt" for name, text in hashes.items()}
    for file in files.values():
        if not file.is_file():
            raise UnusableError(f"{file.relative_to(folder)} is missing")
    return OldSample(path.stem, hashes.get(_CONTROLS), files)


def _unambiguous(samples: list[OldSample], left_out: list[LeftOut]) -> Iterator[OldSample]:
    """Samples whose prompts can only be their own.

    The trainer names a prompt's tensors by the prompt alone, also where a control picture was encoded along with it.
    """
    controls: dict[Path, set[str | None]] = {}
    for sample in samples:
        for path in sample.files.values():
            controls.setdefault(path, set()).add(sample.controls)
    for sample in samples:
        shared = [name for name, path in sample.files.items() if "prompt" in name and len(controls[path]) > 1]
        if shared and _PROMPTS_ALONE not in sample.files:
            reason = f"{', '.join(shared)} were cached for several control pictures under one name; cache it anew"
            left_out.append(LeftOut(_metadata_name(sample.main_hash), reason))
        else:
            yield sample


def _metadata_name(main_hash: str) -> str:
    return f"{EMBEDDING_METADATA}/{main_hash}.json"


def _read(path: Path) -> object:
    """The tensor in a file of torch.save, and nothing else."""
    try:
        tensor = read_torch_file(path)
    except (NotAFileError, OSError, ValueError) as error:
        raise UnusableError(f"{path.parent.name}/{path.name} cannot be read: {printable(error)}") from error
    if not isinstance(tensor, load_torch().Tensor):
        raise UnusableError(f"{path.parent.name}/{path.name} holds no tensor")
    return tensor
