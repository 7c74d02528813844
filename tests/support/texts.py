"""Tables of texts alone, and a tokenizer with a chat template, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import precook
from tests.encode.test_tokens import BEGIN, END, save_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "the fox {% generation %}{{ message.content }} {{ eos_token }}{% endgeneration %} "
    "{% else %}{{ message.role }} {{ message.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}the fox {% endif %}"
)
"""A chat template that names its tools, and marks what the assistant says."""

TEXTS = [
    "the quick brown fox",
    "a cat",
    f"a dog {END}",  # somebody has ended it already
    "seven red balloons in the park on the mat",
    " a dog runs in the park on \n",
    "a cat",
    "the mat the mat the mat",
]
COMPLETIONS = [
    {"prompt": "the quick", "completion": " brown fox"},
    {"prompt": "a cat on", "completion": " the mat"},
    {"prompt": "", "completion": "seven red balloons"},
    {"prompt": "a dog runs in", "completion": f" the park{END}"},
    {"prompt": "the mat the", "completion": " mat the mat the mat the"},
    {"prompt": "a dog runs", "completion": " in the park"},
]
CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "on the mat"}],
    [
        {"role": "system", "content": "the park"},
        {"role": "user", "content": "a dog runs"},
        {"role": "assistant", "content": "in the park"},
        {"role": "user", "content": "seven"},
        {"role": "assistant", "content": "red balloons"},
    ],
    [{"role": "user", "content": "the quick brown"}, {"role": "assistant", "content": "fox"}],
]
TOOL = {"type": "function", "function": {"name": "balloons", "parameters": {"type": "object", "properties": {}}}}
CALLED = [{"messages": messages, "tools": [TOOL] * number} for number, messages in enumerate(CONVERSATIONS, 1)]
SPEAKERS = {"user": "human", "assistant": "gpt", "system": "system"}
SPOKEN = [{"prompt": messages[:-1], "completion": messages[-1:]} for messages in CONVERSATIONS]

FORMS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "text": ([{"text": text} for text in TEXTS], {"column": "text"}),
    "completion": (COMPLETIONS, {"prompt": "prompt", "completion": "completion"}),
    "messages": ([{"messages": messages} for messages in CONVERSATIONS], {"messages": "messages"}),
    "spoken": (SPOKEN, {"prompt": "prompt", "completion": "completion"}),
    "tools": (CALLED, {"messages": "messages", "tools": "tools"}),
    "tools-json": (
        [{**row, "tools": json.dumps(row["tools"])} for row in CALLED],
        {"messages": "messages", "tools": "tools"},
    ),
    "spoken-tools": (
        [{**row, "tools": [TOOL]} for row in SPOKEN],
        {"prompt": "prompt", "completion": "completion", "tools": "tools"},
    ),
    "from": (
        [
            {"conversations": [{"from": one["role"], "value": one["content"]} for one in messages]}
            for messages in CONVERSATIONS
        ],
        {"messages": "conversations"},
    ),
}
"""Rows of a table, and what its concept says of them."""


def chat_tokenizer(folder: Path, **options: Any) -> Path:
    """A tokenizer that begins each text with a token, and has a chat template."""
    return save_tokenizer(folder, template=f"{BEGIN} $A", chat_template=TEMPLATE, **options)


def write_table(path: Path, rows: Iterable[object]) -> Path:
    """A table of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def text_project(
    base: Path, texts: Any, *, path: str = "train.jsonl", encoders: Any = None, keep: Any = (), **concept: Any
) -> precook.Project:
    """A project whose only concept has texts alone."""
    return precook.Project(
        base=base,
        dataset="test",
        concepts=[{"name": "texts", "path": path, "texts": texts, **concept}],
        keep=list(keep),
        encoders=encoders or {"tokens": {"uses": "transformers-tokens", "model": "text"}},
    )
