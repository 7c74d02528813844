"""Texts without pictures: what is a sample, what is left out and told, and what an edit costs."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest

import precook
from precook.config.texts import MessagesColumn, PassageSettings
from precook.sources import documents
from precook.sources.documents import DocumentRule
from precook.sources.passages import split_passages
from tests.support.projects import Watched, Words, missing, picture, reasons, text_folder
from tests.support.texts import text_project, write_table

COLUMN = {"column": "text"}


def words(encoder: Any = None) -> dict[str, Any]:
    return {"words": encoder or Watched()}


def made(base: Path, texts: Any, **concept: Any) -> list[str]:
    """What an encoder gets of the texts of a concept, in the order of their bytes."""
    encoder = Watched()
    with text_project(base, texts, encoders=words(encoder), **concept) as project:
        project.build()
        assert not project.plan().missing
    return sorted(item.text or "" for item in encoder.items)


class TestSources:
    """Where texts come from."""

    @pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.parquet"])
    def test_a_column_of_a_table(self, tmp_path: Path, name: str) -> None:
        """Each row is a text, as it is written: white space around it stays."""
        texts = ["a cat", "  two\nlines \n", "ä, \u2028 and all"]
        if name.endswith(".parquet"):
            arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
            pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"text": texts}), tmp_path / name)
        elif name.endswith(".csv"):
            quoted = "".join(f'"{text}"\r\n' for text in texts)
            (tmp_path / name).write_text(f"text\r\n{quoted}", "utf-8", newline="")
        else:
            write_table(tmp_path / name, [{"text": text, "other": 1} for text in texts])
        assert made(tmp_path, COLUMN, path=name) == sorted(texts)

    @pytest.mark.parametrize("name", ["train.csv", "train.parquet"])
    def test_conversations_of_any_table(self, tmp_path: Path, name: str) -> None:
        """In Parquet lists of objects, where null stands for what a message does not have; in a .csv, JSON."""
        messages = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": None, "tool_calls": ["x"]}]
        if name.endswith(".csv"):
            quoted = json.dumps(messages).replace('"', '""')
            (tmp_path / name).write_text(f'messages\n"{quoted}"\nno list\n')
        else:
            arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
            rows = [messages, [{"role": "nobody", "content": "x"}]]
            pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"messages": rows}), tmp_path / name)
        encoder = Watched(make=lambda item: 1)
        encoder.documents = True  # type: ignore[attr-defined]
        with text_project(tmp_path, {"messages": "messages"}, path=name, encoders=words(encoder)) as project:
            report = project.build()
        assert [failure.path for failure in report.failed] == [f"{name}, row 2"]
        (item,) = encoder.items
        assert item.document is not None
        assert item.document.parts == {"messages": messages}

    @pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.parquet"])
    def test_conversations_as_sharegpt_writes_them(self, tmp_path: Path, name: str) -> None:
        """They are what the same messages are with role and content: the same entries, whoever wrote the table."""
        call = {"name": "look_up", "arguments": {"word": "cat"}}
        spoken = [
            {"from": "system", "value": "be short"},
            {"from": "human", "value": "what is a cat?"},
            {"from": "function_call", "value": json.dumps(call)},
            {"from": "observation", "value": "an animal"},
            {"from": "gpt", "value": "an animal"},
        ]
        if name.endswith(".csv"):
            quoted = json.dumps(spoken).replace('"', '""')
            (tmp_path / name).write_text(f'conversations\n"{quoted}"\n')
        elif name.endswith(".parquet"):
            arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
            pytest.importorskip("pyarrow.parquet").write_table(
                arrow.table({"conversations": [spoken]}), tmp_path / name
            )
        else:
            write_table(tmp_path / name, [{"conversations": spoken}])
        encoder = Watched(make=lambda item: 1)
        encoder.documents = True  # type: ignore[attr-defined]
        with text_project(tmp_path, {"messages": "conversations"}, path=name, encoders=words(encoder)) as project:
            report = project.build()
            assert (report.encoded, report.failed) == ({"words": 1}, ())
            (item,) = encoder.items
            assert item.document is not None
            messages = [
                {"role": "system", "content": "be short"},
                {"role": "user", "content": "what is a cat?"},
                {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
                {"role": "tool", "content": "an animal"},
                {"role": "assistant", "content": "an animal"},
            ]
            assert item.document.parts == {"messages": messages}
        write_table(tmp_path / "roles.jsonl", [{"messages": messages}])
        with text_project(tmp_path, {"messages": "messages"}, path="roles.jsonl", encoders=words(encoder)) as project:
            assert not project.plan().missing

    @pytest.mark.parametrize(
        "tools",
        [[{"type": "function", "function": {"name": "x"}}], '[{"type": "function", "function": {"name": "x"}}]'],
    )
    def test_the_tools_of_a_conversation_are_part_of_it(self, tmp_path: Path, tools: Any) -> None:
        """As objects or as JSON; other tools are another text, and a row without them is what it was."""
        messages = [{"role": "user", "content": "a cat"}]
        rows = [{"messages": messages, "tools": tools}, {"messages": messages}, {"messages": messages, "tools": 3}]
        write_table(tmp_path / "train.jsonl", rows)
        encoder = Watched(make=lambda item: 1)
        encoder.documents = True  # type: ignore[attr-defined]
        columns = {"messages": "messages", "tools": "tools"}
        with text_project(tmp_path, columns, encoders=words(encoder)) as project:
            report = project.build()
            assert [(one.path, one.reason) for one in report.failed] == [
                ("train.jsonl, row 3", "a number in column 'tools': write a list of tools, each an object")
            ]
            found = [item.document.parts for item in encoder.items if item.document is not None]
        assert {"messages": messages, "tools": [{"type": "function", "function": {"name": "x"}}]} in found
        assert {"messages": messages} in found
        with text_project(tmp_path, {"messages": "messages"}, encoders=words(encoder)) as project:
            assert len(project.plan().missing) == 0

    def test_what_is_kept_can_be_read_again(self, tmp_path: Path) -> None:
        """With `keep`, batches of a snapshot have the texts and where they stood; without, neither."""
        write_table(tmp_path / "train.jsonl", [{"text": " a cat"}, {"text": "a dog"}])
        with text_project(tmp_path, COLUMN, encoders=words(), keep=["captions", "paths"]) as project:
            project.build()
            with project.store.snapshot("test").feed(batch_size=2) as feed:
                (batch,) = feed.epoch(0)
        found = dict(zip(batch["caption"], batch["path"], strict=True))
        assert {text: path.rpartition("/")[2] for text, path in found.items()} == {
            " a cat": "train.jsonl, row 1",
            "a dog": "train.jsonl, row 2",
        }

    def test_a_feed_encodes_what_is_missing(self, tmp_path: Path) -> None:
        """Texts in one piece and in passages are made when a batch needs them, and stored."""
        write_table(tmp_path / "train.jsonl", [{"text": "First one.\n\nSecond one."}, {"text": "Third."}])
        encoder = Watched()
        with text_project(tmp_path, COLUMN, encoders=words(encoder), passages={"size": 16}) as project:
            with project.feed(batch_size=2, on_missing="encode") as feed:
                assert sum(len(batch["sample"]) for batch in feed.epoch(0)) == 3
            assert not project.plan().missing
        assert sorted(item.text or "" for item in encoder.items) == ["First one.", "Second one.", "Third."]

    def test_files_of_a_folder(self, tmp_path: Path) -> None:
        """Each file is one text, whatever lines it has, in the encoding that the config names."""
        (tmp_path / "data/more").mkdir(parents=True)
        (tmp_path / "data/a.md").write_bytes("caf\u00e9\n\nand more\n".encode("cp1252"))
        (tmp_path / "data/more/b.MD").write_bytes(b"another")
        (tmp_path / "data/c.txt").write_bytes(b"of another extension")
        options = {"path": "data", "caption_extension": ".md", "caption_encoding": "cp1252"}
        assert made(tmp_path, "files", **options) == ["another", "caf\u00e9\n\nand more\n"]

    @pytest.mark.usefixtures("settled")
    def test_unchanged_files_are_not_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A plan knows files by their stamps, with all their passages; only the one that changed is opened."""
        for number in range(3):
            (tmp_path / "data").mkdir(exist_ok=True)
            (tmp_path / f"data/{number}.txt").write_text(f"First {number}.\n\nSecond {number}.\n\nThird.")
        with text_project(tmp_path, "files", path="data", encoders=words(), passages={"size": 16}) as project:
            assert project.build().encoded == {"words": 7}
            read: list[bytes] = []
            real = DocumentRule.read
            monkeypatch.setattr(DocumentRule, "read", lambda rule, content: read.append(content) or real(rule, content))
            assert len(project.plan().ready) == 7
            (tmp_path / "data/0.txt").write_text("changed")
            assert len(project.plan().missing) == 1
        assert read == [b"changed"]

    def test_the_same_text_is_encoded_once_wherever_it_stands(self, tmp_path: Path) -> None:
        """As a caption, in two rows and in a file: one entry; a sample of its own for each of them."""
        write_table(tmp_path / "train.jsonl", [{"text": "a cat"}, {"text": "a cat"}])
        (tmp_path / "data").mkdir()
        (tmp_path / "data/one.txt").write_text("a cat")
        picture(tmp_path / "pictures/p.png", 1)
        (tmp_path / "pictures/p.txt").write_text("a cat\n")
        encoder = Watched()
        concepts = [
            {"name": "table", "path": "train.jsonl", "texts": COLUMN},
            {"name": "folder", "path": "data", "texts": "files"},
            {"name": "pictures", "path": "pictures"},
        ]
        with precook.Project(base=tmp_path, dataset="test", concepts=concepts, encoders=words(encoder)) as project:
            assert project.build().encoded == {"words": 2}
            assert sorted(item.text or "" for item in encoder.items) == ["", "a cat"]  # the empty prompt, of captions
            with project.feed(batch_size=8) as feed:
                (batch,) = feed.epoch(0)
        assert len(set(batch["sample"])) == 4
        assert sorted(batch["concept"]) == ["folder", "pictures", "table", "table"]


