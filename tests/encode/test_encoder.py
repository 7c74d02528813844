"""Encoders: what the engine takes an encoder for that only follows the protocol, and one that can do more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.encode.encoder import BaseEncoder, Item, as_base
from tests.support.projects import Words, dataset, project


class Able(Words):
    """A user's encoder with everything that can be had beyond the protocol."""

    gives_away = True
    truncated = 3

    def lengths(self, texts: list[str]) -> list[int]:
        return [text.count(" ") for text in texts]

    def stage(self, batch: list[Item]) -> Any:
        return batch


def test_an_encoder_of_the_protocol_has_the_defaults() -> None:
    """It is loaded, encodes and is unloaded as before; texts are measured by their characters."""
    base = as_base(Words())
    assert (base.gives_away, base.can_stage, base.truncated) == (False, False, 0)
    assert base.lengths(["a", "a b"]) == [1, 3]
    assert base.encode([Item(text="abc")]) == [3]


def test_what_an_encoder_can_do_is_used() -> None:
    """Under the names of the base class, and as it is at the moment it is asked for."""
    able = Able()
    base = as_base(able)
    assert (base.gives_away, base.can_stage, base.truncated) == (True, True, 3)
    assert base.lengths(["a", "a b"]) == [0, 1]
    items = [Item(text="a")]
    assert base.stage(items) is items
    able.truncated, able.gives_away = 4, False
    assert (base.truncated, base.gives_away) == (4, False)


def test_lengths_that_fail_together_are_measured_one_by_one() -> None:
    """By `length`, if there is one; what fails there too costs nothing and is told when it is encoded."""

    class Picky(Words):
        def lengths(self, texts: list[str]) -> list[int]:
            raise ValueError(texts)

        def length(self, text: str) -> int:
            if text == "bad":
                raise ValueError(text)
            return 10 * len(text)

    assert as_base(Picky()).lengths(["a", "bad", "ab"]) == [10, 0, 20]


def test_an_encoder_of_ours_is_taken_as_it_is() -> None:
    """What it does not say has a default, but for what every encoder has to do."""

    class Ours(BaseEncoder):
        pass

    ours = Ours()
    assert as_base(ours) is ours
    ours.load("cpu")
    ours.unload()
    with pytest.raises(NotImplementedError):
        ours.encode([Item(image=np.zeros((1, 1, 3), np.uint8))])
    with pytest.raises(NotImplementedError):
        ours.stage([])


class Taking(Words):
    """A user's encoder that says what it takes in some way."""

    def __init__(self, **says: Any) -> None:
        super().__init__()
        self.__dict__.update({"input": None, **says})


@pytest.mark.parametrize(
    ("says", "message", "hint"),
    [
        (
            {"input": "Text"},
            "unknown input 'Text'; did you mean 'text'?",
            "write input = 'image', 'text', 'mask' or 'video', or ",
        ),
        ({"input": ["image"]}, "unknown input ['image']", "write input = "),
        ({"input": b"image"}, "unknown input b'image'", "write input = "),
        ({}, "it does not say what it takes", "write input = "),
        ({"inputs": "image"}, "inputs is 'image', not a tuple of names", 'write inputs = ("image",)'),
        ({"inputs": ()}, "inputs is (), not a tuple of names", 'write inputs = ("image",)'),
        ({"inputs": ("image", "Mask")}, "unknown input 'Mask'; did you mean 'mask'?", "write input = "),
        ({"inputs": ("image", "image")}, "it takes 'image' twice", "name each input once"),
    ],
)
def test_an_unknown_input_is_refused(tmp_path: Path, says: dict[str, Any], message: str, hint: str) -> None:
    """Of an object at once, with the nearest name: nothing is taken for a picture because it is misspelt."""
    with pytest.raises(precook.ConfigError) as refused:
        project(tmp_path, encoders={"mine": Taking(**says)})
    assert refused.value.message == f"encoders.mine: Taking: {message}"
    assert (refused.value.hint or "").startswith(hint)


@pytest.mark.parametrize("says", [{"input": "text"}, {"inputs": ("text",)}, {"inputs": ["text"]}])
def test_one_input_can_be_said_in_two_ways(tmp_path: Path, says: dict[str, Any]) -> None:
    """`inputs` with one item is `input`; where there is an `input`, an attribute `inputs` is the encoder's own."""
    dataset(tmp_path / "data", 1)
    with project(tmp_path, encoders={"mine": Taking(**says)}) as opened:
        assert opened.build().encoded == {"mine": 2}
    with project(tmp_path, encoders={"mine": Taking(input="text", inputs=("image", "text"))}) as opened:
        assert not opened.plan().missing


def test_what_is_no_encoder_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    """An object that cannot encode."""
    with pytest.raises(precook.ConfigError, match=r"encoders.mine: object is not an encoder: it has no identity"):
        project(tmp_path, encoders={"mine": object()})
