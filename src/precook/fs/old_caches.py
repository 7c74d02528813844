"""What other tools have cached: what the name of a file says, and what a folder holds.

Names alone are looked at, and few of them: whoever opens a folder as a store and finds something else there is told
what it is and how to adopt it. A tool is added by what finds its files, in `_FORMATS`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precook.errors import printable

SD_SCRIPTS = "sd-scripts"
MUSUBI_TUNER = "musubi-tuner"
AI_TOOLKIT = "ai-toolkit"
MGDS = "mgds"
TOOLS = (SD_SCRIPTS, MUSUBI_TUNER, AI_TOOLKIT, MGDS)
LATENT_FOLDER = "_latent_cache"
TEXT_FOLDER = "_t_e_cache"
EMBEDDING_METADATA = "metadata"
EMBEDDINGS = "embeddings of qwen-image-finetune"
"""What is told of its cache_dir."""
SMART_NAME = r"[0-9a-f]{12}(_[0-9x]+)?_[0-9]+\.pt"
"""What mgds' SmartDiskCache calls a file: by a hash, perhaps a resolution, and a variation."""
PICTURE_PATH = "image_path"
"""What mgds calls the path of a picture."""

Part = Literal["latent", "prompt"]
Size = tuple[int, int]

_MANY = 1000
"""Names of a folder that are looked at: one of a hundred thousand pictures is told apart by its first ones."""
_FEW = 20
"""Folders in a folder that are looked into."""


@dataclass(frozen=True, slots=True)
class OldName:
    """What the name of a cache file says, or the index beside it."""

    tool: str
    part: Part
    stem: str
    """The picture's name without its suffix."""
    architecture: str | None = None
    """As the tool shortens it; None where only the file itself says it."""
    size: Size | None = None
    """Width and height of the picture."""
    crop: Size | None = None
    """Height and width of the cut, where an index beside the file says it; the same goes for the others."""
    variation: int | None = None
    content: str | None = None
    """xxh64 of the picture."""


_SD_TEXT_ENDINGS = {
    "_te_outputs": "sdxl",
    "_sd3_te": "sd3",
    "_flux_te": "flux",
    "_lumina_te": "lumina",
    "_hi_te": "hi",
    "_anima_te": "anima",
}
_SD_LATENT_NAME = re.compile(r"(.+)_([0-9]{4,})x([0-9]{4,})_(sd|sdxl|sd3|flux|lumina|hi|anima)")
_MUSUBI_LATENT_NAME = re.compile(r"(.+)_([0-9]{4,})x([0-9]{4,})_([a-z0-9]+)")
_MUSUBI_TEXT_NAME = re.compile(r"(.+)_([a-z0-9]+)_te")
SECTION_NAME = r"(.+)\.([0-9a-f]{12})\.seq([0-9]+)\.npz"
"""What dlm calls the tokens of a section: the section, twelve digits of the tokenizer's digest, the length."""
PROCESSED_NAME = r"([0-9a-f]{64})\.([0-9a-f]{12})\.([0-9]+)x([0-9]+)\.npz"
"""What dlm calls a processed picture: the picture's digest, twelve digits of the processor's, height and width."""
DLM_SECTIONS = "sections that dlm has tokenized"
DLM_PICTURES = "pictures that dlm has processed"
_TOOLKIT_NAME = re.compile(r"(.+)_[A-Za-z0-9_-]{22}")
"""A base64 MD5 after the stem; greedy, because the hash itself may hold underscores."""


def recognise(name: str, folder: str) -> OldName | None:
    """What a file in a folder of this name is; None where no tool would have written it. Nothing is opened.

    >>> recognise("cat_1024x0768_sdxl.npz", "cats").size
    (1024, 768)
    >>> recognise("cat_qi_te.safetensors", "cats").architecture
    'qi'
    """
    stem, _, suffix = name.rpartition(".")
    if suffix == "npz":
        return _sd_scripts_name(stem)
    if suffix != "safetensors":
        return None
    if folder in (LATENT_FOLDER, TEXT_FOLDER):
        match = _TOOLKIT_NAME.fullmatch(stem)
        return OldName(AI_TOOLKIT, "latent" if folder == LATENT_FOLDER else "prompt", match[1]) if match else None
    if match := _MUSUBI_LATENT_NAME.fullmatch(stem):
        return OldName(MUSUBI_TUNER, "latent", match[1], match[4], (int(match[2]), int(match[3])))
    if match := _MUSUBI_TEXT_NAME.fullmatch(stem):
        return OldName(MUSUBI_TUNER, "prompt", match[1], match[2])
    return None


def _sd_scripts_name(stem: str) -> OldName:
    for ending, architecture in _SD_TEXT_ENDINGS.items():
        if stem.endswith(ending):
            return OldName(SD_SCRIPTS, "prompt", stem.removesuffix(ending), architecture)
    if match := _SD_LATENT_NAME.fullmatch(stem):
        return OldName(SD_SCRIPTS, "latent", match[1], match[4], (int(match[2]), int(match[3])))
    return OldName(SD_SCRIPTS, "latent", stem, "old")


