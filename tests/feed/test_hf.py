"""Captions as a `datasets.Dataset`: row by row what TRL makes of the same texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.store.snapshot_content import SnapshotContent
from tests.encode.test_tokens import BEGIN, END, save_tokenizer
from tests.support.projects import dataset, project
from tests.support.stores import flip

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

LIMIT = 8
LONG = "seven red balloons in the park on the mat"
CAPTIONS = [
    "the quick brown fox",
    "a cat",
    f"a dog {END}",  # somebody has ended it already
    LONG,
    "a dog runs in the park on",  # as long as may be, or one token more
    "a cat",
    f"a fox{END}",
    "the mat the mat the mat",
    "",
]
TEMPLATES = {"begin": f"{BEGIN} $A", "bare": "$A", "both": f"{BEGIN} $A {END}", "alike": f"{END} $A", "bytes": None}


def table(base: Path) -> Path:
    """A picture for each caption, listed in an order of their own; their contents sort otherwise."""
    dataset(base / "pictures", len(CAPTIONS))
    rows = [{"image": f"pictures/p{number}.png", "caption": text} for number, text in enumerate(CAPTIONS)]
    base.joinpath("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return base


def tokens(base: Path, **settings: Any) -> precook.Project:
    return project(
        base,
        concepts=[{"name": "texts", "path": "data.jsonl", "captions": {"column": "caption"}}],
        encoders={"tokens": {"uses": "transformers-tokens", "model": "text", **settings}},
    )


def tiny_model() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=384, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    return transformers.LlamaForCausalLM(config)


def of_trl(folder: Path, captions: list[str], out: Path) -> list[list[int]]:
    """The rows that `SFTTrainer` itself makes of captions."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    trainer = trl.SFTTrainer(
        model=tiny_model(),
        args=trl.SFTConfig(output_dir=str(out), max_length=LIMIT, report_to="none", use_cpu=True),
        train_dataset=datasets.Dataset.from_dict({"text": captions}),
        processing_class=tokenizer,
    )
    rows: list[list[int]] = list(trainer.train_dataset["input_ids"])
    return rows


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_rows_are_those_that_trl_makes_of_the_captions(tmp_path: Path, template: str | None) -> None:
    """Same rows in the same order, each with its end where TRL puts one, of a project and of its snapshot alike."""
    if template is None:
        transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "text")
    else:
        save_tokenizer(tmp_path / "text", template=template)
    with tokens(table(tmp_path), max_length=LIMIT) as owner:
        owner.build()
        with owner.feed(batch_size=4) as feed:
            rows = feed.as_hf_dataset("tokens")
        with owner.store.snapshot("test").feed(batch_size=4) as feed:
            frozen = feed.as_hf_dataset()
    wanted = of_trl(tmp_path / "text", CAPTIONS, tmp_path / "out")
    if template is None or template.endswith(END):
        # TRL cuts off the token that the tokenizer, when it cuts, leaves in place of one more of the text.
        end = 1 if template is None else 3
        wanted = [[*row[:-1], end] if len(row) == LIMIT else row for row in wanted]
    assert list(rows["input_ids"]) == wanted
    assert list(rows["attention_mask"]) == [[1] * len(row) for row in wanted]
    assert frozen.to_dict() == rows.to_dict()