class TestBadInput:
    """What cannot be a text is told by its row or file, and the others go on."""

    def test_rows_that_hold_no_text(self, tmp_path: Path) -> None:
        """Null, nothing, empty, of another kind, no object, broken: each is named with the table and the row."""
        rows = [
            {"text": "good"},
            {"text": None},
            {"other": "x"},
            {"text": " \n"},
            {"text": 7},
            "no object",
            {"text": "a\0b"},
        ]
        table = write_table(tmp_path / "train.jsonl", rows)
        table.write_text(table.read_text() + "{broken\n" + json.dumps({"text": "also good"}) + "\n")
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            report = project.build()
            assert report.encoded == {"words": 2}
            told = {failure.path: failure.reason for failure in report.failed}
            assert list(told) == [f"train.jsonl, row {row}" for row in range(2, 9)]
            assert "no text in column 'text'" in told["train.jsonl, row 2"]
            assert "no text in column 'text'" in told["train.jsonl, row 3"]
            assert "an empty text" in told["train.jsonl, row 4"]
            assert "a number in column 'text'" in told["train.jsonl, row 5"]
            assert "not an object" in told["train.jsonl, row 6"]
            assert "a NUL character" in told["train.jsonl, row 7"]
            assert "broken JSON" in told["train.jsonl, row 8"]
            assert "train.jsonl, row 4: an empty text" in str(project.plan())

    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ([{"role": "narrator", "content": "x"}], "message 1 in column 'messages' has the role 'narrator'"),
            ([{"role": "user", "content": "x"}, {"content": "x"}], "message 2 in column 'messages' has no role"),
            (
                [{"from": "narrator", "value": "x"}],
                "message 1 in column 'messages' is from 'narrator', who is not known",
            ),
            ([{"from": 1, "value": "x"}], "is from a number: write one of system, human"),
            ([{"from": "human"}], "has no content"),
            ([{"from": "human", "content": "x"}], "has from and content"),
            ([{"from": "function_call", "value": "look it up"}], "calls no function: write JSON with name"),
            ([{"from": "function_call", "value": '{"name": "x"}'}], "calls no function: write JSON with name"),
            ([{"role": "user"}], "has no content"),
            ([{"role": "user", "content": 3}], "has a number for its content"),
            ([{"role": "user", "content": [{"type": "image"}]}], "content that is no text"),
            (["hello"], "message 1 in column 'messages' is text"),
            ([], "an empty list"),
            ({}, "an object in column 'messages'"),
            ("hello", "write a list of messages"),
            (None, "no messages in column 'messages'"),
        ],
    )
    def test_conversations_that_are_none(self, tmp_path: Path, messages: Any, reason: str) -> None:
        """The row is named, and what is wrong with which message."""
        good = {"messages": [{"role": "user", "content": "a cat"}]}
        write_table(tmp_path / "train.jsonl", [good, {"messages": messages}])
        encoder = Watched(make=lambda item: 1)
        encoder.documents = True  # type: ignore[attr-defined]
        with text_project(tmp_path, {"messages": "messages"}, encoders=words(encoder)) as project:
            (failure,) = project.plan().failed
            assert failure.path == "train.jsonl, row 2"
            assert reason in failure.reason
            assert project.build().encoded == {"words": 1}
        (item,) = encoder.items
        assert item.text is None
        assert item.document is not None
        assert item.document.parts == good

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ({"prompt": "x", "completion": None}, "no text in column 'completion'"),
            ({"prompt": None, "completion": "x"}, "in column 'prompt'"),
            ({"prompt": "x", "completion": ""}, "an empty text in column 'completion'"),
            (
                {"prompt": [{"role": "user", "content": "x"}], "completion": "x"},
                "a list in column 'prompt' and text in",
            ),
        ],
    )
    def test_completions_that_are_none(self, tmp_path: Path, row: Any, reason: str) -> None:
        """A completion follows a prompt of its own kind."""
        write_table(tmp_path / "train.jsonl", [{"prompt": "", "completion": "x"}, row])
        encoder = Watched(make=lambda item: 1)
        encoder.documents = True  # type: ignore[attr-defined]
        texts = {"prompt": "prompt", "completion": "completion"}
        with text_project(tmp_path, texts, encoders=words(encoder)) as project:
            (failure,) = project.plan().failed
            assert failure.path == "train.jsonl, row 2"
            assert reason in failure.reason
            assert len(project.plan().missing) == 1

    def test_files_that_hold_no_text(self, tmp_path: Path) -> None:
        """An empty file, one of another encoding and a folder of that name are named."""
        (tmp_path / "data/folder.txt").mkdir(parents=True)
        for name, content in (("empty.txt", b" \n"), ("latin.txt", b"caf\xe9"), ("good.txt", b"a cat")):
            (tmp_path / "data" / name).write_bytes(content)
        (tmp_path / "data/link.txt").symlink_to("/etc/hostname")
        with text_project(tmp_path, "files", path="data", encoders=words()) as project:
            for _ in range(2):  # the second time from memory
                told = {failure.path: failure.reason for failure in project.plan().failed}
                assert sorted(told, key=str) == ["empty.txt", "latin.txt", "link.txt"]
                assert "empty" in told["empty.txt"]
                assert "is not UTF-8" in told["latin.txt"]
            assert len(project.plan().missing) == 1

    def test_a_column_that_is_not_there(self, tmp_path: Path) -> None:
        """The table is refused, with the columns that it has."""
        write_table(tmp_path / "train.jsonl", [{"Text": "a cat"}])
        with (
            text_project(tmp_path, COLUMN, encoders=words()) as project,
            pytest.raises(precook.SourceError, match="no column 'text' among its columns 'Text'"),
        ):
            project.plan()

    @pytest.mark.parametrize("encoder", [{"uses": "image"}, {"uses": "mask"}, Watched("image")])
    def test_an_encoder_of_pictures_is_refused(self, tmp_path: Path, encoder: Any) -> None:
        """It would have nothing to take; the sentence names the encoder and the concept."""
        write_table(tmp_path / "train.jsonl", [{"text": "a cat"}])
        with (
            text_project(tmp_path, COLUMN, encoders={"pixels": encoder}) as project,
            pytest.raises(
                precook.ConfigError, match="it takes pictures, and the concept texts has texts alone"
            ) as told,
        ):
            project.plan()
        assert "encoders.pixels" in str(told.value)

    def test_messages_that_are_nested_too_deeply(self, tmp_path: Path) -> None:
        """In a cell of a .csv as well, the row is told, and the others go on."""
        good = json.dumps([{"role": "user", "content": "a cat"}]).replace('"', '""')
        (tmp_path / "train.csv").write_text(f'messages\n"{good}"\n"{"[" * 100_000}"\n')
        encoder = Watched(make=lambda item: 1)
        encoder.documents = True  # type: ignore[attr-defined]
        with text_project(tmp_path, {"messages": "messages"}, path="train.csv", encoders=words(encoder)) as project:
            (failure,) = project.plan().failed
            assert failure.path == "train.csv, row 2"
            assert len(project.plan().missing) == 1

    def test_an_encoder_that_knows_no_messages_is_refused(self, tmp_path: Path) -> None:
        """A class that only takes texts is not given something else."""
        write_table(tmp_path / "train.jsonl", [{"messages": [{"role": "user", "content": "x"}]}])
        with (
            text_project(tmp_path, {"messages": "messages"}, encoders=words(Words())) as project,
            pytest.raises(
                precook.ConfigError, match="takes texts in one piece, and the concept texts has conversations"
            ),
        ):
            project.plan()

    def test_texts_that_go_into_no_batch_together(self, tmp_path: Path) -> None:
        """Completions have labels and other texts have none: what to write is said before anything is encoded."""
        write_table(tmp_path / "train.jsonl", [{"text": "a cat", "prompt": "a", "completion": "cat"}])
        text_folder(tmp_path / "text")
        concepts = [
            {"name": "texts", "path": "train.jsonl", "texts": COLUMN},
            {"name": "completions", "path": "train.jsonl", "texts": {"prompt": "prompt", "completion": "completion"}},
        ]
        for labels, refused in (("auto", True), ("completion", False)):
            encoders = {"tokens": {"uses": "transformers-tokens", "model": "text", "labels": labels}}
            with precook.Project(base=tmp_path, dataset="test", concepts=concepts, encoders=encoders) as project:
                if refused:
                    with pytest.raises(precook.ConfigError, match="set labels: completion"):
                        project.plan()
                else:
                    assert len(project.plan().missing) == 2

    def test_a_tokenizer_without_a_template_is_refused(self, tmp_path: Path) -> None:
        """Where there are conversations, before any of them is encoded."""
        write_table(tmp_path / "train.jsonl", [{"messages": [{"role": "user", "content": "x"}]}])
        text_folder(tmp_path / "text")
        with (
            text_project(tmp_path, {"messages": "messages"}) as project,
            pytest.raises(precook.ConfigError, match="the tokenizer has no chat template"),
        ):
            project.plan()

    @pytest.mark.parametrize(
        ("concept", "message"),
        [
            ({"texts": "files", "path": "a.jsonl"}, "files lie in a folder, and path is a table"),
            ({"texts": {"column": "text"}, "path": "a"}, "a column needs a table, and path is a folder"),
            ({"texts": {"column": ""}, "path": "a.csv"}, "must not be empty"),
            ({"texts": "file"}, "must be files, {column: text}"),
            ({"texts": {"messages": "m"}, "path": "a.csv", "passages": {}}, "only texts are split"),
            ({"passages": {"size": 100}}, "this concept has pictures"),
            ({"texts": "files", "captions": "filename"}, "is for pictures, and this concept has texts alone"),
            ({"texts": "files", "prefix": "a photo of "}, "is for pictures, and this concept has texts alone"),
            ({"texts": "files", "image": {"flip": "none"}}, "is for pictures, and this concept has texts alone"),
            ({"texts": "files", "passages": {"size": 100, "overlap": 60}}, "60 is more than half of size, 100"),
            ({"texts": "files", "passages": {"by": "pages"}}, "must be paragraphs, headings or characters"),
            ({"texts": "files", "passages": {"length": 3}}, "fields here: by, size, overlap"),
        ],
    )
    def test_a_config_that_makes_no_sense(self, tmp_path: Path, concept: dict[str, Any], message: str) -> None:
        """Each is refused with what to write."""
        with pytest.raises(precook.ConfigError) as told:
            text_project(tmp_path, **{"texts": None, "path": "data", **concept}, encoders=words())  # type: ignore[arg-type]
        assert message in str(told.value)


