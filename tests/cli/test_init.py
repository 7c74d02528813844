"""`precook init`: a config for a folder of pictures."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precook.config.check import read_config
from precook.config.schema import Settings
from precook.sources.survey import relative_path
from tests.support.commands import encoders, everything, read_only, run
from tests.support.projects import dataset, picture, text_folder, vae_folder

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


COMPLETION = {"prompt": "prompt", "completion": "completion"}
MESSAGES = {"messages": "messages"}


def switched(line: str) -> str:
    """A setting that stands behind a #, without it."""
    return re.sub(r"^(  (?:  )+)#(?=\w+: \S)", r"\1", line)


def settings_in(path: Path) -> Settings:
    """What a config file says."""
    return read_config(path)[0]


class Folders:
    """Folders of pictures as people have them: each method makes one below a directory."""

    @staticmethod
    def captions(base: Path) -> None:
        dataset(base / "data", 3)

    @staticmethod
    def bare(base: Path) -> None:
        picture(base / "data" / "1.png", 1)

    @staticmethod
    def telling_names(base: Path) -> None:
        for number in range(3):
            picture(base / "data" / f"a cat on mat {number}.jpg", number)

    @staticmethod
    def masks_beside(base: Path) -> None:
        for number in range(3):
            picture(base / "data" / f"{number}.jpg", number)
            picture(base / "data" / f"{number}-masklabel.png", 10 + number)

    @staticmethod
    def masks_inside(base: Path) -> None:
        for number in range(3):
            picture(base / "data" / f"{number}.jpg", number)
            picture(base / "data" / "masks" / f"{number}.jpg", 10 + number)

    @staticmethod
    def masks_aside(base: Path) -> None:
        for number in range(3):
            picture(base / "data" / "images" / f"{number}.jpg", number)
            picture(base / "data" / "masks" / f"{number}.png", 10 + number)

    @staticmethod
    def carnival(base: Path) -> None:
        picture(base / "data" / "masks" / "venice.png", 1)
        picture(base / "data" / "hats" / "top hat.png", 2)

    @staticmethod
    def concepts(base: Path) -> None:
        for number, name in enumerate(["cats", "a: #b", "no", "123", "new\nline", "\u202egnp", "x" * 220]):
            picture(base / "data" / name / "1.png", number)

    @staticmethod
    def nested(base: Path) -> None:
        picture(base / "data" / "a" / "b" / "1.png", 1)
        picture(base / "data" / "a" / "c" / "2.png", 2)

    @staticmethod
    def bad_files(base: Path) -> None:
        dataset(base / "data", 3)
        (base / "data" / "empty.png").touch()
        (base / "data" / "text.jpg").write_text("not a picture")
        (base / "data" / "gone.png").symlink_to("nowhere")
        os.mkfifo(base / "data" / "fifo.png")

    @staticmethod
    def only_bad_files(base: Path) -> None:
        (base / "data").mkdir()
        (base / "data" / "empty.png").touch()


FOLDERS = sorted(name for name in vars(Folders) if not name.startswith("_"))


