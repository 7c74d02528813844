"""Tables of texts: any bytes are texts, conversations or completions, or refused by a `SourceError`.

The first byte of an input says which format it is, as for tables of pictures.
"""

from __future__ import annotations

import io
import json

from precook.config.texts import CompletionColumns, MessagesColumn, PassageSettings, TextColumn
from precook.errors import SourceError
from precook.sources.documents import ROLES, Document, read_documents, split_text, text_digest
from tests.fuzz.frame import Target
from tests.fuzz.fuzz_table import SUFFIXES, folder, mutate

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:  # the other formats need nothing
    pa = None

MESSAGES = [
    {"role": "user", "content": "a cat?", "name": None},
    {"role": "assistant", "content": [{"type": "text", "text": "é\u2028"}], "name": "cat"},
]
SPOKEN = [
    {"from": "human", "value": "a cat?"},
    {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "é"}}'},
    {"from": "observation", "value": "a cat"},
    {"from": "gpt", "value": "yes"},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
ROWS = [
    {"text": "a cat\n\n# on a mat", "messages": MESSAGES[:1], "prompt": "a", "completion": " cat"},
    {"text": None, "messages": [], "prompt": "", "completion": ""},
    {"text": " \n", "messages": [{"role": "narrator", "content": "x"}], "prompt": "é", "completion": None},
]
SOURCES = (
    TextColumn(column="text"),
    MessagesColumn(messages="messages"),
    MessagesColumn(messages="messages", tools="tools"),
    CompletionColumns(prompt="prompt", completion="completion"),
    CompletionColumns(prompt="messages", completion="messages"),
)


def check(data: bytes) -> bool:
    """Read a table in every way, and split what it holds."""
    path = folder() / f"texts{SUFFIXES.get(data[:1], '.jsonl')}"
    path.write_bytes(data[1:])
    read = False
    for source in SOURCES:
        try:
            table = read_documents(path, source)
        except SourceError as error:
            assert error.hint
            continue
        read = True
        assert len(table.numbers) == len(table.texts)
        assert all(problem.reason and problem.number > 0 for problem in table.problems)
        for text in table.texts[:100]:
            assert len(text_digest(text)) == 32
            if isinstance(text, Document):
                for name, part in text.parts.items():
                    if name == "tools":
                        assert all(isinstance(tool, dict) for tool in part)
                    else:
                        assert isinstance(part, str) or all(message["role"] in ROLES for message in part)
            else:
                passages = split_text(text, PassageSettings(by="headings", size=16, overlap=4))
                assert text.strip()
                assert passages
                assert all(0 < len(passage) <= 16 and passage in text for passage in passages)
    return read


def seeds() -> list[bytes]:
    """The same rows in each format."""
    found = [b"j" + "\n".join(map(json.dumps, ROWS)).encode()]
    found.append(b"j" + "\n".join(json.dumps({**row, "messages": MESSAGES}) for row in ROWS).encode())
    tools = [TOOLS, json.dumps(TOOLS), None]
    spoken = [{**row, "messages": SPOKEN, "tools": one} for row, one in zip(ROWS, tools, strict=True)]
    found.append(b"j" + "\n".join(map(json.dumps, spoken)).encode())
    cells = [['"{}"'.format(json.dumps(value).replace('"', '""')) for value in row.values()] for row in ROWS]
    found.append(b"c" + "\r\n".join(",".join(line) for line in [[*ROWS[0]], *cells]).encode())
    if pa is not None:
        # Arrow has one type for a column: what JSON may write as a list of parts is a text here.
        plain = [{**message, "content": str(message["content"])} for message in MESSAGES]
        for messages in (plain[:1], plain):
            for compression in ("none", "gzip"):
                file = io.BytesIO()
                table = pa.Table.from_pylist([{**row, "messages": messages} for row in ROWS])
                parquet.write_table(table, file, compression=compression)
                found.append(b"p" + file.getvalue())
    return found


WORDS = (
    "text",
    "messages",
    "prompt",
    "completion",
    "role",
    "content",
    "tool_calls",
    "system",
    "from",
    "value",
    "function_call",
    "tools",
)
TARGET = Target("documents", seeds, check, mutate, WORDS)
