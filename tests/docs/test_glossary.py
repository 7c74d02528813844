"""Names are words that a newcomer knows: of the glossary, or standard ones."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import precook
import precook.testing
from tests.support.pages import ROOT

SOURCE = ROOT / "src" / "precook"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

STANDARD = """
Words of every program:
    buffer cache check client collate column config connection content copy data database device dtype error exit field
    file folder fork format function header hub image import integration internal interrupt lock log lookup machine main
    many mapping message model name open option output pool process progress reader registry report result run sampler
    scan schema search signal stat status system template test text thread token tool type unit url usage use value walk
    worker
Verbs that mean what they mean everywhere:
    clear encode export fill init load ls maintain prepare protect read reason reindex remove repair show trust
Other projects, formats and what they are about:
    arrow cli comfyui demo dlm embedding fs hf mgds npz parquet pixel posix tensor thrift torch vae vl windows yaml zip
"""
ENDINGS = ("s", "es", "d", "ed", "ing", "r", "er", "ized", "ation")


def explained() -> list[str]:
    """The words that the page explains, in its order; a row may have several forms of one."""
    rows = re.findall(r"^\| ([a-z, ]+) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return [word for row in rows if row != "word" for word in row.split(", ")]


def standard() -> set[str]:
    """The words that need no explanation."""
    return {word for line in STANDARD.splitlines() if line.startswith(" ") for word in line.split()}


def is_known(word: str, words: set[str]) -> bool:
    """Whether a word is one of these, as it is or with a common ending."""
    stems = {word, re.sub("ies$", "y", word), re.sub("(ication|ied)$", "y", word), re.sub("aves$", "af", word)}
    stems |= {word.removesuffix(ending) for ending in ENDINGS}
    stems |= {stem[:-1] for stem in stems if stem[-1:] == stem[-2:-1]}  # planned: plan
    return bool(words & (stems | {f"{stem}e" for stem in stems}))


def test_every_module_is_named_by_words_that_are_known() -> None:
    """Folders and modules alike, each word of their names."""
    words = {*explained(), *standard()}
    for file in sorted(SOURCE.rglob("*.py")):
        for part in file.relative_to(SOURCE).with_suffix("").parts:
            for word in [] if part.startswith("__") else part.strip("_").split("_"):
                assert is_known(word, words), f"{file.relative_to(SOURCE)}: {word} is not in the glossary"


def test_every_public_class_is_named_by_words_that_are_known() -> None:
    """Each word of its name; errors have a page of their own that says what each is about."""
    words = {*explained(), *standard()}
    for module in (precook, precook.testing):
        for name in module.__all__:
            if inspect.isclass(getattr(module, name)) and not name.endswith("Error"):
                for word in re.findall(r"[A-Z][a-z]+", name):
                    assert is_known(word.lower(), words), f"{name}: {word} is not in the glossary"


def test_a_word_is_explained_once() -> None:
    """One word per idea, and one place that says which."""
    assert [word for word, count in Counter(explained()).items() if count > 1] == []
