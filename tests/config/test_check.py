"""Settings from data: what is wrong is told in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import precook
from precook.config.check import check
from precook.config.encoders import ENCODERS
from precook.config.messages import nearest
from precook.config.sections import ImageSettings
from tests.support.configs import (
    BAD,
    GOOD,
    SECTIONS,
    concept,
    encoder,
    image,
    refused,
    small,
    text,
)


@pytest.mark.parametrize("data", GOOD, ids=range(len(GOOD)))
def test_what_is_allowed_is_accepted(data: dict[str, Any]) -> None:
    """Values at the edge of what is allowed are allowed, and tell themselves as they were written."""
    settings = check(data)
    assert check(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(("data", "where", "message"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_refused_in_plain_words(data: dict[str, Any], where: str | None, message: str) -> None:
    """The one thing that is wrong is named, with its place."""
    error = refused(data)
    assert len(error.problems) == 1, error.problems
    assert message in error.message
    assert error.where == where or where is None
    assert (error.file, error.line) == (None, None)
    assert error.message.startswith(f"{error.where}: ")


def test_two_concepts_of_one_name_are_refused() -> None:
    """The second one is named."""
    cats = {"name": "cats", "path": "a"}
    error = refused(small(concepts=[cats, {"name": "dogs", "path": "b"}, cats]))
    assert str(error) == "concepts[2].name: another concept is called 'cats' (give each a name of its own)"


def test_data_without_end_is_refused() -> None:
    """A list that holds itself is told, not followed."""
    endless: list[Any] = []
    endless.append(endless)
    assert "nested more than 32 levels deep" in str(refused(encoder("a:B", thing=endless)))


@pytest.mark.parametrize("data", [None, [], "store: cache", 3])
def test_something_else_than_fields_is_refused(data: object) -> None:
    """`check` says what it wants."""
    assert refused(data).message.startswith("must be a mapping of fields, not ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, ["dataset: this field is missing (add `dataset: portraits`)", "concepts: ", "encoders: "]),
        (small(concepts=[{}]), ["concepts[0].name: this field is missing", "concepts[0].path: this field is missing"]),
        (small(encoders={"x": {"uses": "diffusers-vae"}}), ["encoders.x.model: this field is missing"]),
    ],
)
def test_what_is_missing_is_named(data: dict[str, Any], said: list[str]) -> None:
    """Each missing field is a problem of its own, with an example."""
    problems = refused(data).problems
    assert len(problems) == len(said)
    for problem, start in zip(problems, said, strict=True):
        assert f"{problem.told(None)} ({problem.hint})".startswith(start)
        assert problem.hint


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (small(stor="x"), "stor: unknown field 'stor'; did you mean 'store'?"),
        (small(video={"strat": "first"}), "video.strat: unknown field 'strat'; did you mean 'start'?"),
        (concept(Loss_Weight=1), "concepts[0].Loss_Weight: unknown field 'Loss_Weight'; did you mean 'loss_weight'?"),
        (concept(missing_masks="white"), "did you mean 'missing_mask'?"),
        (image(resolution=[512]), "image.resolution: unknown field 'resolution'; did you mean 'resolutions'?"),
        (text(**{"empty-prompt": True}), "did you mean 'empty_prompt'?"),
        (encoder("diffusers-vae", dtyp="float16"), "encoders.x.dtyp: unknown field 'dtyp'; did you mean 'dtype'?"),
        (encoder("transformers-text", layer=[-1]), "did you mean 'layers'?"),
        (encoder("mask", faktor=8), "did you mean 'factor'?"),
        (small(resolutions=[512]), "unknown field 'resolutions' (it belongs under image)"),
        (image(captions="sidecar"), "unknown field 'captions' (it belongs under concepts)"),
        (image(store="x"), "unknown field 'store' (it belongs at the left margin)"),
        (text(qqq=1), "unknown field 'qqq' (fields here: variations, empty_prompt)"),
    ],
)
def test_unknown_fields_are_answered_with_the_nearest_name(data: dict[str, Any], said: str) -> None:
    """A misspelt field is an error that knows what was meant, or where it belongs."""
    assert said in str(refused(data))


FIELDS = [
    pytest.param(make, name, id=f"{section.__name__}.{name}")
    for section, make in SECTIONS
    for name in section.model_fields
    if name != "uses"
]
VALUES = [None, True, 0, -1, 10**40, 0.5, float("nan"), "", "word", "1", "\ud800", [], [[]], [None], {}, {"a": 1}, b"x"]


@pytest.mark.parametrize(("make", "name"), FIELDS)
def test_any_value_in_any_field_is_taken_or_refused_in_our_words(make: Callable[..., Any], name: str) -> None:
    """Whatever stands in a field, the problem lies there, and nobody has to know the library that found it."""
    for value in VALUES:
        try:
            check(make(**{name: value}))
        except precook.ConfigError as error:
            for problem in error.problems:
                assert re.search(rf"\b{name}\b", problem.where), problem
                assert not re.search(r"pydantic|valid_|[Ii]nput|should|does not belong here|http", str(problem))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("resolution", "resolutions"),
        ("RESOLUTIONS", "resolutions"),
        ("max-pixels", "max_pixels"),
        ("diffusers_vae", "diffusers-vae"),
        ("", None),
        ("zzzz", None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case_and_dashes(name: str, found: str | None) -> None:
    """A slip finds the valid name as it is spelled; something else finds none."""
    assert nearest(name, [*ImageSettings.model_fields, *ENCODERS]) == found


def test_dashes_and_underscores_are_the_same_to_the_nearest_name() -> None:
    """A name that differs in nothing else is nearer than one with another letter."""
    assert nearest("x-y-z", ["x-y-q", "x_y_z"]) == "x_y_z"
    assert nearest("x_y_z", ["x_y_q", "x-y-z"]) == "x-y-z"


@pytest.mark.parametrize(
    ("texts", "meant"),
    [
        ({"mesages": "messages"}, "not a mapping of 'mesages'; did you mean 'messages'?"),
        ({"prompt": "prompt", "completions": "completion"}, "did you mean 'completion'?"),
        ({"colum": "text"}, "did you mean 'column'?"),
        ("file", "not text 'file'; did you mean 'files'?"),
        ({"prompt": "prompt"}, "not a mapping of 'prompt'"),
        ({3: "text"}, "not a mapping of '3'"),
    ],
)
def test_a_form_of_texts_that_is_misspelt(texts: object, meant: str) -> None:
    """The nearest valid name is told, whichever form it belongs to."""
    data = {"dataset": "d", "concepts": [{"name": "a", "path": "a.jsonl", "texts": texts}]}
    with pytest.raises(precook.ConfigError) as caught:
        check({**data, "encoders": {"tokens": {"uses": "transformers-tokens", "model": "m"}}})
    (problem,) = caught.value.problems
    assert problem.message.endswith(meant)


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("natve", "must be a list, or native, not text 'natve'; did you mean 'native'?", ""),
        ("Native", "must be a list, or native, not text 'Native'; did you mean 'native'?", ""),
        ("768x512", "must be a list, or native, not text '768x512'", 'write ["768x512"]'),
        ("large", "must be a list, or native, not text 'large'", "begin each item with a dash"),
    ],
)
def test_one_resolution_that_is_no_list(value: str, message: str, hint: str) -> None:
    """A misspelt native is told by its name, and a size by how it is written; inside a list, too."""
    data = {"dataset": "d", "concepts": [{"name": "a", "path": "a"}], "encoders": {"pixels": {"uses": "image"}}}
    with pytest.raises(precook.ConfigError) as caught:
        check({**data, "image": {"resolutions": value}})
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint) == (message, hint)
    if "did you mean" in message:
        with pytest.raises(precook.ConfigError, match="did you mean 'native'"):
            check({**data, "image": {"resolutions": [512, value]}})


def test_a_form_of_captions_that_is_misspelt() -> None:
    """As it is told for the words."""
    data = {"dataset": "d", "concepts": [{"name": "a", "path": "a.csv", "captions": {"colum": "caption"}}]}
    with pytest.raises(precook.ConfigError, match="did you mean 'column'"):
        check({**data, "encoders": {"pixels": {"uses": "image"}}})
