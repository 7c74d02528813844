"""Options of concepts: those that are off or that nobody asks for cost nothing, the others never give old values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# ruff: noqa: E402, I001 - without torch there is nothing to import, and the module with pipelines says where mgds is
torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.support.mgds_pipelines import Module, concept, pictures

from mgds.pipelineModules.RandomFlip import RandomFlip
from mgds.pipelineModules.ShuffleTags import ShuffleTags

from precook.integrations.mgds import keys
from tests.integrations.mgds.test_keys import run

IMAGE = {"strength": 1, "notes": [], "enable_random_flip": False, "enable_fixed_flip": False}
TEXT = {"prompt_source": "sample", "enable_tag_shuffling": False, "tag_delimiter": ",", "keep_tags_count": 1}


def modules() -> list[Any]:
    """The switched ones, as OneTrainer has them."""
    return [
        RandomFlip(["image"], "concept.image.enable_random_flip", "concept.image.enable_fixed_flip"),
        ShuffleTags(
            "prompt", "concept.text.enable_tag_shuffling", "concept.text.tag_delimiter",
            "concept.text.keep_tags_count", "prompt",
        ),
    ]  # fmt: skip


def epoch(folder: Path, *concepts: dict[str, Any], **options: Any) -> tuple[Any, tuple[int, int]]:
    return run(folder, list(concepts), extra=modules(), **options)


def changed(path: Path, image: dict[str, Any] | None = None, text: dict[str, Any] | None = None) -> dict[str, Any]:
    return concept(path, image=IMAGE | (image or {}), text=TEXT | (text or {}))


@pytest.fixture
def before(tmp_path: Path, cats: Path) -> Any:
    """What an epoch shows with everything off."""
    return epoch(tmp_path, changed(cats))[0]


def test_an_option_that_no_module_asks_for_costs_nothing(tmp_path: Path, cats: Path, before: Any) -> None:
    """A new version of OneTrainer brings options, and one that is there may change, without any encoding."""
    assert epoch(tmp_path, changed(cats, {"new": True, "notes": ["x"]}, {"new": 3})) == (before, (0, 0))


def test_an_option_of_a_module_that_is_off_costs_nothing(tmp_path: Path, cats: Path, before: Any) -> None:
    """Whatever a module would do with it, it does nothing."""
    assert epoch(tmp_path, changed(cats, text={"tag_delimiter": ";", "keep_tags_count": 5})) == (before, (0, 0))


def test_a_module_that_is_off_may_come_and_go(tmp_path: Path, cats: Path, before: Any) -> None:
    """A pipeline of an earlier version without it finds everything."""
    assert run(tmp_path, [changed(cats)]) == (before, (0, 0))


def test_an_option_that_is_on_counts(tmp_path: Path, cats: Path) -> None:
    """Switched on, a module and each of its options make new entries; switched off, the old ones are there."""
    for caption in cats.glob("*.txt"):
        caption.write_text(f"{caption.name},two,three,four")
    before, _ = epoch(tmp_path, changed(cats))
    flipped, encoded = epoch(tmp_path, changed(cats, {"enable_fixed_flip": True}))
    assert encoded == (4, 0)
    assert all(flipped[name]["latent_image"] != before[name]["latent_image"] for name in before)
    on: dict[str, Any] = {"enable_tag_shuffling": True}
    assert epoch(tmp_path, changed(cats, text=on))[1] == (0, 4)
    assert epoch(tmp_path, changed(cats, text=on | {"keep_tags_count": 4}))[1] == (0, 4)
    assert epoch(tmp_path, changed(cats)) == (before, (0, 0))


class Ramp(Module):
    """Adds numbers that rise from left to right."""

    def make(self, variation: int, index: int) -> Any:
        image = self.given(variation, index)
        return image + torch.arange(len(image))


def test_where_a_module_stands_counts_while_it_is_on(tmp_path: Path, cats: Path) -> None:
    """Mirrored before or after another change is not the same picture; switched off, it may stand anywhere."""
    flip, _ = modules()
    for switched, expected in ((False, 0), (True, 4)):
        made = changed(cats, {"enable_fixed_flip": switched})
        before, _ = run(tmp_path, [made], extra=[flip, Ramp("image", "image")])
        after, encoded = run(tmp_path, [made], extra=[Ramp("image", "image"), flip])
        assert encoded == (expected, 0)
        assert (after == before) is not switched


def test_one_concepts_options_leave_the_others_alone(tmp_path: Path, cats: Path) -> None:
    """What is switched on for some samples is encoded for these."""
    pictures(dogs := tmp_path / "dogs", 3)
    epoch(tmp_path, changed(cats), changed(dogs))
    assert epoch(tmp_path, changed(cats), changed(dogs, {"enable_random_flip": True}))[1] == (3, 0)


class Words(Module):
    """Adds the words of a file that a concept names."""

    def __init__(self) -> None:
        super().__init__("prompt", "prompt")
        self.words_in_name = "concept.text.words"

    def make(self, variation: int, index: int) -> Any:
        return (
            self.given(variation, index)
            + Path(self._get_previous_item(variation, self.words_in_name, index)).read_text()
        )


def test_an_option_that_names_a_file_counts_with_what_it_holds(tmp_path: Path, cats: Path) -> None:
    """An edited list of tags is noticed."""
    (tmp_path / "words.txt").write_text("one")
    made = changed(cats, text={"words": str(tmp_path / "words.txt")})
    run(tmp_path, [made], extra=[Words()])
    (tmp_path / "words.txt").write_text("two")
    assert run(tmp_path, [made], extra=[Words()])[1] == (0, 4)
    assert run(tmp_path, [made], extra=[Words()])[1] == (0, 0)


@pytest.mark.parametrize(
    "options", [{}, {"text_options": {"content_key_in_name": "prompt"}}], ids=["plain", "text key"]
)
def test_what_earlier_versions_made_is_found(
    tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Their keys held every option; with all of these as they were, nothing is encoded again."""
    key_rules = keys.key_rules
    with monkeypatch.context() as patch:

        def earlier(*arguments: Any) -> keys.KeyRules:
            rules = key_rules(*arguments)
            assert rules.earlier is not None
            return keys.KeyRules(rules.upstream, rules.earlier, rules.content, rules.beside_text)

        patch.setattr("precook.integrations.mgds.build.key_rules", earlier)
        made, encoded = epoch(tmp_path, changed(cats), **options)
        assert encoded == (4, 4)
        assert epoch(tmp_path, changed(cats, {"new": 1}, {"new": 1}), **options)[1] == (4, 0 if options else 4)
    assert epoch(tmp_path, changed(cats), **options) == (made, (0, 0))
