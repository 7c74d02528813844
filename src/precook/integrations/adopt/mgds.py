"""The caches of mgds, as OneTrainer has them: files without names, and an index that says what they were made of.

DiskCache        <group>/variation-0/3.pt, and aggregate.pt beside them with the path of each picture
SmartDiskCache   <hash>_<height>x<width>_1.pt, and cache.json beside them with the content of each source

A DiskCache of texts has no index that would say which text a file was made of: nobody can adopt it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from precook.fs.old_caches import MGDS, PICTURE_PATH, SMART_NAME, OldName, Part
from precook.fs.read import NotAFileError, TooLargeError, read_small
from precook.integrations.adopt.formats import UNKNOWN, UnusableError, frame_size
from precook.integrations.torch_file import read_torch_file

INDEX, AGGREGATE = "cache.json", "aggregate.pt"
VARIATION = re.compile(r"variation-([0-9]{1,9})")

_MAX_INDEX = 256 << 20
_MAX_AGGREGATE = 16 << 20
"""Bytes of the pickle that names all pictures of a group: for 100,000 of them."""
_NAMED = re.compile(SMART_NAME)
_MEMBER = re.compile(r"([0-9]{1,9})\.pt")

Indexed = tuple[Path, str, OldName]
"""A cache file, the source it was made of, and what the index says about it."""


def find_disk_cache(folder: Path, files: list[str]) -> Iterator[Indexed]:
    """The files of one variation of one group of a DiskCache; `UnusableError` where nobody knows what they are."""
    match = VARIATION.fullmatch(folder.name)
    assert match is not None
    members = {int(found[1]): found[0] for found in map(_MEMBER.fullmatch, files) if found}
    if not members:
        return
    if AGGREGATE not in files:
        raise UnusableError("mgds was interrupted here: there is no aggregate.pt, which says what the files are")
    try:
        noted = read_torch_file(folder / AGGREGATE, max_pickle=_MAX_AGGREGATE)
    except (OSError, ValueError) as error:
        raise UnusableError(f"its aggregate.pt cannot be read: {error}") from error
    items = noted if isinstance(noted, list) else []
    if not any(isinstance(item, dict) and isinstance(item.get(PICTURE_PATH), str) for item in items):
        raise UnusableError("its aggregate.pt does not say which pictures or texts the files were made of")
    for number, name in sorted(members.items()):
        item = items[number] if number < len(items) and isinstance(items[number], dict) else {}
        source = item.get(PICTURE_PATH)
        if not isinstance(source, str):
            raise UnusableError(f"its aggregate.pt does not say what {name} was made of")
        crop = frame_size(item.get("crop_resolution"))
        known = OldName(MGDS, "latent", _stem(source), UNKNOWN, crop=crop, variation=int(match[1]))
        yield folder / name, source, known


def find_smart_disk_cache(folder: Path, files: list[str]) -> Iterator[Indexed]:
    """The files of a SmartDiskCache; `UnusableError` where its index cannot be read."""
    if not any(map(_NAMED.fullmatch, files)):
        return  # other programs call files so, too
    try:
        index = json.loads(read_small(folder / INDEX, _MAX_INDEX))
        entries = index["entries"].items()
    except (NotAFileError, TooLargeError) as error:
        raise UnusableError(f"its cache.json is {error.reason}") from error
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UnusableError(f"its cache.json cannot be read: {error!r}") from error
    there = set(files)
    for source, entry in entries:
        if not isinstance(entry, dict):
            continue
        sourceless, variants = entry.get("sourceless"), entry.get("variants")
        noted: dict[str, Any] = sourceless if isinstance(sourceless, dict) else {}
        part: Part = "prompt" if noted.get("source_path_in_name") == "sample_prompt_path" else "latent"
        linked = noted.get("linked_paths")
        picture = linked.get(PICTURE_PATH) if part == "prompt" and isinstance(linked, dict) else source
        content, model = entry.get("hash"), entry.get("modeltype")
        for variant in variants.values() if isinstance(variants, dict) else ():
            beginning = variant.get("cache_file") if isinstance(variant, dict) else None
            # The name of a file begins with the content it was made of; one that does not is another's.
            if not isinstance(beginning, str) or not isinstance(content, str) or not beginning.startswith(content[:12]):
                continue
            for number in range(1, len(there) + 1):
                if f"{beginning}_{number}.pt" not in there:
                    break
                known = OldName(
                    MGDS,
                    part,
                    _stem(str(picture)),
                    model if isinstance(model, str) and model else UNKNOWN,
                    crop=frame_size(variant.get("crop_resolution")),
                    variation=number - 1,
                    content=content if part == "latent" else None,
                )
                yield folder / f"{beginning}_{number}.pt", str(picture), known


def _stem(source: str) -> str:
    """The name of a source without its suffix, whatever system wrote its path."""
    return os.path.splitext(re.split(r"[/\\]", source)[-1])[0]  # noqa: PTH122