class TestPassages:
    """Long texts are split, and each passage is a sample and an entry of its own."""

    TEXT = "One one one.\n\nTwo two two.\n\nThree three.\n\nFour."

    def test_each_is_a_sample_that_is_shown(self, tmp_path: Path) -> None:
        """All of them in every epoch, in rows of a table as in files."""
        write_table(tmp_path / "train.jsonl", [{"text": self.TEXT}, {"text": "Short."}])
        (tmp_path / "data").mkdir()
        (tmp_path / "data/long.txt").write_text(self.TEXT)
        passages = ["One one one.\n\nTwo two two.", "Three three.\n\nFour."]
        options: dict[str, Any] = {"passages": {"size": 30}}
        assert made(tmp_path, "files", path="data", **options) == passages
        encoder = Watched()
        with text_project(tmp_path, COLUMN, encoders=words(encoder), **options) as project:
            project.build()
            with project.feed(batch_size=8) as feed:
                assert [len(set(batch["sample"])) for epoch in range(2) for batch in feed.epoch(epoch)] == [3, 3]

    def test_an_edit_costs_what_it_changes(self, tmp_path: Path) -> None:
        """With passages by paragraph, a changed word encodes one passage, and explain says which."""
        (tmp_path / "data").mkdir()
        file = tmp_path / "data/long.txt"
        file.write_text(self.TEXT)
        with text_project(tmp_path, "files", path="data", encoders=words(), passages={"size": 16}) as project:
            assert project.build().encoded == {"words": 4}
            file.write_text(self.TEXT.replace("Three", "Drei"))
            plan = project.plan()
            (entry,) = plan.missing
            assert entry.path is not None
            assert entry.path.endswith("long.txt, passage 3")
            assert reasons(plan) == {("words", "content changed"): 1}
            assert len(plan.explain(file).samples) == 4
            assert "text 'Drei three.': missing" in str(plan.explain(entry.path))

    @pytest.mark.parametrize("by", ["paragraphs", "headings"])
    def test_lines_end_as_they_do_on_any_system(self, by: Any) -> None:
        """The two characters that end a line on Windows are no blank line."""
        text = "P1 first line\nP1 second line\n\nP2 first line\nP2 second line"
        settings = PassageSettings(by=by, size=50)
        passages = list(split_passages(text, settings))
        assert passages == text.split("\n\n")
        for end in ("\r\n", "\r"):
            assert list(split_passages(text.replace("\n", end), settings)) == [
                passage.replace("\n", end) for passage in passages
            ]

    def test_a_file_of_more_passages_than_a_dataset_can_want_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Split into pieces of a word each, a large file would fill memory; the others go on."""
        monkeypatch.setattr(documents, "MAX_PASSAGES", 3)
        (tmp_path / "data").mkdir()
        (tmp_path / "data/long.txt").write_text(self.TEXT)
        (tmp_path / "data/short.txt").write_text("Short.")
        with text_project(tmp_path, "files", path="data", encoders=words(), passages={"size": 16}) as project:
            plan = project.plan()
            assert [(failure.path, failure.reason) for failure in plan.failed] == [
                ("long.txt", "more than 3 passages: raise the size of passages, or split the file")
            ]
            assert plan.build().encoded == {"words": 1}

    def test_texts_of_which_none_can_be_used_want_nothing(self, tmp_path: Path) -> None:
        """Not even the empty prompt, which no dataset of texts alone has."""
        write_table(tmp_path / "train.jsonl", [{"text": None}])
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            plan = project.plan()
            assert (len(plan.missing), len(plan.failed)) == (0, 1)

    def test_an_empty_folder_of_texts_has_no_texts(self, tmp_path: Path) -> None:
        """And is not said to have no pictures."""
        (tmp_path / "data").mkdir()
        with (
            text_project(tmp_path, "files", path="data", encoders=words()) as project,
            pytest.raises(precook.IncompleteError, match="no texts in"),
        ):
            project.build()

    def test_a_text_is_read_once_for_all_its_passages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A snapshot that keeps them, and an explanation: to read it anew for each takes hours."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data/a.txt").write_text("\n\n".join(f"Paragraph {number}." for number in range(50)))
        options: Any = {
            "base": tmp_path,
            "dataset": "test",
            "concepts": [{"name": "texts", "path": "data", "texts": "files", "passages": {"size": 16}}],
            "encoders": words(),
            "keep": ["captions"],
        }
        with precook.Project(**options) as project:
            read: list[bytes] = []
            real = DocumentRule.read
            monkeypatch.setattr(DocumentRule, "read", lambda rule, content: read.append(content) or real(rule, content))
            assert project.build().encoded == {"words": 50}
            assert len(read) < 10
            with project.store.snapshot("test").feed(batch_size=1) as feed:
                kept = {batch["caption"][0]: bytes(batch["words"][0].tolist()).decode() for batch in feed.epoch(0)}
            assert kept == {f"Paragraph {number}.": f"Paragraph {number}." for number in range(50)}
            plan, before = project.plan(), len(read)
            assert "Paragraph 49" in str(plan.explain(tmp_path / "data/a.txt"))
            assert len(read) == before + 1


class TestTables:
    """What changes in a table costs the rows that changed."""

    def test_numbers_among_the_messages_of_a_parquet_table_are_named(self, tmp_path: Path) -> None:
        """As JSON lines the same conversations are read."""
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        rows = [{"messages": [{"role": "user", "content": "a", "weight": 1}]}]
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
        with pytest.raises(
            precook.SourceError, match=r"'messages\.list\.element\.weight' holds INT64, not text"
        ) as told:
            documents.read_documents(tmp_path / "train.parquet", MessagesColumn(messages="messages"))
        assert told.value.hint == "leave it out, or write the table as .jsonl"
        write_table(tmp_path / "train.jsonl", rows)
        assert len(documents.read_documents(tmp_path / "train.jsonl", MessagesColumn(messages="messages")).texts) == 1

    @pytest.mark.parametrize(
        ("row", "form"),
        [
            ({"messages": []}, "texts: {messages: messages}"),
            ({"prompt": "", "completion": ""}, "texts: {prompt: prompt, completion: completion}"),
            ({"text": "a"}, "texts: {column: text}"),
            ({"img": "a.png", "text": "a"}, None),
        ],
    )
    def test_a_table_whose_texts_were_forgotten_in_the_config(
        self, tmp_path: Path, row: dict[str, object], form: str | None
    ) -> None:
        """The hint is what to write; where a column looks like one of pictures, it is about that one."""
        write_table(tmp_path / "train.jsonl", [row])
        with text_project(tmp_path, None, encoders=words()) as project:
            with pytest.raises(precook.SourceError, match="no column 'image'") as told:
                project.plan()
            assert (form or "the nearest is 'img'") in (told.value.hint or "")
            assert ("texts:" in (told.value.hint or "")) == (form is not None)

    def test_rows_that_are_left_out_are_told_in_the_order_of_the_table(self, tmp_path: Path) -> None:
        """The first ten are rows 1 to 10, and not those whose numbers begin with a 1."""
        write_table(tmp_path / "train.jsonl", [{"text": number} for number in range(25)])
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            told = re.findall(r"train\.jsonl, row (\d+):", str(project.plan()))
        assert told == [str(number) for number in range(1, 11)]

    def test_an_inserted_row_is_new_and_nothing_else(self, tmp_path: Path) -> None:
        """Rows behind it are the same texts in other places."""
        rows = [{"text": f"text {number}"} for number in range(4)]
        write_table(tmp_path / "train.jsonl", rows)
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            project.build()
            write_table(tmp_path / "train.jsonl", [{"text": "first"}, *rows])
            assert reasons(project.plan()) == {("words", "new"): 1}
            rows[2] = {"text": "changed"}
            write_table(tmp_path / "train.jsonl", rows)
            plan = project.plan()
            assert reasons(plan) == {("words", "content changed"): 1}
            assert "train.jsonl, row 3" in str(plan.explain(tmp_path / "train.jsonl"))

    def test_a_snapshot_trains_without_the_table(self, tmp_path: Path) -> None:
        """Same batches of a project and of its snapshot."""
        write_table(tmp_path / "train.jsonl", [{"text": f"text {number}"} for number in range(5)])
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            project.build()
            with project.feed(batch_size=2) as feed:
                before = [batch["sample"] for batch in feed.epoch(0)]
            (tmp_path / "train.jsonl").unlink()
            with project.store.snapshot("test").feed(batch_size=2) as feed:
                assert [batch["sample"] for batch in feed.epoch(0)] == before
                assert "size" not in next(iter(feed.epoch(0)))

    def test_a_table_that_grows_during_a_build(self, tmp_path: Path) -> None:
        """Rows that came meanwhile are encoded, too, before the dataset is frozen."""
        write_table(tmp_path / "train.jsonl", [{"text": "before"}])
        later = [{"text": "before"}, {"text": "after"}]
        encoder = Watched(on_batch=lambda _: write_table(tmp_path / "train.jsonl", later))
        with text_project(tmp_path, COLUMN, encoders=words(encoder)) as project:
            assert project.build().encoded == {"words": 2}
            assert sorted(item.text or "" for item in encoder.items) == ["after", "before"]
            assert not project.plan().missing


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that are opened, each time that one is."""
    tables: list[str] = []
    read = documents.read_content
    monkeypatch.setattr(
        documents, "read_content", lambda path, columns: tables.append(path.name) or read(path, columns)
    )
    return tables


