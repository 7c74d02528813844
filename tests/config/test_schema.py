"""The config file: what it may say, what enters keys, its JSON schema and its page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from precook.config.check import check, json_schema
from precook.config.concept import (
    ColumnName,
    Concept,
    FileName,
    FixedText,
    JsonSidecar,
    Sidecar,
    TagSettings,
    WholeSidecar,
)
from precook.config.encoders import (
    ENCODERS,
    DiffusersVae,
    EncoderSection,
    PictureEncoder,
    TransformersText,
    UserSection,
)
from precook.config.field_types import Section
from precook.config.remote import CacheSettings, RemoteSettings
from precook.config.schema import Settings
from precook.config.sections import ImageSettings, Resolution, TextSettings
from precook.config.template import yaml_text
from precook.config.texts import PassageSettings
from tests.support.configs import (
    BAD,
    DESIGN,
    GOOD,
    SECTIONS,
    SMALL,
    Reader,
    image,
    refused,
    small,
    table,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def test_the_design_s_example_is_accepted_as_it_stands(read: Reader) -> None:
    """It says what the design says it says, although none of its folders and models exists."""
    settings, _ = read(DESIGN)
    assert (settings.store, settings.dataset) == ("cache", "portraits")
    assert settings.concepts == (Concept(name="cats", path="data/cats", masks="{stem}-masklabel.png"),)
    assert settings.image == ImageSettings(resolutions=(512, 768))
    assert settings.text == TextSettings()
    assert list(settings.encoders) == ["latent", "prompt", "tokens", "pixels", "mask"]
    assert settings.encoders["latent"] == DiffusersVae(uses="diffusers-vae", model="models/vae", dtype="float16")
    prompt = settings.encoders["prompt"]
    assert isinstance(prompt, TransformersText)
    assert prompt.layers == (-2,)


def test_a_file_and_python_data_give_the_same_settings(read: Reader) -> None:
    """`check` takes what the file holds, and settings tell themselves as such data."""
    settings, _ = read(DESIGN)
    assert read(SMALL)[0] == check(small())
    for form in (settings.model_dump(), settings.model_dump(mode="json")):
        assert check(form) == settings


def test_settings_cannot_be_changed() -> None:
    """Nobody moves a setting under a plan that was made with it."""
    settings = check(small())
    with pytest.raises(ValidationError):
        settings.store = "elsewhere"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.image.step = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("sidecar", Sidecar()),
        ("filename", FileName()),
        ({"text": "a cat"}, FixedText(text="a cat")),
        ({"text": ""}, FixedText(text="")),
        ({"column": "caption"}, ColumnName(column="caption")),
        ({"whole": "sidecar"}, WholeSidecar()),
        ({"json": "caption"}, JsonSidecar(field="caption")),
    ],
)
def test_captions_are_spelled_in_one_way(written: object, value: Section) -> None:
    """Each source of captions has one spelling, which it also tells itself by."""
    data = table(captions=written)
    assert check(data).concepts[0].captions == value
    assert value.model_dump() == written


def test_paths_may_be_given_as_paths() -> None:
    """Python callers need not turn a `Path` into text."""
    settings = check(small(store=Path("some") / "cache"))
    assert settings.store == os.path.join("some", "cache")


def test_resolutions_are_numbers() -> None:
    """A whole number is any size of its area, a text of two numbers that very size."""
    sizes = check(image(resolutions=[512, "768x512"])).image.sizes
    assert sizes == (Resolution(512, 512, exact=False), Resolution(768, 512, exact=True))


def test_native_stands_alone_or_among_others() -> None:
    """The word alone is a list of it; what is refused unread is then no longer what pictures are scaled down to."""
    alone, among = (check(image(resolutions=native)).image for native in ("native", [512, "native"]))
    assert alone.resolutions == ("native",)
    assert among.sizes == (Resolution(512, 512, exact=False), Resolution(0, 0, exact=False, native=True))
    limits = [
        check(image(resolutions=resolutions, max_pixels=pixels)).image.most_pixels
        for resolutions, pixels in (([512], 1000), ("native", 1000), ("native", 10**8))
    ]
    assert limits == [1000, 89_478_485, 10**8]


@pytest.mark.parametrize(
    ("written", "rgb"),
    [
        ("white", (255, 255, 255)),
        ("black", (0, 0, 0)),
        ("grey", (128, 128, 128)),
        ("gray", (128, 128, 128)),
        ("#f80", (255, 136, 0)),
        ("#FF8001", (255, 128, 1)),
    ],
)
def test_the_background_is_three_numbers(written: str, rgb: tuple[int, int, int]) -> None:
    """Names and hexadecimal digits, short or long, give red, green and blue."""
    assert check(image(background=written)).image.rgb == rgb


def test_fields_of_a_class_of_yours_go_to_its_constructor() -> None:
    """Everything but what all encoders have, unchanged."""
    fields = {"strength": 0.5, "names": ["a", None, {"b": True}], "model": 3}
    settings = check(small(encoders={"x": {"uses": "a.b:C", "device": "cpu", **fields}}))
    mine = settings.encoders["x"]
    assert isinstance(mine, UserSection)
    assert (mine.device, mine.arguments) == ("cpu", fields)


FREE = {
    "Settings": {"store", "cache", "remote", "dataset", "keep", "stamps"},
    "Concept": {
        *("name", "path", "recursive", "outside", "missing_mask", "image_column", "repeats", "samples", "loss_weight"),
        *("enabled", "validation"),
    },
    "ImageSettings": {"upscale", "extreme_aspect", "pick"},
    "DiffusersVae": {"slicing", "compile", "device_memory"},
    "DiffusersVideoVae": {"slicing", "compile", "device_memory"},
    "DiffusersPrompt": {"compile", "device_memory"},
    "TransformersText": {"attention", "compile", "device_memory"},
    "TransformersVision": {"compile", "device_memory"},
}


def decides(section: type[Section], name: str) -> bool:
    extra = section.model_fields[name].json_schema_extra
    return not (isinstance(extra, dict) and extra.get("decides") is False)


@pytest.mark.parametrize("section", [section for section, _ in SECTIONS], ids=lambda section: section.__name__)
def test_fields_that_never_make_an_entry_missing_are_marked(section: type[Section]) -> None:
    """Whoever makes keys, and whoever tests them, can ask each field; device and batch size are free everywhere."""
    free = FREE.get(section.__name__, set())
    if issubclass(section, EncoderSection):
        free = free | {"device", "batch_size"}
    assert {name for name in section.model_fields if not decides(section, name)} == free


def fits(value: Any, rule: Any, root: dict[str, Any]) -> bool:
    """Whether a JSON value is valid under a schema that uses these keywords and no others."""
    known = {
        *("type", "enum", "const", "anyOf", "oneOf", "not", "$ref", "properties", "required", "additionalProperties"),
        *("propertyNames", "minProperties", "items", "minItems", "uniqueItems", "minLength", "maxLength", "pattern"),
        *("minimum", "maximum", "title", "description", "default", "examples", "decides", "$schema", "$defs"),
    }
    if isinstance(rule, bool):
        return rule
    assert set(rule) <= known, set(rule) - known
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    if "type" in rule:
        if rule["type"] in {"integer", "number"}:
            wanted: Any = int if rule["type"] == "integer" else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                return False
        elif not isinstance(value, types[rule["type"]]):
            return False
    checks = [
        "enum" not in rule or value in rule["enum"],
        "const" not in rule or value == rule["const"],
        "anyOf" not in rule or any(fits(value, part, root) for part in rule["anyOf"]),
        "oneOf" not in rule or sum(fits(value, part, root) for part in rule["oneOf"]) == 1,
        "not" not in rule or not fits(value, rule["not"], root),
        "$ref" not in rule or fits(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")], root),
    ]
    if isinstance(value, dict):
        fields = rule.get("properties", {})
        others = rule.get("additionalProperties", True)
        checks += [name in value for name in rule.get("required", [])]
        checks += [fits(item, fields.get(name, others), root) for name, item in value.items()]
        checks += [fits(name, rule.get("propertyNames", True), root) for name in value]
        checks += [len(value) >= rule.get("minProperties", 0)]
    if isinstance(value, list):
        checks += [fits(item, rule.get("items", True), root) for item in value]
        checks += [len(value) >= rule.get("minItems", 0)]
        checks += [not rule.get("uniqueItems") or all(item not in value[:at] for at, item in enumerate(value))]
    if isinstance(value, str):
        checks += [rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value))]
        checks += [re.search(rule.get("pattern", ""), value) is not None]
    if isinstance(value, int | float):
        checks += [rule.get("minimum", value) <= value <= rule.get("maximum", value)]
    return all(checks)


def test_the_schema_accepts_what_the_reader_accepts(read: Reader) -> None:
    """The design's example, the page's, and every other valid config are valid in an editor, too."""
    rules = json.loads(json.dumps(json_schema()))
    assert rules["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    written = [read(content)[0].model_dump(mode="json") for content in (DESIGN, SMALL, page_example())]
    for data in (*GOOD, *written):
        assert fits(json.loads(json.dumps(data)), rules, rules), data


UNSEEN = (
    # What the schema cannot say: rules that join fields, codecs, the sense of a pattern, floats that JSON has not.
    *("is for all concepts together", "none of them is enabled"),
    *("a column needs", "cannot stand beside", "less than step", "multiples of step", "unknown text encoding"),
    *("unknown placeholder", "without its partner", "the mask of", "finite", "null character", "not valid Unicode"),
    *(
        "has at most",
        "not text '99999x64'",
        r"not text 'a\n",
        "does not name a class",
        "plain data",
        "not the number 512.0",
    ),
    *("not the number 64.0", "a name must be text"),
)


@pytest.mark.parametrize(("data", "where", "message"), BAD, ids=range(len(BAD)))
def test_the_schema_refuses_what_the_reader_refuses(data: dict[str, Any], where: str | None, message: str) -> None:
    """An editor underlines the same mistakes, those aside that take more than a schema to see."""
    rules = json_schema()
    if not any(part in refused(data).message for part in UNSEEN):
        assert not fits(data, rules, rules)


def test_the_schema_explains_every_field() -> None:
    """An editor can show a title and a meaning for each of them."""
    rules = json_schema()
    for section, _ in SECTIONS:
        properties = rules["properties"] if section is Settings else rules["$defs"][section.__name__]["properties"]
        assert list(properties) == list(section.model_fields)
        for name, rule in properties.items():
            assert "$ref" in rule or (rule["title"] and rule["description"]), name


HEADINGS: dict[str, tuple[type[Section], set[str]]] = {
    "The whole file": (Settings, set()),
    "cache": (CacheSettings, set()),
    "remote": (RemoteSettings, set()),
    "concepts": (Concept, set()),
    "tags": (TagSettings, set()),
    "passages": (PassageSettings, set()),
    "image": (ImageSettings, set()),
    "text": (TextSettings, set()),
    "every encoder": (EncoderSection, set()),
    "every encoder of pictures": (PictureEncoder, set(EncoderSection.model_fields)),
    **{
        kind: (section, set((PictureEncoder if issubclass(section, PictureEncoder) else EncoderSection).model_fields))
        for kind, section in ENCODERS.items()
        if section.model_fields.keys() - PictureEncoder.model_fields.keys()
    },
}


def page_example() -> str:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(example)


def test_the_example_on_the_page_is_a_config(read: Reader) -> None:
    """It can be copied as it stands."""
    settings, _ = read(page_example())
    assert [found.name for found in settings.concepts] == ["cats", "dogs"]


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_page_tells_every_field_and_its_true_default(heading: str) -> None:
    """Each table has the fields that are there, what they are without being written, and whether they change keys."""
    section, elsewhere = HEADINGS[heading]
    part = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [text for text in part if text.startswith(f"{heading}\n")]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", body, re.MULTILINE)
    expected = []
    for name, field in section.model_fields.items():
        if name not in elsewhere:
            change = "yes" if decides(section, name) else "no"
            if section is Settings and name in {"concepts", "image", "text", "video", "encoders"}:
                change = "see below"
            if field.default_factory:
                default = "see below"
            else:
                default = "required" if field.is_required() else f"`{yaml_text(field.default)}`"
            expected.append((name, default, change))
    assert [row[:3] for row in rows] == expected
    assert all(meaning.endswith(".") for *_, meaning in rows)


def test_the_page_has_one_sentence_per_line() -> None:
    """So that a change shows what it changes; tables and code aside."""
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in prose.splitlines():
        if not line.startswith(("|", "    ")):
            assert not re.search(r"[a-z`)]\. [A-Z`]", line), line