@dataclass(frozen=True, slots=True)
class OldFolder:
    """What a folder holds that another tool has cached."""

    what: str
    """As it is told, such as `a DiskCache of mgds`."""
    found: Path
    """A file that says so, below the folder."""
    adopt: str
    """How to take it over."""


def name_old_cache(folder: Path) -> OldFolder | None:
    """What old cache a folder holds; None where it is none that is known. No file is opened."""
    for what, find, adopt in _FORMATS:
        found = next(find(folder), None)
        if found is not None:
            return OldFolder(what, found.relative_to(folder), adopt.format(folder=printable(folder)))
    return None


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    """Files of a folder whose whole name matches, of the first so many."""
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, _MANY):
                if re.fullmatch(pattern, entry.name) and entry.is_file():
                    yield Path(entry.path)
    except OSError:
        return  # what cannot be listed is named by nothing


def _folders(folder: Path, pattern: str = ".+") -> Iterator[Path]:
    """A few folders in a folder whose whole name matches."""
    try:
        with os.scandir(folder) as entries:
            matching = (entry for entry in entries if re.fullmatch(pattern, entry.name) and entry.is_dir())
            yield from [Path(entry.path) for entry in itertools.islice(matching, _FEW)]
    except OSError:
        return


def _find_disk_cache(folder: Path) -> Iterator[Path]:
    """`variation-0/3.pt`, in the folder of a group or without one; OneTrainer keeps two such caches in one folder."""
    for home in (folder, *_folders(folder, "image|text|mask")):
        for group in (home, *_folders(home, "[0-9a-f]{64}")):
            for variation in _folders(group, "variation-[0-9]+"):
                yield from _files(variation, r"aggregate\.pt|[0-9]+\.pt")


def _find_smart_disk_cache(folder: Path) -> Iterator[Path]:
    """`cache.json`, and files named by a hash, perhaps a resolution, and a variation."""
    for home in (folder, *_folders(folder, "image|text|mask")):
        if os.path.isfile(home / "cache.json"):  # noqa: PTH113 - which says no also where nobody may look
            yield from _files(home, SMART_NAME)


def _find_shards(folder: Path) -> Iterator[Path]:
    return _files(folder, r"shard_[0-9]{4,}\.pkl")


def _find_embeddings(folder: Path) -> Iterator[Path]:
    """`metadata/<hash>.json`, where folders beside it have tensors named by a hash: one sample of many."""
    if any(next(_files(home, r"[0-9a-f]{32,}\.pt"), None) for home in _folders(folder)):
        yield from _files(folder / EMBEDDING_METADATA, r"[0-9a-f]{32,}\.json")


def _find_sections(folder: Path) -> Iterator[Path]:
    """Tokens by their name; before the first there are a manifest and a folder for them, and nothing else but ours."""
    for home in _folders(folder / "entries", ".."):
        yield from _files(home, SECTION_NAME)
    try:
        names = set(os.listdir(folder))  # noqa: PTH208 - names are all that is asked for
    except OSError:
        return
    if names <= {"manifest.json", "manifest.json.tmp", "entries", "precook"}:
        yield from (folder / name for name in ("manifest.json", "entries") if name in names)


def _find_processed(folder: Path) -> Iterator[Path]:
    for home in _folders(folder, "[0-9a-f]{2}"):
        yield from _files(home, PROCESSED_NAME)


def _find_beside_pictures(tool: str) -> Callable[[Path], Iterator[Path]]:
    """Files that a tool leaves beside pictures; of those of sd-scripts the names that nothing else has."""

    def find(folder: Path) -> Iterator[Path]:
        for home in (folder, *_folders(folder)):
            for path in _files(home, r".+\.(npz|safetensors)"):
                known = recognise(path.name, home.name)
                if known is not None and known.tool == tool and known.architecture != "old":
                    yield path

    return find


_BY_COMMAND = "`precook adopt {folder}` takes it over into a store elsewhere"
_FORMATS: tuple[tuple[str, Callable[[Path], Iterator[Path]], str], ...] = (
    (
        "a DiskCache of mgds",
        _find_disk_cache,
        "`precook adopt PICTURES --caches {folder}` takes it over into a store elsewhere",
    ),
    (
        "a SmartDiskCache of mgds",
        _find_smart_disk_cache,
        "`precook adopt PICTURES --caches {folder}` takes it over into a store elsewhere",
    ),
    (
        "a dataset of ComfyUI, as pickles",
        _find_shards,
        "`precook.integrations.shards.convert_pickled` converts it into a store elsewhere",
    ),
    (EMBEDDINGS, _find_embeddings, _BY_COMMAND),
    (DLM_SECTIONS, _find_sections, _BY_COMMAND),
    (DLM_PICTURES, _find_processed, _BY_COMMAND),
    ("latents cached by ai-toolkit", _find_beside_pictures(AI_TOOLKIT), _BY_COMMAND),
    ("what musubi-tuner has cached", _find_beside_pictures(MUSUBI_TUNER), _BY_COMMAND),
    ("what sd-scripts has cached", _find_beside_pictures(SD_SCRIPTS), _BY_COMMAND),
)
"""What is told of a folder, what finds a file that says so, and how to adopt it; the first that finds one counts."""
