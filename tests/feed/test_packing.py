"""Packed batches: as full as TRL's, never two texts mixed, and a model sees each text as if it were alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from tests.encode.test_tokens import WORDS
from tests.support.projects import dataset, project
from tests.support.texts import FORMS, chat_tokenizer, text_project, write_table

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZE = 24


def texts(count: int) -> list[dict[str, str]]:
    """Texts of very different lengths, no two alike."""
    draws = random.Random(0)
    return [{"text": " ".join(draws.choices(WORDS, k=draws.choice([1, 2, 3, 5, 8, 13, 21])))} for _ in range(count)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[precook.Project]:
    """A dataset of 200 texts, each ended."""
    base = tmp_path_factory.mktemp("packing")
    chat_tokenizer(base / "text")
    write_table(base / "train.jsonl", texts(200))
    encoders = {"tokens": {"uses": "transformers-tokens", "model": "text", "eos": "on"}}
    with text_project(base, {"column": "text"}, encoders=encoders) as owner:
        owner.build()
        yield owner


def documents(batch: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Each text of a batch, by its sample, as it stands in its row."""
    tokens = batch["tokens"]
    found = []
    for number, sample in enumerate(batch["sample"]):
        rows, places = np.nonzero(np.asarray(tokens["documents"]) == number)
        assert len(set(rows.tolist())) == 1
        assert places.tolist() == list(range(places[0], places[0] + len(places)))
        found.append((sample, np.asarray(tokens["input_ids"])[rows, places].tolist()))
    return found


def test_every_text_is_there_once_as_a_whole(built: precook.Project) -> None:
    """An epoch shows each of them, in one row; another epoch puts others beside it."""
    shown = []
    with built.feed(batch_size=4, pack=SIZE) as feed, built.feed(batch_size=1, threads=0) as plain:
        wanted = {batch["sample"][0]: batch["tokens"]["input_ids"][0].tolist() for batch in plain.epoch(0)}
        for epoch in range(2):
            batches = list(feed.epoch(epoch))
            assert all(batch["tokens"]["input_ids"].shape == (4, SIZE) for batch in batches[:-1])
            assert dict(pair for batch in batches for pair in documents(batch)) == wanted
            shown.append([batch["sample"] for batch in batches])
        assert len(feed) == len(shown[0])
    assert shown[0] != shown[1]


def test_positions_and_ends_tell_texts_apart(built: precook.Project) -> None:
    """Positions begin anew with each text, `cu_seqlens` has where it begins, and no text is told the next one's first
    token.
    """
    with built.feed(batch_size=3, pack=SIZE) as feed:
        for batch in feed.epoch(0):
            tokens = batch["tokens"]
            flat = {name: tokens[name].flatten() for name in ("input_ids", "labels", "position_ids", "documents")}
            edges = tokens["cu_seqlens"].tolist()
            assert edges[0] == 0
            assert edges[-1] == len(flat["input_ids"])
            assert (flat["position_ids"] == 0).nonzero().flatten().tolist() == edges[:-1]
            assert tokens["max_seqlen"] == max(np.diff(edges))
            for begin, end in itertools.pairwise(edges):
                assert flat["position_ids"][begin:end].tolist() == list(range(end - begin))
                assert len(set(flat["documents"][begin:end].tolist())) == 1
                assert flat["labels"][begin] == -100
                if flat["documents"][begin] == -1:
                    assert set(flat["labels"][begin:end].tolist()) == {-100}
                else:
                    assert flat["labels"][begin + 1 : end].equal(flat["input_ids"][begin + 1 : end])


def test_rows_are_those_of_trl(built: precook.Project) -> None:
    """As many rows, each with as many tokens, as TRL's own packing makes of the same texts."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    with built.feed(batch_size=1, pack=SIZE) as feed:
        ours = [int((batch["tokens"]["documents"] >= 0).sum()) for batch in feed.epoch(0)]
        rows = feed.as_hf_dataset().select_columns(["input_ids"])
    theirs = [len(row["input_ids"]) for row in trl.pack_dataset(rows, SIZE, "bfd")]
    assert sorted(ours) == sorted(theirs)
    assert sum(ours) == sum(len(row) for row in rows["input_ids"])


def test_a_model_sees_each_text_as_if_it_were_alone(built: precook.Project) -> None:
    """The loss of a packed batch is that of its texts one by one: neither attention nor a label reaches beyond one."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with built.feed(batch_size=4, pack=SIZE) as feed:
        batch = next(iter(feed.epoch(0)))
    inputs = {name: batch["tokens"][name] for name in ("input_ids", "labels", "position_ids")}
    with torch.no_grad():
        packed = model(**inputs, use_cache=False).loss
        alone, count = 0.0, 0
        for _, ids in documents(batch):
            one = torch.tensor([ids])
            if len(ids) > 1:
                alone += float(model(input_ids=one, labels=one).loss) * (len(ids) - 1)
                count += len(ids) - 1
    assert float(packed) == pytest.approx(alone / count, abs=1e-5)


def test_completions_keep_their_labels(tmp_path: Path) -> None:
    """What a prompt says counts in no loss, packed or not; the tokens that count are the same."""
    chat_tokenizer(tmp_path / "text")
    rows, column = FORMS["completion"]
    write_table(tmp_path / "train.jsonl", rows)
    with text_project(tmp_path, column) as owner:
        owner.build()
        with owner.feed(batch_size=9, pack=SIZE) as feed:
            (packed,) = feed.epoch(0)
        with owner.feed(batch_size=9) as feed:
            (padded,) = feed.epoch(0)
    counted = [tokens["labels"][tokens["labels"] != -100].tolist() for tokens in (packed["tokens"], padded["tokens"])]
    assert sorted(counted[0]) == sorted(counted[1])
    assert padded["tokens"]["labels"][~padded["tokens"]["mask"]].eq(-100).all()


