"""Conversations and completions that a tokenizer cannot make something of: told by their row, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import precook
from tests.encode.test_tokens import BEGIN, save_tokenizer
from tests.support.texts import CONVERSATIONS, chat_tokenizer, text_project, write_table

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

COMPLETION = {"prompt": "prompt", "completion": "completion"}
MESSAGES = {"messages": "messages"}


def build(base: Path, texts: Any, **settings: Any) -> tuple[precook.BuildReport, list[Any]]:
    """What a build says, and the rows that came of it."""
    encoders = {"tokens": {"uses": "transformers-tokens", "model": "text", **settings}}
    with text_project(base, texts, encoders=encoders) as project:
        report = project.build()
        rows = []
        if sum(report.encoded.values()):
            with project.feed(batch_size=1, threads=0) as feed:
                rows = [{name: leaf[0].tolist() for name, leaf in batch["tokens"].items()} for batch in feed.epoch(0)]
    return report, rows


def test_a_completion_that_is_cut_off_as_a_whole(tmp_path: Path) -> None:
    """Nothing of it would count in the loss: it is told; what is left of others keeps its labels."""
    chat_tokenizer(tmp_path / "text")
    rows = [{"prompt": "the quick brown fox", "completion": " a cat"}, {"prompt": "a cat", "completion": " on the mat"}]
    write_table(tmp_path / "train.jsonl", rows)
    report, made = build(tmp_path, COMPLETION, max_length=5)
    (failure,) = report.failed
    assert str(failure.path).endswith("train.jsonl, row 1")
    assert "none of its first 5 tokens counts in the loss" in failure.reason
    assert report.truncated == {"tokens": 1}
    (row,) = made
    assert [label == -100 for label in row["labels"]] == [True, True, True, False, False]


def test_what_is_too_long_is_refused_where_nothing_is_cut(tmp_path: Path) -> None:
    """`truncation: false` holds for texts in parts, too."""
    chat_tokenizer(tmp_path / "text")
    rows = [{"prompt": "a", "completion": " cat"}, {"prompt": "a cat", "completion": " on the mat"}]
    write_table(tmp_path / "train.jsonl", rows)
    report, made = build(tmp_path, COMPLETION, max_length=5, truncation=False)
    (failure,) = report.failed
    assert "the text has 7 tokens, and max_length is 5" in failure.reason
    assert len(made) == 1


def test_a_template_that_refuses_a_conversation(tmp_path: Path) -> None:
    """What it says is the reason, and the row is named."""
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('users speak first') }}{% endif %}the fox"
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A", chat_template=template)
    write_table(tmp_path / "train.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    report, made = build(tmp_path, MESSAGES)
    (failure,) = report.failed
    assert str(failure.path).endswith("train.jsonl, row 2")
    assert "users speak first" in failure.reason
    assert len(made) == 2
    assert made[0]["labels"] == made[0]["input_ids"]


def test_a_template_that_does_not_mark_the_assistant(tmp_path: Path) -> None:
    """With labels of the assistant there is nothing to learn, and it is said what to mark."""
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A", chat_template=template)
    write_table(tmp_path / "train.jsonl", [{"messages": CONVERSATIONS[0]}])
    report, _ = build(tmp_path, MESSAGES, labels="assistant")
    (failure,) = report.failed
    assert "does not tell what the assistant says" in failure.reason


def test_a_tokenizer_without_an_end(tmp_path: Path) -> None:
    """It cannot end completions, and says so; with `eos: off` it need not."""
    chat_tokenizer(tmp_path / "text", eos_token=None)
    write_table(tmp_path / "train.jsonl", [{"prompt": "a", "completion": " cat"}])
    report, _ = build(tmp_path, COMPLETION)
    assert "has no end-of-sequence token" in report.failed[0].reason
    report, made = build(tmp_path, COMPLETION, eos="off")
    assert not report.failed
    assert len(made[0]["input_ids"]) == 3


def test_another_template_makes_other_entries(tmp_path: Path) -> None:
    """The content of the template is part of the key: nothing that an old one made is taken for a new one's."""
    chat_tokenizer(tmp_path / "text")
    write_table(tmp_path / "train.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    assert build(tmp_path, MESSAGES)[0].encoded == {"tokens": 3}
    assert build(tmp_path, MESSAGES)[0].encoded == {"tokens": 0}
    template = tmp_path / "text/chat_template.jinja"
    template.write_text(template.read_text() + "the end")
    assert build(tmp_path, MESSAGES)[0].encoded == {"tokens": 3}