def test_the_same_seed_trains_the_same(tmp_path: Path) -> None:
    """A model that TRL trains on the rows has the losses of one that it trains on the captions."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A")
    with tokens(table(tmp_path)) as owner:
        owner.build()
        with owner.feed(batch_size=4) as feed:
            rows = feed.as_hf_dataset("tokens")
    found = []
    for data in (rows, datasets.Dataset.from_dict({"text": CAPTIONS})):
        torch.manual_seed(0)
        arguments = {"output_dir": str(tmp_path / "out"), "report_to": "none", "use_cpu": True, "disable_tqdm": True}
        trainer = trl.SFTTrainer(
            model=tiny_model(),
            args=trl.SFTConfig(**arguments, num_train_epochs=2, per_device_train_batch_size=2, logging_steps=1),
            train_dataset=data,
            processing_class=transformers.AutoTokenizer.from_pretrained(tmp_path / "text", local_files_only=True),
        )
        trainer.train()
        found.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
    assert found[0] == found[1]
    assert len(set(found[0])) == 10


def test_captions_of_several_lines_follow_each_other(tmp_path: Path) -> None:
    """A folder's files come in the order of their names, and each one's lines as they stand in it."""
    save_tokenizer(tmp_path / "text", template="$A")
    dataset(tmp_path / "data", 4)
    lines = [["a cat", "a dog"], ["a fox"], ["the mat", "the park", "a mat"], ["red balloons"]]
    for number, texts in enumerate(lines):
        (tmp_path / f"data/p{number}.txt").write_text("\n".join(texts))
    with project(tmp_path, encoders={"tokens": {"uses": "transformers-tokens", "model": "text"}}) as owner:
        owner.build()
        with owner.feed(batch_size=4) as feed:
            rows = feed.as_hf_dataset()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "text", local_files_only=True)
    assert list(rows["input_ids"]) == tokenizer([text + END for texts in lines for text in texts])["input_ids"]


def test_without_the_end_rows_are_the_tokenizers(tmp_path: Path) -> None:
    """`eos=False` leaves every row as it is kept."""
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A")
    with tokens(table(tmp_path)) as owner:
        owner.build()
        with owner.feed(batch_size=4) as feed:
            rows = feed.as_hf_dataset("tokens", eos=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "text", local_files_only=True)
    assert list(rows["input_ids"]) == tokenizer(CAPTIONS)["input_ids"]


def test_an_end_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    """A snapshot of an older precook names neither end nor order: the error says what to do, `eos=False` goes on."""
    save_tokenizer(tmp_path / "text")
    with tokens(table(tmp_path)) as owner:
        owner.build()
        tree = owner.store.snapshot("test").content.tree()
        del tree["encoders"]["tokens"]["eos"], tree["lines"]["order"]
        owner.store.freeze("older", SnapshotContent.of({**tree, "dataset": "older"}))
        with owner.store.snapshot("older").feed(batch_size=4) as feed:
            with pytest.raises(precook.FeedError, match="which token ends its texts is not known") as caught:
                feed.as_hf_dataset("tokens")
            assert "eos=False" in str(caught.value.hint)
            rows = feed.as_hf_dataset("tokens", eos=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "text", local_files_only=True)
    assert sorted(rows["input_ids"]) == sorted(tokenizer(CAPTIONS)["input_ids"])


def test_what_is_missing_is_named_or_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is encoded here: the error says to build before; with `skip`, a warning says how many are left out."""
    save_tokenizer(tmp_path / "text")
    with tokens(table(tmp_path)) as owner:
        with (
            owner.feed(batch_size=4, on_missing="encode") as feed,
            pytest.raises(precook.FeedError, match="precook build"),
        ):
            feed.as_hf_dataset()
        owner.build()
        with owner.feed(batch_size=4, on_missing="skip") as feed:
            (column,), order = feed.content.columns, feed.content.line_order
            assert order is not None
            flip(owner.store, precook.Key(column.keys[order.tolist().index(CAPTIONS.index("a cat"))].tobytes()))
            rows = feed.as_hf_dataset()
    assert len(rows) == len(CAPTIONS) - CAPTIONS.count("a cat")
    assert "2 of tokens are left out" in caplog.text


class TestWrongUse:
    """Trainers that are given the parts of a feed say what to write instead."""

    @pytest.fixture
    def feed(self, tmp_path: Path) -> Iterator[precook.Feed]:
        save_tokenizer(tmp_path / "text")
        with tokens(table(tmp_path)) as owner:
            owner.build()
            with owner.feed(batch_size=2) as feed:
                yield feed

    @pytest.mark.parametrize("loader", [False, True], ids=["dataset", "of a loader"])
    @pytest.mark.parametrize(
        "options", [{}, {"remove_unused_columns": False}, {"dataloader_num_workers": 1}], ids=["plain", "all", "worker"]
    )
    def test_a_trainer_of_single_samples_is_refused(
        self, feed: precook.Feed, tmp_path: Path, options: dict[str, Any], *, loader: bool
    ) -> None:
        """`Trainer(train_dataset=feed.dataset())` names the loader, whatever its collate function makes of a batch."""
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        arguments = {"output_dir": str(tmp_path), "report_to": "none", "use_cpu": True, "disable_tqdm": True, **options}
        trainer = transformers.Trainer(
            model=torch.nn.Linear(1, 1),
            args=transformers.TrainingArguments(**arguments),
            train_dataset=feed.loader().dataset if loader else feed.dataset(),
        )
        with pytest.raises(precook.FeedError, match="a feed gives whole batches") as caught:
            trainer.train()
        assert "get_train_dataloader" in str(caught.value)
        assert "feed.loader()" in str(caught.value)