def test_ranks_share_rows_and_a_state_goes_on(built: precook.Project) -> None:
    """Two ranks show every text once between them; a feed that stopped inside an epoch goes on with the next batch."""
    samples: list[str] = []
    for rank in range(2):
        with built.feed(batch_size=2, pack=SIZE, rank=rank, world_size=2) as feed:
            samples += [sample for batch in feed.epoch(0) for sample in batch["sample"]]
    assert len(samples) == len(set(samples)) == 200
    with built.feed(batch_size=2, pack=SIZE) as feed:
        whole = [batch["sample"] for batch in feed.epoch(0)]
        first = iter(feed.epoch(0))
        for _ in range(3):
            next(first)
        state = feed.state_dict()
    with built.feed(batch_size=2, pack=SIZE) as feed:
        feed.load_state_dict(state)
        assert [batch["sample"] for batch in feed.epoch(0)] == whole[3:]
    with built.feed(batch_size=2, pack=SIZE + 1) as feed, pytest.raises(precook.FeedError, match="of another feed"):
        feed.load_state_dict(state)


def test_rows_that_are_shown_again_stay_apart(tmp_path: Path) -> None:
    """Where a batch is filled up with a row that it has, both stand in it."""
    chat_tokenizer(tmp_path / "text")
    write_table(tmp_path / "train.jsonl", [{"text": "a cat"}, {"text": "a dog"}])
    with text_project(tmp_path, {"column": "text"}) as owner:
        owner.build()
        with owner.feed(batch_size=3, pack=6, last="wrap") as feed:
            (batch,) = feed.epoch(0)
    assert batch["tokens"]["input_ids"].shape == (3, 6)
    assert len(batch["sample"]) == 6
    assert batch["tokens"]["cu_seqlens"].tolist() == [0, 3, 6, 9, 12, 15, 18]


def test_a_loader_gives_what_a_model_takes(built: precook.Project) -> None:
    """Under the names that its call has, on every epoch the batches of the feed."""
    names = ["input_ids", "labels", "position_ids"]
    with built.feed(batch_size=4, pack=SIZE) as feed:
        wanted = [batch["tokens"] for batch in feed.epoch(0)]
        loaded = list(feed.loader(fields=names, rename={f"tokens.{name}": name for name in names}))
    assert [list(batch) for batch in loaded] == [names] * len(wanted)
    assert all(batch[name].equal(tokens[name]) for batch, tokens in zip(loaded, wanted, strict=True) for name in names)


def test_what_is_longer_than_a_row_is_cut_and_told(built: precook.Project, caplog: pytest.LogCaptureFixture) -> None:
    """As TRL cuts it; the warning says how many."""
    with built.feed(batch_size=8, pack=10) as feed:
        batches = list(feed.epoch(0))
    assert max(len(ids) for batch in batches for _, ids in documents(batch)) == 10
    assert sum(len(batch["sample"]) for batch in batches) == 200
    assert "texts cut to 10 tokens" in caplog.text


def test_texts_of_a_length_stand_together(built: precook.Project) -> None:
    """With `by_length` little is padded, and every text is shown once all the same."""
    padding = []
    for by_length in (False, True):
        with built.feed(batch_size=4, by_length=by_length) as feed:
            batches = list(feed.epoch(0))
        assert len({sample for batch in batches for sample in batch["sample"]}) == 200
        padding.append(sum(int((~batch["tokens"]["mask"]).sum()) for batch in batches))
    assert padding[1] < padding[0] / 10


class TestRefused:
    """What cannot be made of texts is refused when the feed is made."""

    def test_other_encoders(self, tmp_path: Path) -> None:
        """Pictures, and what others make of texts, have no place in such rows."""
        dataset(tmp_path / "data")
        with project(tmp_path) as owner:
            owner.build()
            with pytest.raises(precook.FeedError, match="only token ids are packed, and it has pixels, words"):
                owner.feed(batch_size=2, pack=16)
            with pytest.raises(precook.FeedError, match="pictures stand together by size"):
                owner.feed(batch_size=2, by_length=True)

    def test_what_is_not_encoded_yet(self, built: precook.Project) -> None:
        """Nobody knows how long it will be."""
        with pytest.raises(precook.FeedError, match="known only when they are encoded"):
            built.feed(batch_size=2, pack=16, on_missing="encode")

    @pytest.mark.parametrize(
        "options", [{"pack": 0}, {"pack": "16"}, {"pack": True}, {"pack": 10**30}, {"pack": 16, "by_length": True}]
    )
    def test_options_that_make_no_sense(self, built: precook.Project, options: dict[str, Any]) -> None:
        """A row has a token at least, and packed texts are not padded."""
        with pytest.raises(precook.FeedError, match=r"pack is a number|not padded"):
            built.feed(batch_size=2, **options)

    def test_captions_that_are_none(self, built: precook.Project) -> None:
        """Texts alone have no captions to leave out, and no empty prompt that a config could ask for."""
        for source in (built, built.store.snapshot("test")):
            with pytest.raises(precook.FeedError, match="test has texts alone, and no captions") as caught:
                source.feed(batch_size=2, caption_dropout=0.1)
            assert caught.value.hint == "feed without caption_dropout"
