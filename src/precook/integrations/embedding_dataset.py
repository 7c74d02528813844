"""A dataset's embeddings, made once: only what is missing of them is encoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.encode.results import WrongResultsError, count_results
from precook.errors import EncodeError, PrecookError, SourceChangedError, printable
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.identify import identify
from precook.report import SILENT, Reporter
from precook.store.tree import Tree

if TYPE_CHECKING:
    from precook.integrations.embedding import EmbeddingCacheManager

Sample = Mapping[str, Any]
"""`image`, `control`, further `controls` and `prompt` of one training example, those that there are.

Pictures by their paths, or as arrays and tensors; with `file_hashes`, the trainer's dataset finds what was cached.
"""
Encode = Callable[[list[Sample]], Sequence[Tree]]
"""Makes one result for each sample; for several cache types, a tuple of results."""
_FURTHER_CONTROLS = 100


class Decides(Enum):
    """What of a sample decides a result."""

    IMAGE = "image"
    CONTROLS = "controls"
    PROMPT = "prompt"
    """With the controls, unless prompts are encoded alone."""
    EMPTY_PROMPT = "empty prompt"
    ALL = "all"


_BY_TYPE = {
    "pixel_latent": Decides.IMAGE,
    "image_latents": Decides.IMAGE,
    "control_latent": Decides.CONTROLS,
    "control_latents": Decides.CONTROLS,
    "control_ids": Decides.CONTROLS,
    "text_ids": Decides.PROMPT,
}
_PROMPTS = ("prompt_embed", "pooled_prompt_embed")


def cache_dataset(
    manager: EmbeddingCacheManager,
    samples: Iterable[Sample],
    encode: Mapping[str | tuple[str, ...], Encode],
    *,
    batch_size: int = 16,
    prompts_alone: bool = False,
    report: Reporter = SILENT,
) -> dict[str, int]:
    """Encode what is missing of a dataset, and nothing else; how many results of each cache type that took.

    `encode` has a function for each cache type, or for several types that are made together. What a type's name does
    not tell to depend on less depends on everything a sample has. Prompts depend on the controls, too, because an edit
    model encodes them together; `prompts_alone` says that this one does not. Training is given the types that `encode`
    names, so name all of them, also those of which nothing is missing. Everything is durable when this returns; after
    an interruption the next call goes on where it stopped.
    """
    dataset = samples if isinstance(samples, Sequence) or hasattr(samples, "__getitem__") else list(samples)
    rows = _Rows(manager, dataset, prompts_alone=prompts_alone)
    groups = {name if isinstance(name, tuple) else (name,): function for name, function in encode.items()}
    hashes = rows.read({types: _decides(types) for types in groups}, batch_size)
    counts = {}
    for types, function in groups.items():
        by_hash: dict[str, int] = {}
        for row, file_hash in enumerate(hashes[types]):
            if file_hash is not None:
                by_hash.setdefault(file_hash, row)
        lacking = {file_hash for cache_type in types for file_hash in manager.missing(cache_type, by_hash)}
        missing = [file_hash for file_hash in by_hash if file_hash in lacking]
        with report.task(", ".join(types), total=len(missing), unit="entries") as task:
            for start in range(0, len(missing), batch_size):
                batch = {file_hash: rows[by_hash[file_hash]] for file_hash in missing[start : start + batch_size]}
                _encode_batch(rows, types, function, batch)
                task.advance(len(batch))
        counts.update(dict.fromkeys(types, len(missing)))
    for row, file_hashes in rows.file_hashes.items():
        found = {
            name: manager.key_of(name, file_hash)
            for types in groups
            for name in types
            if (file_hash := hashes[types][row]) is not None
        }
        manager.save_sample(file_hashes, {name: key for name, key in found.items() if key is not None})
    manager.flush()
    return counts


class _Rows:
    """The samples of a dataset, read when they are needed, and their hashes."""

    def __init__(self, manager: EmbeddingCacheManager, dataset: Any, *, prompts_alone: bool) -> None:
        self.manager = manager
        self._dataset = dataset
        self._prompts_alone = prompts_alone
        self.file_hashes: dict[int, Mapping[str, Any]] = {}
        """What the trainer's own dataset knows samples by."""

    def __getitem__(self, row: int) -> Sample:
        sample: Sample = self._dataset[row]
        return sample

    def read(
        self, groups: Mapping[tuple[str, ...], Decides], batch_size: int
    ) -> dict[tuple[str, ...], list[str | None]]:
        """For each group and sample the hash of its result; None where the sample has no such part."""
        hashes: dict[tuple[str, ...], list[str | None]] = {types: [] for types in groups}
        for start in range(0, len(self._dataset), batch_size):
            batch = [self[row] for row in range(start, min(start + batch_size, len(self._dataset)))]
            for types, decides in groups.items():
                hashes[types] += self.hashes(decides, batch)
            for row, sample in enumerate(batch, start):
                if sample.get("file_hashes"):
                    self.file_hashes[row] = sample["file_hashes"]
        return hashes

    def hashes(self, decides: Decides, samples: Sequence[Sample]) -> list[str | None]:
        """For each sample the hash of what decides a result."""
        if decides is Decides.IMAGE:
            return self._pictures([[sample.get("image")] for sample in samples])
        alone = self._prompts_alone and decides in (Decides.PROMPT, Decides.EMPTY_PROMPT)
        controls = self._pictures([[] if alone else _controls(sample) for sample in samples])
        if decides is Decides.CONTROLS:
            return controls
        prompts = ["" if decides is Decides.EMPTY_PROMPT else _prompt(sample) for sample in samples]
        with_controls = [self.manager.hash_of_prompt(*pair) for pair in zip(controls, prompts, strict=True)]
        if decides is not Decides.ALL:
            return list(with_controls)
        images = self.hashes(Decides.IMAGE, samples)
        return [digest(canonical(list(pair))).hex for pair in zip(images, with_controls, strict=True)]

    def _pictures(self, groups: list[list[Any]]) -> list[str | None]:
        """One hash for the pictures of each sample; None where there are none."""
        groups = [[picture for picture in pictures if picture is not None] for pictures in groups]
        paths = {Path(picture): "" for pictures in groups for picture in pictures if _is_path(picture)}
        paths = dict(zip(paths, self.manager.hashes_of(list(paths)), strict=True)) if paths else {}
        hashes: list[str | None] = []
        for pictures in groups:
            each = [paths[Path(one)] if _is_path(one) else digest(canonical(identify(one))).hex for one in pictures]
            hashes.append(None if not each else each[0] if len(each) == 1 else digest(canonical(each)).hex)
        return hashes


