"""Texts, captions, pictures and a tokenizer for encoders with random weights; the same in every run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers
from PIL import Image

_WORDS = 2000
LINES = 10
"""Captions in a file."""


def make_texts(count: int, *, least: int, most: int) -> list[str]:
    """Texts of random words, so many at least and fewer than so many."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(_WORDS)])
    return [" ".join(words[rng.integers(0, _WORDS, length)]) for length in rng.integers(least, most, count)]


def write_captions(data: Path, texts: Sequence[str]) -> None:
    """A folder of tiny pictures with ten captions each."""
    data.mkdir()
    for number in range(len(texts) // LINES):
        picture = np.full((16, 16, 3), number % 256, np.uint8)
        picture[0, 0] = (number // 256, number % 256, 7)
        Image.fromarray(picture).save(data / f"{number}.png")
        (data / f"{number}.txt").write_text("\n".join(texts[number * LINES : (number + 1) * LINES]), "utf-8")


def draw_pictures(data: Path, count: int, side: int, *, mixed: bool = False) -> None:
    """A folder of JPEG files, each 1.7 times as many pixels as a square of this side; mixed: of many aspect ratios."""
    data.mkdir()

    def draw(number: int) -> None:
        rng = np.random.default_rng(number)
        aspect = float(np.exp(rng.uniform(-0.75, 0.75))) if mixed else 4 / 3
        width, height = (round(side * 1.3 * aspect**power) for power in (0.5, -0.5))
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(data / f"{number}.jpg", quality=90)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(draw, range(count)))


def word_tokenizer(length: int, *, ends: bool = False) -> Any:
    """A tokenizer with a token for each word, which cuts to this length; `ends` adds a first and a last one."""
    words = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(_WORDS))]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "unk_token": "<unk>"}
    if ends:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=length, **names)
