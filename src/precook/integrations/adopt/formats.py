"""The cache files of other tools: what their names say, and what is in them.

sd-scripts     cat_1024x0768_sdxl.npz, cat.npz (old), cat_te_outputs.npz, cat_flux_te.npz …, beside cat.png
musubi-tuner   cat_1024x0768_qi.safetensors, cat_qi_te.safetensors, beside cat.png or in a folder of their own
ai-toolkit     _latent_cache/cat_<hash>.safetensors, _t_e_cache/cat_<hash>.safetensors, in folders beside cat.png
mgds           variation-0/3.pt or <hash>_1.pt, in folders of their own with an index (`mgds.py`)

A file is checked against its picture by its headers, then read as it is. Each tool's own names are kept for the
tensors; only the parts of a name that repeat a shape or a type are dropped.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from precook.fs.old_caches import AI_TOOLKIT, MGDS, MUSUBI_TUNER, PICTURE_PATH, SD_SCRIPTS, OldName, Size
from precook.fs.read import NotAFileError, bytes_there, open_source
from precook.integrations.adopt.npz import NpzFile
from precook.integrations.torch_file import read_torch_file
from precook.store.dtypes import DTYPES, load_torch
from precook.store.leaves import is_tensor
from precook.store.tree import Tree
from precook.units import format_size

UNKNOWN = "unknown"
"""The architecture of what does not say it."""
_MAX_HEADER = 4 << 20
_MAX_HOLES = 64 << 20
_MAX_NUMBER = 1 << 31
_SHOWN = 60
"""Characters of what a file says that are shown."""


class UnusableError(ValueError):
    """Why a cache file cannot be adopted; the caller knows which file it is about."""


@dataclass(frozen=True, slots=True)
class CachedPicture:
    """The picture that a cache must fit."""

    name: str
    size: Size
    """Width and height, after orientation."""
    raw_size: Size
    """As the file stores them: some tools do not turn pictures."""

    def check_size(self, size: Size, *, in_name: Size | None = None) -> None:
        """Refuse a cache whose picture has another size by its own notes, or by the name of its file."""
        if size not in (self.size, self.raw_size) or in_name not in (None, size):
            made_of = f"it was made of a picture of {size[0]} x {size[1]}"
            raise UnusableError(f"{made_of}, and this one has {self.size[0]} x {self.size[1]}")


@dataclass(frozen=True, slots=True)
class OldPart:
    """One latent, or one text's embeddings, in a cache file."""

    architecture: str
    fields: Mapping[str, str]
    """Names in the file, by the names in the tree."""
    size: Size
    """Height and width of the cut; (0, 0) for texts."""
    cut: Mapping[str, Any]
    """What the tool noted about it, as plain data."""
    caption: str | None = None
    """The text, where the file holds it."""