@pytest.mark.usefixtures("settled")
class TestRememberedTables:
    """A table whose stamp is known is not opened."""

    ROWS: ClassVar[list[dict[str, Any]]] = [{"text": f"Text {number}.\n\nMore of it."} for number in range(5)]

    @pytest.mark.parametrize("passages", [None, {"by": "paragraphs", "size": 16}])
    def test_a_warm_plan_opens_no_table(self, tmp_path: Path, opened: list[str], passages: Any) -> None:
        """It says what the first one said: samples, keys, bad rows and places; what is needed is read then."""
        rows = [*self.ROWS[:2], {"text": 3}, {}, *self.ROWS[2:]]
        write_table(tmp_path / "train.jsonl", rows)
        with text_project(tmp_path, COLUMN, encoders=words(), passages=passages) as project:
            cold = project.plan()
            assert opened == ["train.jsonl"]
            assert len(cold.failed) == 2
            # But for the last line, which has the free space on the disk.
            told = str(cold).rpartition("\n")[0]
        first = Watched()
        with text_project(tmp_path, COLUMN, encoders=words(first), passages=passages) as project:
            warm = project.plan()
            assert str(warm).rpartition("\n")[0] == told
            assert warm.failed == cold.failed
            assert [entry.key for entry in warm.missing] == [entry.key for entry in cold.missing]
            assert warm.samples.by_concept[0].same_as(cold.samples.by_concept[0])
            assert opened == ["train.jsonl"]
            assert "Text 2." in str(warm.explain(tmp_path / "train.jsonl, row 5"))
            assert opened == ["train.jsonl"] * 2
            project.build()
        found = "".join(item.text or "" for item in first.items)
        assert all(f"Text {number}." in found for number in range(5))

    def test_a_table_that_changes_is_read_and_what_it_was_is_forgotten(self, tmp_path: Path, opened: list[str]) -> None:
        """By its stamp; what is remembered of it does not grow with every edit."""
        write_table(tmp_path / "train.jsonl", self.ROWS)
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            project.build()
            for number in range(3):
                write_table(tmp_path / "train.jsonl", [*self.ROWS, {"text": f"edit {number}"}])
                before = len(opened)
                assert missing(project.plan()) == {"words": 1}
                assert len(opened) == before + 1
                assert missing(project.plan()) == {"words": 1}
                assert len(opened) == before + 1
        with contextlib.closing(sqlite3.connect(tmp_path / "cache/index.sqlite")) as index:
            rows = index.execute("SELECT sum(length(keys)) FROM memory WHERE kind LIKE 'rows of a table/%'").fetchone()
            notes = index.execute("SELECT count(*) FROM note WHERE kind LIKE 'tables of texts/%'").fetchone()
        assert (rows, notes) == ((6 * 40,), (1,))

    def test_a_table_that_changes_after_a_warm_plan_is_not_encoded_by_it(self, tmp_path: Path) -> None:
        """The texts are read when they are needed, and compared with what was planned."""
        write_table(tmp_path / "train.jsonl", self.ROWS)
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            project.plan()
        encoder = Watched()
        with text_project(tmp_path, COLUMN, encoders=words(encoder)) as project:
            plan = project.plan()
            write_table(tmp_path / "train.jsonl", [{"text": "another"}])
            plan.build()
            assert {item.text for item in encoder.items} <= {"another"}

    def test_what_memory_has_lost_is_read_again(self, tmp_path: Path, opened: list[str]) -> None:
        """Rows without their note, and a note without its rows."""
        write_table(tmp_path / "train.jsonl", self.ROWS)
        with text_project(tmp_path, COLUMN, encoders=words()) as project:
            expected = [entry.key for entry in project.plan().missing]
        kinds = {"memory": "rows of a table/%", "note": "tables of texts/%"}
        for table, kind in kinds.items():
            with contextlib.closing(sqlite3.connect(tmp_path / "cache/index.sqlite")) as index, index:
                assert index.execute(f"DELETE FROM {table} WHERE kind LIKE ?", (kind,)).rowcount
            before = len(opened)
            with text_project(tmp_path, COLUMN, encoders=words()) as project:
                assert [entry.key for entry in project.plan().missing] == expected
            assert len(opened) == before + 1


@pytest.mark.parametrize("path", ["nowhere/train.jsonl", "train.jsonl", "folder.jsonl"])
def test_a_table_that_is_not_there_is_told(tmp_path: Path, path: str) -> None:
    """Nor its folder, or a folder in its place: by name, and as it was told before anything was remembered."""
    (tmp_path / "folder.jsonl").mkdir()
    with text_project(tmp_path, COLUMN, path=path, encoders=words()) as project, pytest.raises(precook.SourceError):
        project.plan()


def test_a_table_that_was_just_written_is_read_again(tmp_path: Path, opened: list[str]) -> None:
    """It may be edited within the same tick of the clock, and would look the same."""
    write_table(tmp_path / "train.jsonl", [{"text": "a"}])
    with text_project(tmp_path, COLUMN, encoders=words()) as project:
        for _ in range(2):
            project.plan()
    assert len(opened) == 2
