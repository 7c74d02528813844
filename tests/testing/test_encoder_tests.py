"""The shipped tests of an encoder pass one that is right and notice one that is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.testing import EncoderTests


class Mean:
    """The mean colour of a picture: a right encoder."""

    input = "image"

    def identity(self) -> object:
        return {"name": "mean", "version": 1}

    def load(self, device: str) -> None:
        pass

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [{"mean": np.mean(item.image, axis=(0, 1)), "size": item.image.shape[:2]} for item in batch]  # type: ignore[arg-type,union-attr]

    def unload(self) -> None:
        pass


class TestMean(EncoderTests):
    """A right encoder passes."""

    def make_encoder(self) -> Mean:
        return Mean()


class Counting(Mean):
    """Its results depend on what stands beside them."""

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [{**tree, "mean": tree["mean"] + len(batch)} for tree in super().encode(batch)]


class Swapping(Mean):
    """Gives the results of a batch in another order."""

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return super().encode(batch)[::-1]


class Reusing(Mean):
    """Writes every result into one buffer."""

    buffer = np.zeros(3)

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        for tree in super().encode(batch):
            self.buffer[:] = tree["mean"]
        return [self.buffer] * len(batch)


class Darkening(Mean):
    """Writes to the picture."""

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        for item in batch:
            item.image[:] //= 2  # type: ignore[index]
        return super().encode(batch)


class Dividing(Mean):
    """Divides by zero now and then."""

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [{"mean": tree["mean"] * np.nan} for tree in super().encode(batch)]


class Short(Mean):
    """Loses an item."""

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return super().encode(batch)[: max(1, len(batch) - 1)]


class Dated(Mean):
    """Is another one each time."""

    def identity(self) -> object:
        return {"made": id(self)}


class Opaque(Mean):
    """Its identity is an object."""

    def identity(self) -> object:
        return object()


class Keeping(Mean):
    """Gives what no store keeps."""

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [{"picture": item} for item in batch]


class Learning(Mean):
    """Changes with every load."""

    loads = 0

    def load(self, device: str) -> None:
        self.loads += 1

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [{"mean": tree["mean"] * self.loads} for tree in super().encode(batch)]


@pytest.mark.parametrize(
    ("kind", "test", "error"),
    [
        (Counting, "a_result_does_not_depend_on_its_batch", AssertionError),
        (Swapping, "a_result_does_not_depend_on_its_batch", AssertionError),
        (Reusing, "a_later_batch_leaves_results_alone", AssertionError),
        (Darkening, "it_leaves_its_items_alone", AssertionError),
        (Dividing, "its_numbers_are_finite", AssertionError),
        (Short, "there_is_one_tree_for_each_item", AssertionError),
        (Dated, "its_identity_is_stable", AssertionError),
        (Opaque, "its_identity_is_plain_data", precook.IdentityError),
        (Keeping, "its_trees_can_be_stored", precook.TreeError),
        (Learning, "it_can_be_loaded_again", AssertionError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) and issubclass(value, Mean) else "",
)
def test_a_wrong_encoder_fails(kind: type[Mean], test: str, error: type[Exception], tmp_path: Path) -> None:
    """Each of them fails the test that is about its fault."""

    class Suite(EncoderTests):
        def make_encoder(self) -> Mean:
            return kind()

    method = getattr(Suite(), f"test_{test}")
    with pytest.raises(error):
        method(**({"tmp_path": tmp_path} if "stored" in test else {}))


def test_a_suite_without_an_encoder_says_what_it_needs() -> None:
    """Whoever forgets `make_encoder` is told."""
    with pytest.raises(NotImplementedError, match="how its encoder is made"):
        EncoderTests().test_it_says_what_it_takes()


def test_importing_needs_neither_pytest_nor_hypothesis_nor_torch() -> None:
    """They are for whoever runs the tests; without hypothesis, the machine names it."""
    code = """
import sys
sys.modules["hypothesis"] = None  # what an interpreter without it does: the import fails
import precook
assert precook.testing.StoreTests and precook.testing.EncoderTests
assert not {"pytest", "torch"} & set(sys.modules)
try:
    precook.testing.StoreMachine
except ModuleNotFoundError as error:
    assert "pip install hypothesis" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_are_there() -> None:
    """`__all__` lists what can be had, and what is not there is an AttributeError."""
    for name in precook.testing.__all__:
        assert getattr(precook.testing, name) is not None
    with pytest.raises(AttributeError):
        precook.testing.nonsense  # noqa: B018
