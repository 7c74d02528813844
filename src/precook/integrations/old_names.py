"""Which tool's cache a file is, by its name: pure, nothing is opened.

sd-scripts     cat_1024x0768_sdxl.npz, cat.npz (old), cat_te_outputs.npz, cat_flux_te.npz …, beside cat.png
musubi-tuner   cat_1024x0768_qi.safetensors, cat_qi_te.safetensors, beside cat.png or in a folder of their own
ai-toolkit     _latent_cache/cat_<hash>.safetensors, _t_e_cache/cat_<hash>.safetensors, in folders beside cat.png
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

SD_SCRIPTS = "sd-scripts"
MUSUBI_TUNER = "musubi-tuner"
AI_TOOLKIT = "ai-toolkit"

LATENT_FOLDER = "_latent_cache"
TEXT_FOLDER = "_t_e_cache"

Part = Literal["latent", "prompt"]


@dataclass(frozen=True, slots=True)
class OldName:
    """What the name of a cache file says."""

    tool: str
    part: Part
    stem: str
    """The picture's name without its suffix."""
    architecture: str | None = None
    """As the tool shortens it; None where only the file itself says it."""
    size: tuple[int, int] | None = None
    """Width and height of the picture."""


_TEXTS = {
    "_te_outputs": "sdxl",
    "_sd3_te": "sd3",
    "_flux_te": "flux",
    "_lumina_te": "lumina",
    "_hi_te": "hi",
    "_anima_te": "anima",
}
_SD_LATENT = re.compile(r"(.+)_([0-9]{4,})x([0-9]{4,})_(sd|sdxl|sd3|flux|lumina|hi|anima)")
_MUSUBI_LATENT = re.compile(r"(.+)_([0-9]{4,})x([0-9]{4,})_([a-z0-9]+)")
_MUSUBI_TEXT = re.compile(r"(.+)_([a-z0-9]+)_te")
_HASHED = re.compile(r"(.+)_[A-Za-z0-9_-]{22}")
"""A base64 MD5 after the stem; greedy, because the hash itself may hold underscores."""


def recognise(name: str, folder: str) -> OldName | None:
    """What a file in a folder of this name is; None where no tool would have written it.

    >>> recognise("cat_1024x0768_sdxl.npz", "cats")
    OldName(tool='sd-scripts', part='latent', stem='cat', architecture='sdxl', size=(1024, 768))
    >>> recognise("cat_qi_te.safetensors", "cats").architecture
    'qi'
    """
    stem, _, suffix = name.rpartition(".")
    if suffix == "npz":
        return _sd_scripts(stem)
    if suffix != "safetensors":
        return None
    if folder in (LATENT_FOLDER, TEXT_FOLDER):
        part: Part = "latent" if folder == LATENT_FOLDER else "prompt"
        match = _HASHED.fullmatch(stem)
        return OldName(AI_TOOLKIT, part, match[1]) if match else None
    if match := _MUSUBI_LATENT.fullmatch(stem):
        return OldName(MUSUBI_TUNER, "latent", match[1], match[4], (int(match[2]), int(match[3])))
    if match := _MUSUBI_TEXT.fullmatch(stem):
        return OldName(MUSUBI_TUNER, "prompt", match[1], match[2])
    return None


def _sd_scripts(stem: str) -> OldName:
    for ending, architecture in _TEXTS.items():
        if stem.endswith(ending):
            return OldName(SD_SCRIPTS, "prompt", stem.removesuffix(ending), architecture)
    if match := _SD_LATENT.fullmatch(stem):
        return OldName(SD_SCRIPTS, "latent", match[1], match[4], (int(match[2]), int(match[3])))
    return OldName(SD_SCRIPTS, "latent", stem, "old")
