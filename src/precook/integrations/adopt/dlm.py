"""Old caches of dlm: tokenized sections with their manifest, and processed pictures.

    manifest.json                                                    the key of each section
    entries/<2 digits>/<section>.<12 digits>.seq<length>.npz         input_ids and attention_mask
    <2 digits>/<picture>.<12 digits>.<height>x<width>.npz            pixel_values

They are found again by the same keys through `TokenizedCache` and `VlCache`. A name has twelve digits of the digest of
the tokenizer or processor: the rest is in the manifest, or has to be said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from precook.errors import PrecookError, SourceError, printable
from precook.fs.old_caches import DLM_PICTURES, DLM_SECTIONS, PROCESSED_NAME, SECTION_NAME, name_old_cache
from precook.fs.read import NotAFileError, TooLargeError, read_small
from precook.integrations.adopt.formats import UnusableError
from precook.integrations.adopt.npz import NpzFile
from precook.integrations.adopt.plan import checked_parts
from precook.integrations.adopt.search import FrontAdoption, LeftOut
from precook.integrations.tokenized import CachedTokens, CacheKey, TokenizedCache
from precook.integrations.vl import VlCache, VlCacheKey
from precook.report import SILENT, Reporter
from precook.store.store import Store

TOOL = "dlm"
_MANIFEST = "manifest.json"
_LIMIT = 1 << 30
"""Bytes of a manifest; one section takes some 300."""
_SHOWN = 12
"""Digits of a digest that a name has."""
_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_ONE_DIMENSION = 1

Part = Literal["section", "picture"]


@dataclass(frozen=True, slots=True)
class OldEntry:
    """A file, and the key that it is adopted under."""

    path: Path
    key: CacheKey | VlCacheKey


@dataclass(frozen=True, slots=True)
class DlmAdoptionPlan:
    """What would be adopted of a folder; nothing is stored before `execute`."""

    part: Part
    entries: tuple[OldEntry, ...]
    left_out: tuple[LeftOut, ...]
    nbytes: int
    """Of the files."""
    tool: ClassVar[str] = TOOL
    doubt: ClassVar[str] = ""
    next_step: ClassVar[str] = ""

    def execute(self, store: Store, *, report: Reporter = SILENT) -> FrontAdoption:
        """Store what the files hold: durable when it returns. The files stay as they are.

        What the store has already under a key stays.
        """
        failed: list[LeftOut] = []
        with (
            TokenizedCache(store, strict=True) as sections,
            VlCache(store) as pictures,
            report.task("adopting", total=len(self.entries), unit="entries") as task,
        ):
            for entry in self.entries:
                try:
                    if isinstance(entry.key, CacheKey):
                        sections.put(entry.key, _read_section(entry.path))
                    else:
                        pictures.put(entry.key, _read_picture(entry.path))
                except UnusableError as error:
                    failed.append(LeftOut(entry.path, str(error)))
                task.advance()
        return FrontAdoption(len(self.entries) - len(failed), tuple(failed))


def plan_adopt_dlm(folder: Path, *, digests: Mapping[str, str] | None = None) -> DlmAdoptionPlan:
    """Look through an old cache of dlm; nothing is changed, and no array is read.

    `digests` says under which digest of a tokenizer or processor to keep what dlm kept under another, by its first
    twelve digits or more: `{old: old}` where your keys still have dlm's own.
    """
    chosen = _check_digests(digests or {})
    old = name_old_cache(folder)
    what = old.what if old is not None else None
    if what not in (DLM_SECTIONS, DLM_PICTURES):
        raise SourceError(
            folder, f"no cache of {TOOL} here", hint="name its tokenized-cache folder, or that of a VlCache"
        )
    left_out: list[LeftOut] = []
    if what == DLM_SECTIONS:
        known = _read_manifest(folder, left_out)
        entries = list(_sections(folder, {**known, **chosen}, left_out))
    else:
        entries = list(_pictures(folder, chosen, left_out))
    nbytes = sum(entry.path.stat().st_size for entry in entries)
    return DlmAdoptionPlan("section" if what == DLM_SECTIONS else "picture", tuple(entries), tuple(left_out), nbytes)


def _check_digests(digests: Mapping[str, str]) -> dict[str, str]:
    for old in digests:
        if not _DIGEST.fullmatch(old):
            raise PrecookError(f"{old!r} is no digest", hint=f"give at least the {_SHOWN} digits that names have")
    return {old[:_SHOWN]: new for old, new in digests.items()}


def _read_manifest(folder: Path, left_out: list[LeftOut]) -> dict[str, str]:
    """The digests of tokenizers that the manifest names, by their first digits; those that share them are left out."""
    try:
        manifest = json.loads(read_small(folder / _MANIFEST, _LIMIT))
    except FileNotFoundError:
        return {}
    except (NotAFileError, TooLargeError, OSError, ValueError, RecursionError) as error:
        left_out.append(LeftOut(folder / _MANIFEST, f"it is unreadable: {printable(error)}"))
        return {}
    listed = manifest if isinstance(manifest, dict) else {}
    rows = listed.get("entries")
    rows = rows if isinstance(rows, dict) else {}
    named = [
        listed.get("tokenizer_sha256"),
        *(row.get("tokenizer_sha") for row in rows.values() if isinstance(row, dict)),
    ]
    known: dict[str, set[str]] = {}
    for digest in named:
        if isinstance(digest, str) and _DIGEST.fullmatch(digest):
            known.setdefault(digest[:_SHOWN], set()).add(digest)
    return {start: next(iter(whole)) for start, whole in known.items() if len(whole) == 1}


def _sections(folder: Path, digests: Mapping[str, str], left_out: list[LeftOut]) -> Iterator[OldEntry]:
    for path in sorted((folder / "entries").glob("*/*.npz")):
        match = re.fullmatch(SECTION_NAME, path.name)
        if match is None:
            left_out.append(LeftOut(path, "no section has this name"))
        elif match[2] not in digests:
            reason = f"no manifest says which tokenizer {match[2]} is; --digest says it"
            left_out.append(LeftOut(path, reason))
        else:
            yield OldEntry(path, CacheKey(match[1], digests[match[2]], int(match[3])))


def _pictures(folder: Path, digests: Mapping[str, str], left_out: list[LeftOut]) -> Iterator[OldEntry]:
    for path in sorted(folder.glob("[0-9a-f][0-9a-f]/*.npz")):
        match = re.fullmatch(PROCESSED_NAME, path.name)
        if match is None:
            left_out.append(LeftOut(path, "no processed picture has this name"))
        elif match[2] not in digests:
            reason = f"its name does not say which processor {match[2]} is; --digest says it"
            left_out.append(LeftOut(path, reason))
        else:
            yield OldEntry(path, VlCacheKey(match[1], digests[match[2]], int(match[3]), int(match[4])))


def _read_section(path: Path) -> CachedTokens:
    arrays = _read(path, ("input_ids", "attention_mask"))
    ids, mask = arrays["input_ids"], arrays["attention_mask"]
    if (
        ids.ndim != _ONE_DIMENSION
        or ids.shape != mask.shape
        or ids.dtype.kind not in "iu"
        or mask.dtype.kind not in "iub"
    ):
        raise UnusableError("its tokens and their mask are no two lists of whole numbers, equally long")
    return CachedTokens(ids, mask)


def _read_picture(path: Path) -> Any:
    pixels = _read(path, ("pixel_values",))["pixel_values"]
    checked_parts(path, pixels)
    return pixels


def _read(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        with NpzFile(path) as file:
            arrays = {name: file.read(name) for name in names if name in file.names}
    except (OSError, ValueError) as error:
        raise UnusableError(f"it cannot be read: {printable(error)}") from error
    if missing := [name for name in names if name not in arrays]:
        raise UnusableError(f"it has no {' and no '.join(missing)}")
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}
