"""Results: counted, checked and written the same way for everybody who encodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import precook
from precook.encode.encoder import Item
from precook.encode.prepare import Job
from precook.encode.results import Acceptance, WrongResultsError, count_results, write_results
from precook.errors import EncodeError
from precook.plan.entries import PlannedEntry
from precook.store import commit
from precook.store.tree import Parts, take_apart

ENTRY = cast("PlannedEntry", SimpleNamespace(path="somewhere"))


def text(content: str) -> Job:
    return Job(ENTRY, Item(text=content))


def pixels(height: int, width: int) -> Job:
    return Job(ENTRY, Item(image=np.zeros((height, width, 3), np.uint8)))


def accepted(acceptance: Acceptance, jobs: list[Job], trees: list[Any]) -> list[bool]:
    return [not isinstance(one, EncodeError) for one in acceptance.accept([job.shape for job in jobs], trees)]


def test_what_most_of_the_first_batch_have_in_common_is_the_pattern() -> None:
    """A wrong result that comes first is the one that fails, and the pattern holds for later batches."""
    acceptance = Acceptance("latent")
    jobs = [pixels(8, 8)] * 3
    good, wrong, other = np.zeros((4, 1, 1)), np.zeros((4, 2, 1)), np.zeros((4, 1, 1), np.float32)
    assert accepted(acceptance, jobs, [wrong, good, good]) == [False, True, True]
    assert accepted(acceptance, jobs, [other, good, wrong]) == [False, True, False]
    # Pictures of another size have another shape, texts any.
    assert accepted(acceptance, [pixels(16, 8)], [wrong]) == [True]
    assert accepted(acceptance, [pixels(16, 8)], [good]) == [False]
    assert accepted(Acceptance("words"), [text("a"), text("b c")], [np.zeros((1, 3)), np.zeros((2, 3))]) == [True, True]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), np.float16("inf"), np.complex64(complex(0, np.nan))])
def test_no_number_that_is_not_finite_is_accepted(value: Any) -> None:
    """Neither in a tensor of any type nor among plain values."""
    tree = {"a": [value]} if isinstance(value, float) else {"a": [np.array([value, value])]}
    (result,) = Acceptance("words").accept([text("a").shape], [tree])
    assert isinstance(result, EncodeError)
    assert result.message.startswith("words returned numbers that are not finite")
    assert accepted(Acceptance("words"), [text("a")], [{"a": ['{"$bits":"7ff0000000000000"}', 1.5]}]) == [True]


def test_what_was_found_on_the_device_is_not_looked_for_again() -> None:
    """Results that are said to be not finite are refused, with the tensor's name; plain values are looked at still."""
    wrong, good = {"h": np.array([1.0, np.nan])}, {"h": np.array([1.0, 2.0])}

    def messages(trees: list[Any], not_finite: set[int] | None) -> list[str]:
        results = Acceptance("words").accept([()] * len(trees), trees, not_finite=not_finite)
        return [result.message if isinstance(result, EncodeError) else "" for result in results]

    named = "words returned numbers that are not finite in h"
    assert messages([good, wrong, good], None) == ["", named, ""]
    assert messages([good, wrong, good], {1}) == ["", named, ""]
    # On the word of whoever looked: nobody reads all of the results a second time.
    assert messages([good, wrong, good], set()) == ["", "", ""]
    assert messages([good, good], {0}) == ["words returned numbers that are not finite", ""]
    assert messages([[float("inf")]], set()) == ["words returned numbers that are not finite"]


@pytest.mark.parametrize("trees", [None, "ab", b"ab", 3, iter([1, 2]), [1], [1, 2, 3], {1: 1, 2: 2}])
def test_a_batch_of_something_else_is_refused(trees: Any) -> None:
    """Exactly one result for each item, in a list."""
    with pytest.raises(EncodeError, match="words returned"):
        Acceptance("words").count(trees, 2)


def compared(acceptance: Acceptance, *pairs: tuple[str, Any], cut: bool = False, captions: Any = None) -> None:
    texts = [text for text, _ in pairs]
    trees = [take_apart({"h": tree}) for _, tree in pairs]
    acceptance.compare_texts(texts, trees, captions or texts, cut=cut)


ONE, OTHER = np.zeros((2, 3)), np.ones((2, 3))


def test_a_model_that_makes_the_same_of_different_texts_is_stopped() -> None:
    """Three different texts with one result are enough, in one batch or in several, and two of them are named."""
    with pytest.raises(EncodeError, match="prompt made the same of 3 different texts, such as 'a cat' and 'a dog'"):
        compared(Acceptance("prompt"), ("a cat", ONE), ("a dog", ONE), ("a bird", ONE))
    acceptance = Acceptance("prompt")
    compared(acceptance, ("a cat", ONE))
    compared(acceptance, ("a dog", ONE))
    with pytest.raises(EncodeError, match="the same of 3 different texts"):
        compared(acceptance, ("a bird", ONE))