class TestInit:
    """`precook init`."""

    @pytest.mark.parametrize("kind", FOLDERS)
    @pytest.mark.parametrize("models", [False, True], ids=["without models", "with models"])
    def test_its_file_is_accepted_at_once(self, here: Path, kind: str, models: bool) -> None:
        """Whatever lies in the folder, `plan` takes the file that was written for it."""
        getattr(Folders, kind)(here)
        named = ["--vae", vae_folder(here / "vae"), "--text", text_folder(here / "text")] if models else []
        ended = run("init", "data", *named)
        assert ended.code == 0, ended.err
        planned = run("plan", "--json")
        assert planned.code == 0, planned.err
        masks = ["mask"] if kind.startswith("masks") else []
        expected = ["latent", "prompt", *masks] if models else [*masks, "pixels"]
        assert list(encoders(planned.document)) == expected

    @pytest.mark.parametrize(
        ("kind", "samples", "concepts", "captions", "masks"),
        [
            ("captions", 3, ["data"], "sidecar", None),
            ("bare", 1, ["data"], {"text": ""}, None),
            ("telling_names", 3, ["data"], "filename", None),
            ("masks_beside", 3, ["data"], {"text": ""}, "{stem}-masklabel.png"),
            ("masks_inside", 3, ["data"], {"text": ""}, "masks/{name}"),
            ("masks_aside", 3, ["images"], {"text": ""}, "../masks/{stem}.png"),
            ("carnival", 2, ["hats", "masks"], {"text": ""}, None),
            ("nested", 2, ["data"], {"text": ""}, None),
            ("bad_files", 3, ["data"], "sidecar", None),
            (
                "concepts",
                7,
                ["123", "a: #b", "cats", r"new\nline", "no", "x" * 200, r"\u202egnp"],
                {"text": ""},
                None,
            ),
        ],
    )
    def test_it_finds_what_lies_there(
        self, here: Path, kind: str, samples: int, concepts: list[str], captions: object, masks: str | None
    ) -> None:
        """Captions, masks and concepts are those of the folder, and every sample is found again by `plan`."""
        getattr(Folders, kind)(here)
        assert run("init", "data").code == 0
        found = settings_in(here / "precook.yaml")
        assert [concept.name for concept in found.concepts] == concepts
        assert {json.dumps(concept.model_dump()["captions"]) for concept in found.concepts} == {json.dumps(captions)}
        assert {concept.masks for concept in found.concepts} == {masks}
        assert run("plan", "--json").document["samples"] == samples

    def test_people_see_what_it_found_and_what_to_do_next(self, here: Path) -> None:
        """A line for each concept and one for the file; as hints, what it lacks and the next command."""
        Folders.captions(here)
        picture(here / "data" / "late.png", 9)
        ended = run("init", "data", "--output", "my config.yaml")
        assert ended.out == (
            "data: 4 pictures, 3 with captions (.txt), about 78 pixels a side\n"
            "wrote my config.yaml: dataset data, 256 pixels a side; encoders: pixels\n"
        )
        models, following = ended.err.splitlines()
        assert "leaves captions aside" in models
        assert "--text DIR" in models
        assert following == "hint: `precook plan --config 'my config.yaml'` shows what a build would do"

    def test_programs_see_what_it_found(self, here: Path) -> None:
        """The JSON document has the file and each concept with its counts."""
        Folders.masks_beside(here)
        (here / "data" / "0.txt").write_text("a cat")
        ended = run("init", "data", "--json", "--store", "elsewhere", "--dataset", "pets")
        assert ended.err == ""
        assert ended.document == {
            "version": 1,
            "config": "precook.yaml",
            "dataset": "pets",
            "store": "elsewhere",
            "resolution": 256,
            "encoders": ["mask", "pixels"],
            "concepts": [
                {
                    "name": "data",
                    "path": "data",
                    "pictures": 3,
                    "captions": "sidecar",
                    "captioned": 1,
                    "settings": {},
                    "remarks": [],
                    "masks": "{stem}-masklabel.png",
                    "masked": 3,
                }
            ],
        }

    @pytest.mark.parametrize(("side", "resolution"), [(60, 256), (500, 512), (900, 768), (1500, 1024)])
    @pytest.mark.parametrize("place", ["data", "data/{}"], ids=["one concept", "concepts"])
    def test_the_resolution_is_that_of_the_usual_picture(
        self, here: Path, place: str, side: int, resolution: int
    ) -> None:
        """One huge picture, or one concept of huge pictures, does not decide."""
        for number in range(3):
            picture(here / place.format(number) / f"{number}.png", number, (side, side))
        picture(here / place.format("huge") / "huge.png", 9, (2000, 2000))
        assert run("init", "data", "--json").document["resolution"] == resolution

    def test_a_config_is_not_overwritten(self, here: Path) -> None:
        """Without --force the file stays as it is, and the error says how to go on."""
        Folders.bare(here)
        (here / "precook.yaml").write_text("mine")
        ended = run("init", "data")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == "error: precook.yaml exists already\nhint: --force replaces it, --output names another\n"
        assert (here / "precook.yaml").read_text() == "mine"
        assert run("init", "data", "--force").code == 0
        assert settings_in(here / "precook.yaml").dataset == "data"
        assert sorted(os.listdir(here)) == ["data", "precook.yaml"]

    def test_a_config_survives_a_disk_that_refuses(self, here: Path) -> None:
        """Where the new file cannot be written, the old one is still there."""
        Folders.bare(here)
        (here / "configs").mkdir()
        (here / "configs" / "precook.yaml").write_text("mine")
        with read_only(here / "configs"):
            ended = run("init", "data", "--output", "configs/precook.yaml", "--force")
        assert ended.code == 1
        assert re.fullmatch(r"error: configs/precook.yaml: cannot be written: .*\nhint: --output .*\n", ended.err)
        assert (here / "configs" / "precook.yaml").read_text() == "mine"

    @pytest.mark.parametrize("target", ["folder", "fifo", "absent/precook.yaml"])
    def test_a_target_that_cannot_be_a_file_is_refused(self, here: Path, target: str) -> None:
        """A directory, a device or a place that is not there: nothing is harmed, --force or not."""
        Folders.bare(here)
        (here / "folder").mkdir()
        os.mkfifo(here / "fifo")
        before = everything(here / "folder")
        ended = run("init", "data", "--output", target, "--force")
        assert (ended.code, ended.out) == (2, "")
        assert re.fullmatch(r"error: (folder|fifo|absent).*\nhint: .*\n", ended.err)
        assert everything(here / "folder") == before
        assert (here / "fifo").is_fifo()

    def test_a_link_to_a_config_stays_a_link(self, here: Path) -> None:
        """--force replaces the file that the link leads to."""
        Folders.bare(here)
        (here / "real.yaml").write_text("mine")
        (here / "precook.yaml").symlink_to("real.yaml")
        assert run("init", "data").code == 2
        assert run("init", "data", "--force").code == 0
        assert (here / "precook.yaml").is_symlink()
        assert settings_in(here / "real.yaml").dataset == "data"

    @pytest.mark.parametrize("absolute", [False, True])
    @pytest.mark.parametrize("through", ["configs/deep", "link"])
    def test_paths_are_right_wherever_the_file_lies(self, here: Path, through: str, absolute: bool) -> None:
        """Paths in the file start at the file, through links too, and hold when everything moves together."""
        base = here / "project"
        Folders.captions(base)
        (base / "configs" / "deep").mkdir(parents=True)
        (base / "link").symlink_to("configs/deep")
        vae_folder(base / "models" / "vae")
        os.chdir(base)
        places = [base / "data", base / through / "my.yaml", base / "models/vae", base / "store"]
        folder, target, vae, store = places if absolute else [place.relative_to(base) for place in places]
        assert run("init", folder, "--output", target, "--vae", vae, "--store", store).code == 0
        base.rename(here / "moved")
        os.chdir("/")
        planned = run("plan", "--config", here / "moved" / through / "my.yaml", "--json")
        assert planned.code == 0, planned.err
        assert planned.document["samples"] == 3
        assert (here / "moved" / "store" / "store.toml").is_file()
        assert not list((here / "moved").rglob("cache"))

    def test_what_lies_on_another_drive_is_named_in_full(self, tmp_path: Path) -> None:
        """A way up to the root and down again would say nothing and break with every move."""
        assert relative_path(Path("/no such drive/cats"), tmp_path) == "/no such drive/cats"
        assert relative_path(tmp_path / "cats", tmp_path / "configs") == "../cats"
        assert relative_path(tmp_path, tmp_path) == "."

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
    @given(name=st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=60))
    def test_any_name_is_written_right_or_refused(self, tmp_path: Path, name: str) -> None:
        """A folder whose name is Unicode is found again by the file; another is refused, and no file is written."""
        base = tmp_path / "names"
        shutil.rmtree(base, ignore_errors=True)
        try:
            picture(base / f"x{name}" / "1.png", 1)
        except UnicodeEncodeError:
            return  # no file system has such a name
        ended = run("init", base / f"x{name}", "--output", base / "precook.yaml")
        unicode = not any("\ud800" <= char <= "\udfff" for char in name)
        assert ended.code == (0 if unicode else 2), ended.err
        assert (base / "precook.yaml").exists() == unicode
        assert not ESCAPES.search(ended.out + ended.err)
        if unicode:
            (concept,) = settings_in(base / "precook.yaml").concepts
            assert (base / concept.path).samefile(base / f"x{name}")
            assert run("plan", "--config", base / "precook.yaml", "--json", "--no-write").document["samples"] == 1

    def test_a_name_that_is_not_unicode_is_refused(self, here: Path) -> None:
        """The error shows the name escaped and says what to do."""
        os.mkdir(b"cats\xff")
        picture(here / "1.png", 1).rename(here / "cats\udcff" / "1.png")
        ended = run("init", "cats\udcff")
        assert (ended.code, ended.out) == (2, "")
        assert r"cats\udcff" in ended.err
        assert "rename it" in ended.err
        assert not (here / "precook.yaml").exists()

    @pytest.mark.parametrize(
        ("args", "code", "message", "hint"),
        [
            (["nowhere"], 1, "nowhere: no such folder", "is the drive mounted"),
            (["empty"], 1, "empty: no pictures in there", "pictures end in .jpg"),
            (["empty/table.csv"], 1, "empty/table.csv: no column of texts that is known among none", "column"),
            (["pictures.csv"], 1, "pictures.csv: a table of pictures, not of texts", "a concept"),
            (["notes.doc"], 1, "notes.doc: not a folder", "a table of texts"),
            (["texts.csv", "--for", "sdxl"], 2, "--for names a model of pictures", "--text names a tokenizer"),
            (["data", "--vae", "nowhere"], 2, "--vae nowhere: no such folder", "download the model first"),
            (["data", "--text", "nowhere"], 2, "--text nowhere: no such folder", "download the model first"),
            (["data", "--dataset", "two words"], 2, "dataset: must be 1 to 64 letters", ""),
            (["data", "--dataset", ""], 2, "dataset: must be 1 to 64 letters", ""),
        ],
    )
    def test_what_is_wrong_is_said_and_nothing_is_written(
        self, here: Path, args: list[str], code: int, message: str, hint: str
    ) -> None:
        """A folder or model that is not there, no pictures, a name that is none."""
        Folders.bare(here)
        (here / "empty").mkdir()
        (here / "empty" / "table.csv").touch()
        (here / "pictures.csv").write_text("image,text\n")
        (here / "texts.csv").write_text("text\na cat\n")
        (here / "notes.doc").touch()
        ended = run("init", *args)
        assert (ended.code, ended.out) == (code, "")
        assert ended.err.startswith(f"error: {message}")
        assert re.search(rf"\nhint: .*{hint}", ended.err) if hint else "hint: " not in ended.err
        assert not (here / "precook.yaml").exists()

    def test_no_folder_is_wrong_usage(self, here: Path) -> None:
        """Exit code 2, and it says what to name."""
        ended = run("init")
        assert (ended.code, ended.out) == (2, "")
        assert "name the folder of pictures" in ended.err

    @pytest.mark.parametrize(
        ("name", "content", "texts", "told"),
        [
            ("train.jsonl", '{"text": "a cat"}\n{"text": null}\n', {"column": "text"}, "1 text (column text)"),
            ("train.csv", "id,prompt,completion\n1,a,b\n", COMPLETION, "1 text (columns prompt and completion)"),
            (
                "train.ndjson",
                '{"messages": [{"role": "user", "content": "a"}]}\n',
                MESSAGES,
                "1 text (conversations in",
            ),
            (
                "train.jsonl",
                '{"conversations": [{"from": "human", "value": "a"}]}\n{"conversations": [], "tools": "[]"}\n',
                {"messages": "conversations", "tools": "tools"},
                "tools in column tools)\n  1 row cannot be used; row 2: an empty list in column 'conversations'",
            ),
            (
                "train.csv",
                "instruction,input,output\na,b,c\n",
                {"prompt": "instruction", "completion": "output"},
                "1 text (columns instruction and output)\n  left aside: column input, of which no text is made",
            ),
            ("notes/a.txt", "a text", "files", "1 text (files that end in .txt)"),
            ("notes/a.md", "# a text", "files", "1 text (files that end in .md)"),
        ],
    )
    def test_texts_without_pictures_have_a_config_too(
        self, here: Path, name: str, content: str, texts: object, told: str
    ) -> None:
        """A table by its columns, a folder by its files: the config is accepted, plans, and keeps token ids."""
        file = here / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        text_folder(here / "tokenizer")
        (here / "tokenizer/chat_template.jinja").write_text("{{ messages }}")
        ended = run("init", name.partition("/")[0], "--text", "tokenizer")
        assert ended.code == 0, ended.err
        assert told in ended.out
        settings = settings_in(here / "precook.yaml")
        (concept,) = settings.concepts
        assert concept.model_dump()["texts"] == texts
        assert {name: one.uses for name, one in settings.encoders.items()} == {"tokens": "transformers-tokens"}
        planned = run("plan", "--json")
        assert planned.code in (0, 3), planned.err
        assert json.loads(planned.out)["samples"] == 1

    def test_a_tokenizer_alone_keeps_tokens_of_captions(self, here: Path) -> None:
        """There is no model to make embeddings with; it is said, and what is written plans and builds."""
        pytest.importorskip("transformers", reason="transformers is not installed")
        Folders.captions(here)
        text_folder(here / "tokenizer")
        for name in ("config.json", "model.safetensors"):
            (here / "tokenizer" / name).unlink()
        for number, word in enumerate(("a", "cat", "a")):
            (here / f"data/p{number}.txt").write_text(word)
        ended = run("init", "data", "--text", "tokenizer")
        assert "hint: tokenizer has a tokenizer and no model, so token ids of captions are kept" in ended.err
        uses = {name: one.uses for name, one in settings_in(here / "precook.yaml").encoders.items()}
        assert uses == {"tokens": "transformers-tokens"}
        built = run("build")
        assert built.code == 0, built.out + built.err

    @pytest.mark.parametrize("kind", ["data", "train.jsonl"])
    def test_a_folder_without_a_tokenizer_is_refused(self, here: Path, kind: str) -> None:
        """A plan would refuse it anyway; nothing is written."""
        Folders.captions(here)
        (here / "train.jsonl").write_text('{"text": "a cat"}\n')
        vae_folder(here / "models/vae")
        ended = run("init", kind, "--text", "models/vae")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: --text models/vae: no tokenizer in there\nhint: ")
        assert not (here / "precook.yaml").exists()

    def test_the_file_for_texts_shows_what_texts_have(self, here: Path) -> None:
        """Settings at their defaults can be switched on without being refused, and nothing speaks of pictures."""
        (here / "train.jsonl").write_text('{"text": "a cat"}\n')
        assert "put a tokenizer there" in run("init", "train.jsonl").err
        content = (here / "precook.yaml").read_text()
        assert "captions:" not in content
        assert "resolutions:" not in content
        lines = [
            line if re.match(r" *#(?:revision|subfolder|version|samples|passages):", line) else switched(line)
            for line in content.splitlines()
        ]
        (here / "other.yaml").write_text("\n".join(lines))
        assert (
            settings_in(here / "other.yaml").concepts[0].texts == settings_in(here / "precook.yaml").concepts[0].texts
        )

    def test_the_schema_is_printed(self, here: Path) -> None:
        """--schema needs no folder and prints the JSON schema that editors take."""
        found = run("init", "--schema").document
        assert found["$schema"].endswith("2020-12/schema")
        assert {"store", "dataset", "concepts", "encoders"} <= found["properties"].keys()
        assert os.listdir(here) == []