def inspect(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:
    """The parts of a cache file that fit its picture; `UnusableError` where it does not."""
    with _as_unusable():
        return _INSPECTORS[name.tool, name.part](path, name, picture)


def load(path: Path, part: OldPart) -> Tree:
    """The tensors of a part, bit for bit; numpy arrays in the byte order of this machine."""
    with _as_unusable():
        if path.suffix == ".npz":
            with NpzFile(path) as arrays:
                read = {field: arrays.read(stored) for field, stored in part.fields.items()}
            return {field: array.astype(array.dtype.newbyteorder("="), copy=False) for field, array in read.items()}
        if path.suffix == ".pt":
            data = read_torch_file(path)
            return {field: data[stored] for field, stored in part.fields.items()}
        load_torch()
        _check_file(path)
        with safe_open(str(path), framework="pt") as tensors:
            return {field: tensors.get_tensor(stored) for field, stored in part.fields.items()}


@contextmanager
def _as_unusable() -> Iterator[None]:
    try:
        yield
    except UnusableError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        reason = error.reason if isinstance(error, NotAFileError) else error
        raise UnusableError(f"cannot be read: {reason}; let the tool make it again") from error


def _check_file(path: Path) -> None:
    """Refuse a safetensors file that is no regular one, or whose header or tensors would take memory for nothing."""
    with open_source(path) as (descriptor, status):
        if bytes_there(descriptor, status.st_size) + _MAX_HOLES < status.st_size:
            raise UnusableError(f"{format_size(status.st_size)}, of which nearly nothing is on the disk")
        header = int.from_bytes(os.read(descriptor, 8), "little")
        if header > _MAX_HEADER:
            raise UnusableError(
                f"its header claims {format_size(header)}, and none of a cache has {_MAX_HEADER >> 20} MiB"
            )


# sd-scripts: float32 arrays, with the picture's size and the crop beside each latent.

_SD_LATENT = re.compile(r"latents((?:_([0-9]+)x([0-9]+))?)")
_SD_TEXTS = {
    "sdxl": {"hidden_state1", "hidden_state2", "pool2"},
    "sd3": {"lg_out", "lg_pooled", "t5_out", "clip_l_attn_mask", "clip_g_attn_mask", "t5_attn_mask"},
    "flux": {"l_pooled", "t5_out", "txt_ids", "t5_attn_mask"},
    "lumina": {"hidden_state", "attention_mask", "input_ids"},
    "hi": {"vlm_embed", "vlm_mask", "byt5_embed", "byt5_mask", "ocr_mask"},
    "anima": {"prompt_embeds", "attn_mask", "t5_input_ids", "t5_attn_mask"},
}
_SD_STRIDES = {"hi": 32}
"""Pixels for each element of a latent, where they are not 8."""


def _sd_latents(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:
    architecture = name.architecture or ""
    if name.size is not None:
        picture.check_size(name.size)
    with NpzFile(path) as arrays:
        matches = [match for stored in arrays.names if (match := _SD_LATENT.fullmatch(stored))]
        if not matches:
            raise UnusableError("it has no latents")
        return [_sd_latent(arrays, match, architecture, picture) for match in matches]


def _sd_latent(arrays: NpzFile, match: re.Match[str], architecture: str, picture: CachedPicture) -> OldPart:
    ending = match[1]
    shape = arrays.header(match[0]).shape
    if len(shape) not in (3, 4) or (ending and (int(match[2]), int(match[3])) != shape[-2:]):
        raise UnusableError(f"{match[0]} has shape {shape}")
    fields = {
        field: f"{field}{ending}"
        for field in ("latents", "original_size", "crop_ltrb", "latents_flipped", "alpha_mask")
        if f"{field}{ending}" in arrays.names
    }
    if not {"original_size", "crop_ltrb"} <= set(fields):
        raise UnusableError(f"{match[0]} comes without the size of its picture and its crop")
    stride = _SD_STRIDES.get(architecture, 8)
    size = (shape[-2] * stride, shape[-1] * stride)
    shapes = {"original_size": (2,), "crop_ltrb": (4,), "latents_flipped": shape, "alpha_mask": size}
    for field, wanted in shapes.items():
        if field in fields and arrays.header(fields[field]).shape != wanted:
            raise UnusableError(f"{fields[field]} has shape {arrays.header(fields[field]).shape}, not {wanted}")
    noted: dict[str, list[float]] = {}
    for field in ("original_size", "crop_ltrb"):
        array = arrays.read(fields[field])
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise UnusableError("the size of its picture or its crop are no numbers")
        noted[field] = [float(number) for number in array.tolist()]
    picture.check_size((int(noted["original_size"][0]), int(noted["original_size"][1])))
    return OldPart(architecture, fields, size, {**noted, "size": list(size)})


def _sd_text(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:  # noqa: ARG001 - a text has no size
    architecture = name.architecture or ""
    with NpzFile(path) as arrays:
        lacking = sorted(_SD_TEXTS[architecture] - set(arrays.names))
        if lacking:
            raise UnusableError(f"it has no {lacking[0]}")
        for stored in arrays.names:
            arrays.header(stored)
        return [OldPart(architecture, {stored: stored for stored in sorted(arrays.names)}, (0, 0), {})]


# musubi-tuner: one safetensors file per picture and architecture; names end in the shape and the type.

_TYPES = sorted({dtype.torch for dtype in DTYPES.values()}, key=len, reverse=True)
_DIMENSIONS = re.compile(r"(?:[0-9]+x)?[0-9]+x[0-9]+")


def _musubi_latent(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:
    shapes, metadata = _headers(path)
    size = (_whole(metadata, "width"), _whole(metadata, "height"))
    picture.check_size(size, in_name=name.size)
    fields = {}
    for stored, shape in sorted(shapes.items()):
        field = _without_type(stored)
        if field.startswith("latents_"):
            field, _, dimensions = field.rpartition("_")
            wanted = tuple(map(int, dimensions.split("x"))) if _DIMENSIONS.fullmatch(dimensions) else None
            if wanted is None or shape[-len(wanted) :] != wanted:
                raise UnusableError(f"{stored} has shape {shape}")
        fields[field] = stored
    if "latents" not in fields or len(fields) != len(shapes):
        raise UnusableError("it has no latents, or some twice")
    # The bucket in pixels is not noted, and how many of them an element stands for differs between architectures.
    height, width = shapes[fields["latents"]][-2:]
    return [OldPart(_text(metadata, "architecture"), fields, (height, width), {"original_size": list(size)})]


def _musubi_text(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:  # noqa: ARG001 - likewise
    shapes, metadata = _headers(path)
    fields = {_without_type(stored): stored for stored in sorted(shapes)}
    if not fields or len(fields) != len(shapes):
        raise UnusableError("it has no embeddings, or some twice")
    caption = _text(metadata, "caption1")
    return [OldPart(_text(metadata, "architecture"), fields, (0, 0), {}, caption)]


def _without_type(name: str) -> str:
    if name.endswith("_mask"):
        return name
    return next((name.removesuffix(f"_{type_}") for type_ in _TYPES if name.endswith(f"_{type_}")), name)


# ai-toolkit: one safetensors file per cut, with the cut in its metadata; texts have none.

_CUT = ("scale_to_width", "scale_to_height", "crop_x", "crop_y", "crop_width", "crop_height")
_SKEW = 0.02
"""So much the scaled size may differ from the picture's aspect ratio: it is rounded to whole pixels."""


def _toolkit_latent(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:  # noqa: ARG001 - a hash says nothing
    shapes, metadata = _headers(path)
    if metadata.get("filename") != picture.name:
        raise UnusableError(f"it was made of {_shown(metadata, 'filename')}")
    scaled_width, scaled_height, left, top, width, height = (_whole(metadata, field) for field in _CUT)
    shape = shapes.get("latent")
    if shape is None or len(shape) < 3:  # noqa: PLR2004 - channels, height, width
        raise UnusableError(f"its latent has shape {shape}")
    across, down = width / max(shape[-1], 1), height / max(shape[-2], 1)
    if not 0 < width <= scaled_width - left or not 0 < height <= scaled_height - top or across != down:
        raise UnusableError(f"its latent of shape {shape} does not fit its cut of {width} x {height}")
    aspect = picture.size[0] / picture.size[1]
    if abs(scaled_width / scaled_height / aspect - 1) > _SKEW:
        raise UnusableError(
            f"it was made of a picture of another shape, scaled to {scaled_width} x {scaled_height};"
            f" this one has {picture.size[0]} x {picture.size[1]}"
        )
    flips = {flip: metadata.get(flip) == "true" for flip in ("flip_x", "flip_y")}
    cut = {"scaled": [scaled_width, scaled_height], "crop": [left, top], "size": [height, width], **flips}
    fields = {stored: stored for stored in sorted(shapes)}
    return [OldPart(_text(metadata, "latent_space_version"), fields, (height, width), cut)]


def _toolkit_text(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:  # noqa: ARG001 - likewise
    shapes, metadata = _headers(path)
    if not any(stored.startswith("text_embed") for stored in shapes) and "class_name" not in metadata:
        raise UnusableError("it has no text embeddings")
    return [OldPart("", {stored: stored for stored in sorted(shapes)}, (0, 0), {})]


def _headers(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Shapes and metadata of a safetensors file."""
    _check_file(path)
    # As numpy: shapes need no torch.
    with safe_open(str(path), framework="numpy") as tensors:
        shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        return shapes, dict(tensors.metadata() or {})


def _whole(metadata: Mapping[str, str], field: str) -> int:
    try:
        value = json.loads(metadata.get(field, "null"))
    except (ValueError, RecursionError):
        value = None
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise UnusableError(f"its {field} is {_shown(metadata, field)}")
    return value


def _shown(metadata: Mapping[str, str], field: str) -> str:
    return ascii(metadata[field][:_SHOWN]) if field in metadata else "not noted"


def _text(metadata: Mapping[str, str], field: str) -> str:
    if field not in metadata:
        raise UnusableError(f"its {field} is not noted")
    return metadata[field]


# mgds: what modules of its pipeline made, under the names they gave it, as torch.save writes it.

_NOTES = "__"
"""How names begin under which SmartDiskCache keeps its own notes in a file."""


def _mgds_latent(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:
    """What mgds cached of a picture."""
    data, fields = _mgds_data(path)
    size = frame_size(data.get("crop_resolution")) or name.crop
    if size is None:
        raise UnusableError("nothing says how large the cut is that it was made of")
    original = frame_size(data.get("original_resolution"))
    if original is not None:
        picture.check_size((original[1], original[0]))
    cut = {"size": list(size), "variation": name.variation}
    return [OldPart(name.architecture or UNKNOWN, fields, size, cut)]


def _mgds_text(path: Path, name: OldName, picture: CachedPicture) -> list[OldPart]:  # noqa: ARG001 - a text has no size
    """What mgds cached of a text, which the file holds."""
    data, fields = _mgds_data(path)
    noted = data.get("__sourceless_values")
    caption = noted.get("prompt") if isinstance(noted, dict) else None
    if not isinstance(caption, str):
        raise UnusableError("it does not say which text it was made of")
    return [OldPart(name.architecture or UNKNOWN, fields, (0, 0), {"variation": name.variation}, caption)]


def _mgds_data(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What a file holds, and the names in it that are worth to be kept."""
    data = read_torch_file(path)
    if not isinstance(data, dict):
        raise UnusableError("it holds no dict, as mgds writes them")
    names = [name for name in data if isinstance(name, str) and not name.startswith(_NOTES) and name != PICTURE_PATH]
    if not any(is_tensor(data[name]) for name in names):
        raise UnusableError("it holds no tensor")
    return data, {name: name for name in sorted(names)}


def frame_size(value: object) -> Size | None:
    """Height and width, of a picture or of the frames of a video."""
    match value:
        case [*_, int(height), int(width)] if height > 0 and width > 0:
            return height, width
        case _:
            return None


_INSPECTORS: dict[tuple[str, str], Callable[[Path, OldName, CachedPicture], list[OldPart]]] = {
    (SD_SCRIPTS, "latent"): _sd_latents,
    (SD_SCRIPTS, "prompt"): _sd_text,
    (MUSUBI_TUNER, "latent"): _musubi_latent,
    (MUSUBI_TUNER, "prompt"): _musubi_text,
    (AI_TOOLKIT, "latent"): _toolkit_latent,
    (AI_TOOLKIT, "prompt"): _toolkit_text,
    (MGDS, "latent"): _mgds_latent,
    (MGDS, "prompt"): _mgds_text,
}
