"""The file that `precook init` writes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import precook
from precook.config.concept import ColumnName, FixedText
from precook.config.encoders import DiffusersVae, TransformersText
from precook.config.schema import Settings
from precook.config.template import FoundConcept, TemplateFacts, write_config
from tests.support.configs import (
    SECTIONS,
    Reader,
)

WORDS = st.sampled_from(
    ["null", "True", "no", "~", "3", "1e3", ".nan", "-", "- a", "#x", "a #b", "a: b", "{a}", "*a", "é"]
)
NAMES = WORDS | st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=30).filter(str.isprintable)
PATHS = WORDS | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
MASKS = st.none() | st.sampled_from(["{stem}-masklabel.png", "masks/{name}", 'a "b": # {stem}'])
CONCEPTS = st.builds(
    FoundConcept,
    name=NAMES,
    path=PATHS,
    images=st.integers(0, 10**6),
    captions=st.sampled_from(["sidecar", "filename", "none"]),
    masks=MASKS,
    min_side=st.integers(1, 100),
    max_side=st.integers(100, 10_000),
)
FOUND = st.builds(
    TemplateFacts,
    dataset=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    concepts=st.lists(CONCEPTS, min_size=1, max_size=3, unique_by=lambda found: found.name).map(tuple),
    store=PATHS,
    vae=st.none() | PATHS,
    text=st.none() | PATHS,
    resolution=st.integers(64, 4096),
)
PETS = TemplateFacts(
    dataset="pets",
    concepts=(
        FoundConcept("cats", "data/cats", 1200, "sidecar", "{stem}-mask.png", 300, 4000),
        FoundConcept("dogs", "data/dogs", 1, "none", None, 64, 64),
    ),
    store="cache",
    vae=None,
    text=None,
    resolution=512,
)


def found_again(settings: Settings, like: TemplateFacts) -> TemplateFacts:
    """What was found, as the settings tell it; what stands in remarks only is taken over."""
    captions = {"sidecar": "sidecar", "filename": "filename", "": "none"}
    models = {
        name: encoder.model if isinstance(encoder := settings.encoders.get(name), kind) else None
        for name, kind in (("latent", DiffusersVae), ("prompt", TransformersText))
    }
    concepts = []
    for concept, seen in zip(settings.concepts, like.concepts, strict=True):
        spelled = concept.captions.model_dump()
        known: Any = captions[spelled["text"] if isinstance(spelled, dict) else spelled]
        assert not isinstance(concept.masks, ColumnName)
        concepts.append(
            FoundConcept(concept.name, concept.path, seen.images, known, concept.masks, seen.min_side, seen.max_side)
        )
    (size,) = settings.image.sizes
    return TemplateFacts(
        settings.dataset, tuple(concepts), settings.store, models["latent"], models["prompt"], size.width
    )


@given(found=FOUND)
def test_what_init_found_is_what_the_file_says(read: Reader, found: TemplateFacts) -> None:
    """Whatever quotes, colons, line breaks and scripts stand in names and paths, they are read back as they were."""
    settings, _ = read(write_config(found))
    assert found_again(settings, found) == found
    wanted = {"latent"} if found.vae else set()
    wanted |= {"prompt"} if found.text else set()
    wanted |= {"mask"} if any(concept.masks for concept in found.concepts) else set()
    assert set(settings.encoders) == (wanted if found.vae or found.text else wanted | {"pixels"})


def test_the_file_holds_every_setting_with_its_meaning() -> None:
    """Nobody has to look up what could be set: each field stands there, set or commented out, with a remark."""
    lines = write_config(PETS).splitlines()
    for section, _ in SECTIONS:
        for name, field in section.model_fields.items():
            stands = re.compile(rf"[ #-]*{name}:.*  # {re.escape(field.description or '-')}")
            assert any(stands.fullmatch(line) for line in lines), name


def test_defaults_in_the_file_are_the_defaults(read: Reader) -> None:
    """Setting all that is commented out changes nothing, examples aside."""
    content = write_config(PETS)
    settings, _ = read(content)
    lines = [
        line
        if re.match(
            r" *#(?:revision|subfolder|version|samples|masks|caption_extension|tags|texts|passages|image|text|video):",
            line,
        )
        else re.sub(r"^( *)#(?=\w+: \S)", r"\1", line)
        for line in content.splitlines()
    ]
    assert sum(a != b for a, b in zip(lines, content.splitlines(), strict=True)) > 20
    assert read("\n".join(lines))[0] == settings


def test_each_encoder_in_the_file_can_be_switched_on(read: Reader) -> None:
    """Removing the first # from its lines is all it takes, and its further settings stay at their defaults."""
    content = write_config(PETS)
    off = re.findall(r"^  #(\w+):\n((?:  #  .*\n)+)", content, re.MULTILINE)
    assert [name for name, _ in off] == [
        "latent",
        "video_latent",
        "prompt",
        "text",
        "tokens",
        "inputs",
        "vision",
        "mine",
    ]
    for name, block in off:
        on = re.sub(r"^  #", "  ", f"  #{name}:\n{block}", flags=re.MULTILINE)
        settings, _ = read(content.replace(f"  #{name}:\n{block}", on))
        assert set(settings.encoders) == {"mask", "pixels", name}
        assert settings.encoders[name].model_fields_set <= {"uses", "model"}
        for line in on.splitlines():
            alone = re.sub(r"^    #", "    ", line)
            if alone != line:
                switched, _ = read(content.replace(f"  #{name}:\n{block}", on.replace(line, alone)))
                assert len(switched.encoders[name].model_fields_set) > len(settings.encoders[name].model_fields_set)


def test_pictures_without_captions_get_the_empty_prompt(read: Reader) -> None:
    """The file says so in words, beside the setting."""
    content = write_config(PETS)
    settings, _ = read(content)
    assert settings.concepts[1].captions == FixedText(text="")
    assert (
        "# 1 picture, sides from 64 to 64 pixels\n  # no captions were found: a fixed text, the empty prompt" in content
    )


@pytest.mark.parametrize("field", ["store", "vae", "text", "dataset"])
def test_what_is_not_unicode_cannot_be_written(field: str) -> None:
    """A file name in another encoding is named, not mangled."""
    fields = {name: getattr(PETS, name) for name in ("dataset", "concepts", "store", "vae", "text", "resolution")}
    with pytest.raises(ValueError, match=r"'caf\\udce9' is not Unicode and cannot stand in a file: rename it"):
        write_config(TemplateFacts(**{**fields, field: "caf\udce9"}))
    bad = FoundConcept("a", "caf\udce9", 1, "sidecar", None, 1, 1)
    with pytest.raises(ValueError, match="is not Unicode"):
        write_config(TemplateFacts(**{**fields, "concepts": (bad,)}))


def test_what_no_config_may_hold_is_not_written() -> None:
    """A folder's name with a line break is no concept's name, and no concepts are no config."""
    bad = FoundConcept("a\nb", "a", 1, "sidecar", None, 1, 1)
    with pytest.raises(precook.ConfigError, match="must be 1 to 200 printable characters"):
        write_config(TemplateFacts("pets", (bad,), "cache", None, None, 512))
    with pytest.raises(precook.ConfigError, match="concepts: must not be empty"):
        write_config(TemplateFacts("pets", (), "cache", None, None, 512))