def test_texts_that_a_tokenizer_may_take_for_one_do_not_count_twice() -> None:
    """Case, accents, blanks, signs and order; texts that were cut; two texts; and the empty prompt beside anything."""
    same = ["A cat", "a  cat", "à cat!", "a cat\n", "a-cat…"]
    compared(Acceptance("prompt"), *((text, ONE) for text in same), ("a dog", ONE))
    compared(Acceptance("prompt"), ("a cat", ONE), ("a dog", ONE), ("a bird", ONE), cut=True)
    compared(Acceptance("prompt"), *((f"{'masterpiece, ' * 20}a {name}", ONE) for name in ("cat", "dog", "bird")))
    compared(Acceptance("prompt"), ("", ONE), (" ", ONE), ("!", ONE), ("a cat", ONE))
    compared(Acceptance("prompt"), *((text, ONE) for text in ("猫, 犬, 鳥", "犬, 鳥, 猫", "鳥, 猫, 犬", "猫, 鳥, 犬")))
    compared(Acceptance("prompt"), ("", np.zeros((0, 3))), ("a cat", ONE))


def test_variations_of_one_caption_count_as_one_text() -> None:
    """Some of its tags are as unknown as others; three captions that are all unknown are another matter."""
    mixtures = [(text, ONE) for text in ("猫, 犬", "犬, 鳥", "鳥, 魚", "魚, 猫")]
    compared(Acceptance("prompt"), *mixtures, captions=["first"] * 4)
    compared(Acceptance("prompt"), *mixtures, captions=["first", "first", "second", "second"])
    with pytest.raises(EncodeError, match="the same of 4 different texts"):
        compared(Acceptance("prompt"), *mixtures, captions=["first", "first", "second", "third"])


def test_a_model_that_has_told_two_texts_apart_is_believed() -> None:
    """Later texts with the same tokens are no reason to stop."""
    acceptance = Acceptance("prompt")
    compared(acceptance, ("a cat", ONE), ("a dog", OTHER))
    compared(acceptance, *((f"unknown {number}", ONE) for number in range(5)))


def test_a_text_without_tokens_ends_the_work() -> None:
    """A text with letters has tokens; a text of blanks and signs may have none."""
    compared(Acceptance("prompt"), ("…", np.zeros((0, 3))))
    with pytest.raises(EncodeError, match="prompt made no tokens of 'a cat'"):
        compared(Acceptance("prompt"), ("a cat", np.zeros((0, 3))))
    acceptance = Acceptance("prompt")
    compared(acceptance, ("a cat", ONE), ("a dog", OTHER))
    with pytest.raises(EncodeError, match="prompt made no tokens of 'a bird'"):
        compared(acceptance, ("a bird", np.zeros((0, 3))))


def test_an_empty_tree_ends_the_work() -> None:
    """In a batch there would be nothing under the encoder's name."""
    with pytest.raises(EncodeError, match="words returned an empty tree"):
        Acceptance("words").accept([(), ()], [{"a": 1}, {}])


def parts(text: str) -> Parts:
    return take_apart({"text": np.frombuffer(text.encode(), np.uint8)})


def test_what_is_written_is_there_and_what_no_pack_could_hold_is_named(
    store: precook.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its batch are stored; the group tells when they are durable."""
    monkeypatch.setattr(commit, "MAX_TEXT", 1000)
    recipe = precook.Recipe("test", 1)
    keys = [recipe.key(number) for number in range(3)]
    long = take_apart({"text": np.zeros(1, np.uint8), "note": "x" * 2000})
    results = [(keys[0].bytes, parts("a")), (keys[1].bytes, long), (keys[2].bytes, parts("b"))]
    with store.writer() as writer:
        written = write_results(writer, recipe, results)
        writer.flush()
        assert writer.durable >= written.group
    assert written.keys == [keys[0].bytes, keys[2].bytes]
    assert written.nbytes == 2
    ((number, error),) = written.refused
    assert number == 1
    assert "its plain values take" in error.message
    assert store.missing(keys) == [keys[1]]


@pytest.mark.parametrize(
    ("returned", "count", "words"), [([1], 1, "1"), (None, None, "a NoneType"), ("ab", None, "a str")]
)
def test_a_wrong_number_of_results_says_what_was_returned(returned: Any, count: int | None, words: str) -> None:
    """In words that each caller can put into its own message."""
    with pytest.raises(WrongResultsError) as caught:
        count_results(returned, 2)
    assert (caught.value.count, caught.value.returned) == (count, words)
    assert count_results([1, 2], 2) == [1, 2]