def _decides(types: tuple[str, ...]) -> Decides:
    """What decides the results of types that are made together."""
    found = {_decides_one(name) for name in types}
    return found.pop() if len(found) == 1 else Decides.ALL


def _decides_one(cache_type: str) -> Decides:
    if cache_type in _BY_TYPE:
        return _BY_TYPE[cache_type]
    if not cache_type.removeprefix("empty_").startswith(_PROMPTS):
        return Decides.ALL
    return Decides.EMPTY_PROMPT if cache_type.startswith("empty_") else Decides.PROMPT


def _encode_batch(rows: _Rows, types: tuple[str, ...], function: Encode, batch: Mapping[str, Sample]) -> None:
    """Encode samples, by their hashes, and save the results, if there is one for each and no picture has changed."""
    decides = _decides(types)
    samples = list(batch.values())
    given = [{**sample, "prompt": ""} for sample in samples] if decides is Decides.EMPTY_PROMPT else samples
    encoder = f"the encoder of {', '.join(types)}"
    try:
        results = count_results(function(list(given)), len(samples))
    except WrongResultsError as wrong:
        raise EncodeError(f"{encoder} returned {wrong.returned} for {len(samples)} samples") from None
    # A picture that was edited between its hash and its encoding must not be found under the old hash.
    for before, now, sample in zip(batch, rows.hashes(decides, samples), samples, strict=True):
        if before != now:
            pictures = [sample["image"]] if decides is Decides.IMAGE else _controls(sample)
            raise SourceChangedError(next((Path(picture) for picture in pictures if _is_path(picture)), Path()))
    for file_hash, result in zip(batch, results, strict=True):
        parts = (result,) if len(types) == 1 else result
        if type(parts) is not tuple or len(parts) != len(types):
            raise EncodeError(f"{encoder} must return a tuple of {len(types)} for each sample")
        for cache_type, part in zip(types, parts, strict=True):
            rows.manager.save_cache(cache_type, file_hash, part)


def _controls(sample: Sample) -> list[Any]:
    """All control pictures of a sample; a dataset may have numbered those behind the first."""
    numbered = [sample.get(f"control_{number}") for number in range(1, _FURTHER_CONTROLS)]
    controls = [sample.get("control"), *(sample.get("controls") or ()), *numbered]
    return [control for control in controls if control is not None]


def _prompt(sample: Sample) -> str:
    prompt = sample.get("prompt")
    if not isinstance(prompt, str):
        # Not as the text 'None': that is a prompt, and another one than the empty one.
        given = f"a {type(prompt).__name__} as its prompt" if prompt is not None else "no prompt"
        hint = "write '' where it is empty"
        raise PrecookError(f"the sample of {printable(sample.get('image'))} has {given}", hint=hint)
    return prompt


def _is_path(picture: object) -> bool:
    return isinstance(picture, str | os.PathLike)
