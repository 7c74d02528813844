"""`precook init` on folders as other tools make them: repeats in names, tables of the hub, other caption files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precook.config.check import read_config
from precook.config.concept import Concept
from tests.support.commands import run
from tests.support.projects import picture


def concepts(here: Path) -> dict[str, Concept]:
    """The concepts of the config that was written."""
    return {concept.name: concept for concept in read_config(here / "precook.yaml")[0].concepts}


def planned(samples: int) -> dict[str, Any]:
    """What a plan of the new config says, which has to take every picture."""
    document = run("plan", "--json").document
    assert (document["samples"], document["left_out"]) == (samples, 0)
    return document


class TestKohyaFolders:
    """`10_name`: ten repeats of name."""

    def test_the_names_of_folders_say_repeats_and_captions(self, here: Path) -> None:
        """Each folder is a concept with its repeats; without caption files its name is the caption, as is told."""
        picture(here / "data/10_sks dog/1.png", 1)
        picture(here / "data/2_dog/2.png", 2)
        (here / "data/2_dog/2.txt").write_text("a dog\n")
        ended = run("init", "data")
        assert ended.code == 0, ended.err
        found = concepts(here)
        assert {name: (one.path, one.repeats) for name, one in found.items()} == {
            "sks dog": ("data/10_sks dog", 10.0),
            "dog": ("data/2_dog", 2.0),
        }
        assert found["sks dog"].captions.model_dump() == {"text": "sks dog"}
        assert found["dog"].captions.model_dump() == "sidecar"
        assert 'sks dog: 1 picture, captions {text: "sks dog"}' in ended.out
        assert "repeats 10, as the name of the folder says to kohya's trainers" in ended.out
        planned(2)

    def test_one_such_folder_alone_counts_too(self, here: Path) -> None:
        """Whether it is named itself, or lies in the folder that is."""
        picture(here / "data/10_cat/1.png", 1)
        for folder in ("data", "data/10_cat"):
            assert run("init", folder, "--force").code == 0
            assert {name: one.repeats for name, one in concepts(here).items()} == {"cat": 10.0}

    def test_equal_names_stay_apart(self, here: Path) -> None:
        """Two folders of one name with other repeats keep their whole names."""
        for number, folder in enumerate(("10_cat", "5_cat")):
            picture(here / "data" / folder / "1.png", number)
        assert run("init", "data").code == 0
        assert {name: one.repeats for name, one in concepts(here).items()} == {"10_cat": 10.0, "5_cat": 5.0}

    @pytest.mark.parametrize("name", ["2024_holidays", "01_first", "0_none", "10", "_x", "ten_cats"])
    def test_other_numbers_are_names(self, here: Path, name: str) -> None:
        """Years and places in an order are no repeats."""
        picture(here / "data" / name / "1.png", 1)
        picture(here / "data/other/2.png", 2)
        assert run("init", "data").code == 0
        assert concepts(here)[name].repeats == 1.0


class TestMetadata:
    """Tables that datasets of the hub have beside their pictures."""

    @pytest.mark.parametrize("suffix", ["jsonl", "csv"])
    def test_the_table_is_the_concept(self, here: Path, suffix: str) -> None:
        """Its pictures and captions are found, in folders below it, too."""
        rows = [("one.png", "a cat"), ("more/two.png", "a dog, asleep")]
        for number, (name, _) in enumerate(rows):
            picture(here / "data" / name, number)
        lines = [json.dumps({"file_name": name, "width": 3, "text": text}) for name, text in rows]
        if suffix == "csv":
            lines = ["file_name,width,text", *(f'{name},3,"{text}"' for name, text in rows)]
        (here / f"data/metadata.{suffix}").write_text("\n".join(lines))
        ended = run("init", "data")
        (found,) = concepts(here).values()
        assert (found.path, found.image_column) == (f"data/metadata.{suffix}", "file_name")
        assert found.captions.model_dump() == {"column": "text"}
        assert f"metadata.{suffix} names the pictures, and its column text has the captions" in ended.out
        assert planned(2)["without_caption"] == 0

    def test_each_folder_may_have_its_own(self, here: Path) -> None:
        """Splits of a dataset are concepts; the column may have another usual name."""
        for number, split in enumerate(("train", "test")):
            picture(here / "data" / split / "1.png", number)
            line = json.dumps({"prompt": "a cat", "file_name": "1.png"})
            (here / "data" / split / "metadata.jsonl").write_text(f"{line}\n")
        assert run("init", "data").code == 0
        assert {name: one.path for name, one in concepts(here).items()} == {
            "test": "data/test/metadata.jsonl",
            "train": "data/train/metadata.jsonl",
        }
        assert {str(one.captions.model_dump()) for one in concepts(here).values()} == {"{'column': 'prompt'}"}
        planned(2)

    def test_a_table_without_captions_says_which_columns_there_are(self, here: Path) -> None:
        """Nothing is guessed: the empty prompt stands there, and the columns are named."""
        picture(here / "data/1.png", 1)
        (here / "data/metadata.jsonl").write_text('{"file_name": "1.png", "label": 3}\n')
        ended = run("init", "data")
        assert "none of its other columns reads like captions: label" in ended.out
        assert concepts(here)["data"].captions.model_dump() == {"text": ""}
        planned(1)

    @pytest.mark.parametrize("content", ["", "{", "[1]", '{"image": "1.png"}', "\ufffe", "[" * 50_000])
    def test_another_file_of_that_name_is_passed_over(self, here: Path, content: str) -> None:
        """What is no such table leaves the folder a folder."""
        picture(here / "data/1.png", 1)
        (here / "data/metadata.jsonl").write_bytes(content.encode("utf-16-be" if content == "\ufffe" else "utf-8"))
        assert run("init", "data").code == 0
        assert concepts(here)["data"].path == "data"
        planned(1)


class TestCaptionFiles:
    """Caption files of other endings, and how they are read."""

    def test_other_endings_are_found(self, here: Path) -> None:
        """Those that most pictures have."""
        for number in range(3):
            picture(here / f"data/{number}.png", number)
            (here / f"data/{number}.caption").write_text("a cat")
        (here / "data/0.txt").write_text("a cat")
        assert "3 pictures, all with captions (.caption)" in run("init", "data").out
        assert concepts(here)["data"].caption_extension == ".caption"
        assert planned(3)["without_caption"] == 0

    def test_json_beside_pictures_is_found_with_its_field(self, here: Path) -> None:
        """The field is named in the config; JSON of other things is passed over."""
        for number in range(2):
            picture(here / f"data/{number}.png", number)
            (here / f"data/{number}.json").write_text(json.dumps({"id": number, "caption": "a cat"}))
        assert "all with captions ({json: caption})" in run("init", "data").out
        assert concepts(here)["data"].captions.model_dump() == {"json": "caption"}
        assert planned(2)["without_caption"] == 0
        for number in range(2):
            (here / f"data/{number}.json").write_text(json.dumps({"id": number}))
        assert "no captions" in run("init", "data", "--force").out
        planned(2)

    def test_files_of_several_lines_are_told(self, here: Path) -> None:
        """The file and the people see which rule was taken, what it means, and what the other one is called."""
        for number, text in enumerate(("a cat\n\nIt sleeps.", "a dog")):
            picture(here / f"data/{number}.png", number)
            (here / f"data/{number}.txt").write_text(text)
        ended = run("init", "data", "--json")
        (remark,) = ended.document["concepts"][0]["remarks"]
        assert remark.startswith("1 of 2 caption files looked at have several lines: each line is taken as a caption")
        assert "captions: {whole: sidecar} makes each file one caption" in remark
        assert f"# {remark}\n" in (here / "precook.yaml").read_text()
        assert concepts(here)["data"].captions.model_dump() == "sidecar"

    def test_tags_are_told(self, here: Path) -> None:
        """Captions that read like tags could be shuffled: the file says how, and does not do it."""
        for number in range(3):
            picture(here / f"data/{number}.png", number)
            (here / f"data/{number}.txt").write_text("1girl, solo, smile, red hair, hat, outdoors")
        assert "captions read like tags: tags: {keep_first: 1}" in run("init", "data").out
        assert concepts(here)["data"].tags is None
