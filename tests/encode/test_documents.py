"""Conversations and completions that a tokenizer cannot make something of: told by their row, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import precook
from tests.encode.test_tokens import BEGIN, save_tokenizer
from tests.support.texts import CONVERSATIONS, TOOL, chat_tokenizer, text_project, write_table

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
    """With labels of the assistant there is nothing to learn: a plan says it once, and what to mark."""
    template = "{% for message in messages %}{{ message.content }} {% endfor %}{# {% generation #}"
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A", chat_template=template)
    write_table(tmp_path / "train.jsonl", [{"messages": CONVERSATIONS[0]}])
    with pytest.raises(precook.ConfigError) as caught:
        build(tmp_path, MESSAGES, labels="assistant")
    (problem,) = caught.value.problems
    assert problem.where == "encoders.tokens.labels"
    assert problem.message.endswith("text: the chat template does not tell what the assistant says")
    assert problem.hint == "mark it with {% generation %} and {% endgeneration %}, or write labels: all"
    assert build(tmp_path, MESSAGES)[0].encoded == {"tokens": 1}


def test_a_prompt_in_messages_without_marks_is_told_by_its_row(tmp_path: Path) -> None:
    """Whether a table of completions has messages is seen row by row."""
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A", chat_template=template)
    write_table(tmp_path / "train.jsonl", [{"prompt": CONVERSATIONS[0][:1], "completion": CONVERSATIONS[0][1:]}])
    report, _ = build(tmp_path, COMPLETION, labels="assistant")
    (failure,) = report.failed
    assert "does not tell what the assistant says" in failure.reason


@pytest.mark.parametrize(
    ("template", "flaw"),
    [
        ("{% for message in messages %}\n{{ message.content }}", "line 2: Unexpected end of template"),
        ("{% generation %}the fox", "line 1: Unexpected end of template"),
        ("the {{ fox", "line 1: unexpected end of template"),
        ("{% fox %}", "line 1: Encountered unknown tag 'fox'"),
    ],
)
@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_template_that_is_not_written_right(tmp_path: Path, template: str, flaw: str, place: str) -> None:
    """A plan says it once, with the line, and not a build for every row."""
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A", chat_template="{{ messages }}")
    if place.endswith(".jinja"):
        (tmp_path / "text" / place).write_text(template)
    else:
        (tmp_path / "text/chat_template.jinja").unlink(missing_ok=True)
        file = tmp_path / "text" / place
        file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    write_table(tmp_path / "train.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    with pytest.raises(precook.ConfigError) as caught:
        build(tmp_path, MESSAGES)
    (problem,) = caught.value.problems
    assert problem.where == "encoders.tokens.model"
    assert f"the chat template is not written right, {flaw}" in problem.message


def test_templates_as_transformers_takes_them(tmp_path: Path) -> None:
    """Marks, loop controls and what a template raises are no flaws; conversations with tools have their own."""
    default = "{% for message in messages %}{% if loop.index > 9 %}{% break %}{% endif %}the {% endfor %}"
    marked = "{% for message in messages %}{%- generation -%}the fox {%- endgeneration -%}{% endfor %}"
    save_tokenizer(tmp_path / "text", template=f"{BEGIN} $A", chat_template={"default": default, "tool_use": marked})
    rows = [{"messages": CONVERSATIONS[0], "tools": [TOOL]}]
    write_table(tmp_path / "train.jsonl", rows)
    assert build(tmp_path, {**MESSAGES, "tools": "tools"})[0].encoded == {"tokens": 1}
    with pytest.raises(precook.ConfigError, match="the chat template does not tell"):
        build(tmp_path, {**MESSAGES, "tools": "tools"}, labels="assistant")


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
