"""The command line over a project: init, plan, explain and status, as a user meets them."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import precook
from precook.config.check import read_config
from precook.config.schema import Settings
from precook.plan.ready import record_failure
from precook.sources.survey import relative_path
from tests.cli.test_cli import environment, everything, read_only, read_terminal, spawn
from tests.support.commands import Ended, run
from tests.support.projects import build, dataset, picture, text_folder, vae_folder

CONFIG = """\
store: cache
dataset: pets
concepts:
  - name: cats
    path: data/cats
  - name: dogs
    path: data/dogs
    captions: {text: a dog}
    masks: "{stem}-masklabel.png"
image:
  resolutions: [64]
  step: 16
text:
  empty_prompt: false
encoders:
  pixels: {uses: image}
  tokens: {uses: transformers-tokens, model: models/text, max_length: 77}
  mask: {uses: mask, factor: 1}
"""
"""For two cats with two captions each, and two dogs with a mask each."""
ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pets(here: Path) -> Path:
    """A project of two concepts and three encoders, of which nothing is built; its sources are old enough to trust."""
    dataset(here / "data" / "cats", 2, lines=2)
    for number in range(2):
        picture(here / "data" / "dogs" / f"d{number}.png", 10 + number)
        picture(here / "data" / "dogs" / f"d{number}-masklabel.png", 20 + number)
    text_folder(here / "models" / "text")
    (here / "precook.yaml").write_text(CONFIG)
    for path in here.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return here


@pytest.fixture
def built(pets: Path) -> Path:
    """The same project, built and frozen."""
    cook()
    return pets


def cook() -> None:
    """Put something small in the place of every missing entry, and freeze the dataset."""
    with precook.load("precook.yaml") as project:
        build(project)


def change_config(old: str, new: str, path: str = "precook.yaml") -> None:
    """Edit the config file."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def settings_in(path: Path) -> Settings:
    """What a config file says."""
    return read_config(path)[0]


def encoders(document: Any, *fields: str) -> dict[str, Any]:
    """Fields of each encoder in a document."""
    return {one["name"]: [one[field] for field in fields] for one in document["encoders"]}


def on_terminal(*args: object, columns: int = 80, stdout: int | None = None, stderr: int | None = None) -> str:
    """What a command writes to a terminal of its own; a stream that is given goes elsewhere."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    plain = {name: value for name, value in environment().items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "precook", *map(str, args)]
    streams = {"stdin": slave, "stdout": stdout or slave, "stderr": stderr or slave}
    with subprocess.Popen(command, env=plain, **streams):  # type: ignore[call-overload]
        os.close(slave)
        return read_terminal(master)


def plain(written: str) -> str:
    """What a person sees in the end, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n")


def steady(text: str) -> str:
    """A plan without the space that is left, which others change meanwhile."""
    return re.sub(r"; [\d.]+ \w+ free", "", text)


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
            (["empty/table.csv"], 1, "empty/table.csv: not a folder", "a table goes into the config"),
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

    def test_the_schema_is_printed(self, here: Path) -> None:
        """--schema needs no folder and prints the JSON schema that editors take."""
        found = run("init", "--schema").document
        assert found["$schema"].endswith("2020-12/schema")
        assert {"store", "dataset", "concepts", "encoders"} <= found["properties"].keys()
        assert os.listdir(here) == []


class TestPlan:
    """`precook plan`."""

    def test_it_prints_the_plan(self, pets: Path) -> None:
        """People see what `str(plan)` says, and nothing on stderr."""
        ended = run("plan")
        with precook.load("precook.yaml") as project:
            assert steady(ended.out) == steady(f"{project.plan()}\n")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith("pets: 4 samples in 2 concepts\n\nencoder  ready  missing  failed\n")
        assert re.search(r"^tokens +0 +5 +0$", ended.out, re.MULTILINE)
        assert re.search(
            r"^to build: 11 entries, size not known before the first build; .* free\n\Z", ended.out, re.MULTILINE
        )

    def test_a_built_dataset_has_nothing_to_build(self, built: Path) -> None:
        """The last line says so."""
        out = run("plan").out
        assert out.endswith("\nto build: nothing\n")
        assert "missing:" not in out

    def test_programs_see_counts(self, built: Path) -> None:
        """One versioned document: samples, and for each encoder what it is and what is ready, missing and failed."""
        (built / "data/cats/p0.txt").write_text("")
        picture(built / "data/cats/twin.png", 1)
        found = run("plan", "--json").document
        assert found["version"] == 1
        assert found["dataset"] == "pets"
        assert Path(found["store"]).resolve() == built / "cache"
        assert (found["samples"], found["without_caption"], found["duplicates"], found["left_out"]) == (5, 2, 1, 0)
        assert encoders(found, "input", "uses", "ready", "missing", "failed") == {
            "pixels": ["image", "image", 4, 0, 0],
            "tokens": ["text", "transformers-tokens", 3, 1, 0],
            "mask": ["mask", "mask", 2, 0, 0],
        }
        assert all(re.fullmatch("[0-9a-f]{64}", one["recipe"]) for one in found["encoders"])
        assert found["failed"] == []

    def test_programs_see_reasons_and_differences(self, built: Path) -> None:
        """A new file, an edited caption and another setting are told apart, each with what differs."""
        picture(built / "data/cats/new.png", 30)
        (built / "data/cats/new.txt").write_text("picture 0, line 0")
        (built / "data/cats/p1.txt").write_text("edited\npicture 1, line 1")
        found = run("plan", "--json").document
        assert encoders(found, "reasons") == {
            "pixels": [{"new": 1}],
            "tokens": [{"caption line changed": 1}],
            "mask": [{}],
        }
        new, edited = found["missing"]
        assert (new["encoder"], new["concept"], new["reason"]) == ("pixels", "cats", "new")
        assert Path(new["path"]) == Path("data/cats/new.png")
        assert (edited["encoder"], edited["path"]) == ("tokens", "data/cats/p1.png")
        assert [one["field"] for one in edited["differences"]] == ["captions digest"]

        change_config("max_length: 77", "max_length: 128")
        found = run("plan", "--json", "--encoder", "tokens").document
        assert encoders(found, "reasons") == {"tokens": [{"recipe changed": 4, "caption line changed": 1}]}
        changed = [one for one in found["missing"] if one["reason"] == "recipe changed"]
        assert {json.dumps(one["differences"]) for one in changed} == {
            json.dumps([{"field": "recipe.max_length", "old": 77, "new": 128}])
        }
        assert all(re.fullmatch("[0-9a-f]{64}", one["nearest"]) for one in changed)

    def test_people_see_reasons(self, built: Path) -> None:
        """What changed stands beside how many it concerns, and the next step below."""
        change_config("max_length: 77", "max_length: 128")
        change_config("resolutions: [64]", "resolutions: [128]")
        out = run("plan").out
        assert "\n  tokens: 5 recipe changed (max_length: 77 → 128)\n" in out
        assert "\n  pixels: 4 geometry changed\n" in out
        assert "\n  `precook explain FILE` shows what differs for one file\n" in out

    def test_programs_see_the_forecast(self, built: Path) -> None:
        """Bytes from what entries of the recipe took, null where there are none; the space that is left."""
        picture(built / "data/cats/new.png", 30)
        found = run("plan", "--json", "--encoder", "pixels").document["forecast"]
        assert found["bytes"] == 32  # four numbers of eight bytes, as `build` stores them
        assert found["seconds"] is None
        assert found["free_bytes"] > 0
        change_config("max_length: 77", "max_length: 128")
        assert run("plan", "--json", "--encoder", "tokens").document["forecast"]["bytes"] is None

    def test_what_is_left_out_is_named_with_its_reason(self, pets: Path) -> None:
        """Files that cannot be used are listed with a path that `explain` takes, for people and for programs."""
        (pets / "data/cats/empty.png").touch()
        (pets / "data/cats/p1.txt").write_bytes(b"\xff\xff")
        ended = run("plan")
        assert ended.code == 0
        assert ended.out.startswith("pets: 3 samples in 2 concepts, 2 files left out\n")
        assert "\nleft out:\n  data/cats/empty.png: empty file\n  data/cats/p1.txt: " in ended.out
        failed = run("plan", "--json").document["failed"]
        assert {one["path"]: one["concept"] for one in failed} == {
            "data/cats/empty.png": "cats",
            "data/cats/p1.txt": "cats",
        }
        for one in failed:
            assert one["reason"] in run("explain", one["path"]).out

    def test_many_left_out_are_cut_for_people_and_whole_for_programs(self, pets: Path) -> None:
        """Ten are shown, in order of their paths, and how many more there are."""
        for number in range(25):
            (pets / "data/cats" / f"bad{number:02d}.png").touch()
        out = run("plan").out
        assert "  data/cats/bad00.png: empty file\n" in out
        assert "  data/cats/bad09.png: empty file\n  … and 15 more; `precook plan --json` lists them all\n" in out
        assert len(run("plan", "--json").document["failed"]) == 25

    def test_entries_that_failed_before_are_shown(self, pets: Path) -> None:
        """What an encoder could not make is counted and named, with the encoder and the reason."""
        with precook.load("precook.yaml") as project:
            plan = project.plan()
            entry = next(entry for entry in plan.missing if entry.encoder == "pixels")
            memory = project.store.memory()
            record_failure(memory, entry.key.bytes, "it returned NaN")
            project.store.remember(memory)
        out = run("plan").out
        assert re.search(r"^pixels +0 +3 +1$", out, re.MULTILINE)
        assert f"\n  {entry.path}: pixels: it returned NaN\n" in out
        (failed,) = run("plan", "--json").document["failed"]
        assert (failed["path"], failed["encoder"], failed["key"]) == (entry.path, "pixels", entry.key.hex)

    def test_captions_that_are_missing_or_empty_are_said(self, pets: Path) -> None:
        """Such samples get the empty prompt, and the plan says how many."""
        (pets / "data/cats/p0.txt").unlink()
        (pets / "data/cats/p1.txt").write_text("\n  \n")
        assert "  2 samples without a caption: the empty prompt is used\n" in run("plan").out
        assert run("plan", "--json").document["without_caption"] == 2

    def test_a_concept_without_pictures_is_said(self, pets: Path) -> None:
        """An empty folder and one of unusable files are two things."""
        for path in (pets / "data/cats").iterdir():
            path.unlink()
        assert "\n  cats: no pictures in there\n" in run("plan").out
        (pets / "data/cats/bad.png").touch()
        assert "\n  cats: 1 picture in there, and none can be used\n" in run("plan").out

    def test_encoders_can_be_chosen(self, pets: Path) -> None:
        """--encoder, once or more, plans for these alone; masks are not even looked at."""
        assert list(encoders(run("plan", "--json", "--encoder", "tokens").document)) == ["tokens"]
        both = run("plan", "--json", "--encoder", "tokens", "--encoder", "pixels", "--encoder", "tokens").document
        assert sorted(encoders(both)) == ["pixels", "tokens"]
        assert {entry["encoder"] for entry in both["missing"]} == {"pixels", "tokens"}

    def test_an_unknown_encoder_is_wrong_usage(self, pets: Path) -> None:
        """Exit code 2, and the names there are."""
        ended = run("plan", "--encoder", "latent")
        assert (ended.code, ended.out) == (2, "")
        assert "no encoder 'latent'" in ended.err
        assert "hint: there are pixels, tokens, mask\n" in ended.err

    def test_no_write_changes_nothing_at_all(self, pets: Path) -> None:
        """Not a byte and not a time below the project, with no store, with a fresh one and with a full one."""
        for state in ("no store", "planned", "built"):
            before = everything(pets)
            shown = run("plan", "--no-write")
            assert shown.code == 0
            assert run("plan", "--no-write", "--json").code == 0
            assert run("explain", "data/cats/p0.png", "--no-write").code == 0
            assert run("status").code == 0
            assert everything(pets) == before, state
            assert steady(run("plan").out) == steady(shown.out)
            if state == "planned":
                cook()

    def test_a_plan_changes_only_the_index(self, built: Path) -> None:
        """What was learnt about a new file is remembered in the index; packs, snapshots and sources stay."""
        picture(built / "data/cats/new.png", 30)
        os.utime(built / "data/cats/new.png", (1_700_000_000, 1_700_000_000))
        before = everything(built)
        assert run("plan").code == 0
        after = everything(built)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        assert changed
        assert {Path(path).relative_to(built).as_posix().partition("-")[0] for path in changed} <= {
            "cache",
            "cache/index.sqlite",
            "cache/index.lock",
        }
        assert any("index.sqlite" in path for path in changed)

    def test_another_store_can_be_named(self, built: Path) -> None:
        """--store wins over the config's: a dataset that is built in one store is new to another."""
        assert encoders(run("plan", "--json").document, "missing")["pixels"] == [0]
        found = run("plan", "--store", "other", "--json").document
        assert encoders(found, "missing")["pixels"] == [4]
        assert Path(found["store"]) == built / "other"
        assert (built / "other" / "store.toml").is_file()
        assert "reason" in run("explain", "data/cats/p0.png", "--store", "other").out

    def test_a_read_only_store_is_planned_with(self, built: Path) -> None:
        """Where nothing can be remembered the plan is the same."""
        expected = run("plan").out
        with read_only(built / "cache"):
            assert run("plan") == Ended(0, expected, "")

    def test_a_place_that_refuses_a_store_is_exit_code_13(self, pets: Path) -> None:
        """The hint says how to plan all the same."""
        (pets / "sub").mkdir()
        change_config("store: cache", "store: sub/cache")
        with read_only(pets / "sub"):
            ended = run("plan")
            assert (ended.code, ended.out) == (13, "")
            assert "\nhint: --no-write plans without remembering anything" in ended.err
            assert run("plan", "--no-write").code == 0


class TestMistakes:
    """What a user does wrong, and what is said about it."""

    @pytest.mark.parametrize("command", [["plan"], ["explain", "data/cats/p0.png"]])
    def test_no_config_is_exit_code_2(self, here: Path, command: list[str]) -> None:
        """The hint says how to get one."""
        ended = run(*command)
        assert (ended.code, ended.out) == (2, "")
        assert re.fullmatch(r"error: there is no precook.yaml here\nhint: `precook init FOLDER` .*\n", ended.err)

    @pytest.mark.parametrize(
        "command", ["plan", "explain x", "status", "ls", "show abcd", "verify", "doctor", "reindex"]
    )
    def test_everything_wrong_with_a_config_is_told(self, pets: Path, command: str) -> None:
        """Exit code 2 from every command, one error for each problem, with file, line and the name that was meant."""
        change_config("store: cache", "stoer: cache")
        change_config("resolutions:", "resolution:")
        change_config("uses: mask", "uses: msak")
        ended = run(*command.split())
        assert (ended.code, ended.out) == (2, "")
        errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        assert [re.match(r"error: precook\.yaml:(\d+): ([\w.]+): ", line).groups() for line in errors] == [
            ("1", "stoer"),
            ("11", "image.resolution"),
            ("18", "encoders.mask.uses"),
        ]
        assert "did you mean 'resolutions'?" in ended.err

    @pytest.mark.parametrize("content", [b"", b"a: [1\n", b"\xff\xfe\x00", b"- 1\n", b"a: &b 1\n"])
    def test_what_is_no_config_is_exit_code_2(self, here: Path, content: bytes) -> None:
        """No traceback for an empty file, broken YAML or bytes."""
        (here / "precook.yaml").write_bytes(content)
        ended = run("plan")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: precook.yaml")

    @pytest.mark.parametrize("name", ["nowhere.yaml", "folder"])
    def test_a_config_that_is_not_there_is_exit_code_2(self, here: Path, name: str) -> None:
        """--config must name a file, for commands about stores, too."""
        (here / "folder").mkdir()
        for command in ("plan", "ls"):
            ended = run(command, "--config", name)
            assert (ended.code, ended.out) == (2, "")
            assert re.match(rf"error: {name}: .*\nhint: ", ended.err)

    def test_a_model_that_is_not_there_is_exit_code_2(self, pets: Path) -> None:
        """The line of the encoder that needs it is told, and what to do."""
        change_config("models/text", "models/nothing")
        ended = run("plan")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: precook.yaml:17: encoders.tokens.model: no such model: models/nothing\n")
        assert "hint: relative paths start at the config file's folder" in ended.err
        assert run("plan", "--encoder", "pixels").code == 0

    def test_a_drive_that_is_not_mounted_is_exit_code_1(self, built: Path) -> None:
        """An absent folder is an error with a hint, not an empty dataset, and nothing is forgotten."""
        (built / "data").rename(built / "away")
        before = everything(built / "cache" / "packs")
        for command in (["plan"], ["plan", "--json"], ["explain", "data/cats/p0.png"]):
            ended = run(*command)
            assert (ended.code, ended.out) == (1, "")
            assert ended.err.startswith("error: data/cats: no such folder\nhint: is the drive mounted?")
        assert everything(built / "cache" / "packs") == before
        (built / "away").rename(built / "data")
        assert "to build: nothing" in run("plan").out

    def test_names_cannot_steer_the_terminal(self, here: Path) -> None:
        """Newlines, escape sequences and bytes in names are shown escaped, each on its one line, and whole in JSON."""
        names = ["new\nline.png", "esc\x1b[31m.png", "\u202egnp.png", "\udcff.png"]
        (here / "data").mkdir()
        for name in names:
            (here / "data" / name).touch()
        picture(here / "data" / "good\x1b]0;owned\x07.png", 1)
        assert run("init", "data").code == 0
        ended = run("plan")
        assert not ESCAPES.search(ended.out + ended.err)
        assert len(re.findall(r"^  data/.*: empty file$", ended.out, re.MULTILINE)) == 4
        document = run("plan", "--json")
        assert document.out.isascii()
        assert {Path(one["path"]).name for one in document.document["failed"]} == set(names)
        for name in names:
            explained = run("explain", here / "data" / name)
            assert explained.out.endswith(": left out: empty file\n")
            assert not ESCAPES.search(explained.out)
        seen = plain(on_terminal("plan")).replace("\r", "")
        assert not ESCAPES.search(seen)
        assert not ESCAPES.search(run("explain", "data/good\x1b]0;owned\x07.png").out)


class TestExplain:
    """`precook explain`."""

    def test_a_picture_is_explained(self, built: Path) -> None:
        """Every entry with its key and state; a missing one with its reason and what differs."""
        change_config("max_length: 77", "max_length: 128")
        out = run("explain", "data/cats/p0.png").out
        assert out.startswith("data/cats/p0.png\n  concept  cats\n")
        assert re.search(r"\n  pixels, 64 as \d+x\d+: ready\n    key      [0-9a-f]{64}\n", out)
        missing = (
            r"tokens, line 1: .*picture 0, line 0.*: missing\n    key      [0-9a-f]{64}\n    reason   recipe changed\n"
        )
        assert re.search(missing, out)
        assert out.count("\n    differs  recipe.max_length: 77 → 128\n") == 2

    def test_programs_see_the_same(self, built: Path) -> None:
        """The JSON document has each entry with state, reason and differences."""
        change_config("max_length: 77", "max_length: 128")
        found = run("explain", "data/cats/p0.png", "--json").document
        assert (found["version"], found["path"], found["problems"]) == (1, "data/cats/p0.png", [])
        (sample,) = found["samples"]
        assert sample["concept"] == "cats"
        assert sample["image"] == precook.digest(built / "data/cats/p0.png").hex
        states = [(entry["encoder"], entry["state"], entry["reason"]) for entry in sample["entries"]]
        assert states == [("pixels", "ready", None), *[("tokens", "missing", "recipe changed")] * 2]
        with precook.open(built / "cache") as store:
            assert precook.Key.from_hex(sample["entries"][0]["key"]) in store
            assert precook.Key.from_hex(sample["entries"][1]["nearest"]) in store
        assert sample["entries"][1]["differences"] == [{"field": "recipe.max_length", "old": 77, "new": 128}]

    @pytest.mark.parametrize(
        ("file", "sample"),
        [
            ("data/cats/p1.txt", "data/cats/p1.png"),
            ("data/dogs/d0-masklabel.png", "data/dogs/d0.png"),
            ("data/../data/dogs/d1.png", "data/dogs/d1.png"),
        ],
    )
    def test_captions_and_masks_lead_to_their_sample(self, built: Path, file: str, sample: str) -> None:
        """Whichever file of a sample is named, the sample is explained; an absolute path will do, too."""
        for path in (file, built / file):
            (found,) = run("explain", path, "--json").document["samples"]
            assert Path(found["path"]) == Path(sample)

    def test_a_refused_file_is_explained(self, built: Path) -> None:
        """It is no sample, and the reason says why; the command itself has done what it should."""
        (built / "data/cats/empty.png").touch()
        ended = run("explain", "data/cats/empty.png")
        assert ended == Ended(0, "data/cats/empty.png: left out: empty file\n", "")
        found = run("explain", "data/cats/empty.png", "--json").document
        assert (found["problems"], found["samples"]) == (["empty file"], [])

    @pytest.mark.parametrize(
        ("path", "message", "hint"),
        [
            ("precook.yaml", "no source of pets", "name a picture, caption or mask"),
            ("data/cats", "no source of pets", "name a picture, caption or mask"),
            ("data/cats/nothing.png", "no such file", "paths start at the current directory"),
        ],
    )
    def test_what_is_no_source_is_exit_code_1(self, built: Path, path: str, message: str, hint: str) -> None:
        """A file that belongs to no concept, a folder, and one that is not there."""
        ended = run("explain", path)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"error: {path}: {message}\nhint: {hint}")

    def test_paths_start_where_the_user_is(self, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With --config the project may lie elsewhere."""
        monkeypatch.chdir(built / "data" / "cats")
        (found,) = run("explain", "p0.png", "--config", "../../precook.yaml", "--json").document["samples"]
        assert Path(found["path"]).samefile(built / "data/cats/p0.png")


class TestStatus:
    """`precook status` of a project."""

    def test_it_shows_store_snapshots_and_dataset(self, built: Path) -> None:
        """First what is stored, then what is frozen, then what `plan` says."""
        picture(built / "data/cats/new.png", 30)
        out = run("status").out
        store, _, rest = out.partition("\n\ndataset  samples  entries")
        assert store.startswith(f"store    {built / 'cache'}  (format 1)\nentries  11 in 1 pack\n")
        assert re.match(r" +size  shared  snapshots  latest  +made\npets  +4  +11  .*  +1  +1  .*\n\n", rest)
        assert steady(out).endswith(steady(run("plan", "--no-write").out))

    def test_programs_see_the_same(self, built: Path) -> None:
        """Snapshots and the dataset's counts stand beside those of the store."""
        picture(built / "data/cats/new.png", 30)
        cook()
        (built / "data/cats/p0.txt").write_text("another")
        found = run("status", "--json").document
        assert (found["version"], found["entries"]) == (1, 13)
        assert [(one["dataset"], one["number"]) for one in found["snapshots"]] == [("pets", 1), ("pets", 2)]
        files = sorted((built / "cache/snapshots/pets").iterdir())
        assert [one["bytes"] for one in found["snapshots"]] == [path.stat().st_size for path in files]
        assert all(one["id"] in path.name for one, path in zip(found["snapshots"], files, strict=True))
        assert all(re.fullmatch(r"[\d-]+T[\d:]+Z", one["created"]) for one in found["snapshots"])
        dataset = found["dataset"]
        assert (dataset["name"], dataset["samples"], dataset["error"]) == ("pets", 5, None)
        assert encoders(dataset, "ready", "missing")["tokens"] == [4, 1]

    def test_before_the_first_build_there_is_no_store(self, pets: Path) -> None:
        """The dataset is shown all the same, and nothing is made."""
        ended = run("status")
        assert ended.code == 0
        assert ended.out.startswith(f"store  {pets / 'cache'}  (none yet: the first build makes it)\n\npets: 4 samples")
        found = run("status", "--json").document
        assert (found["format"], found["entries"], found["dataset"]["samples"]) == (None, 0, 4)
        assert not (pets / "cache").exists()

    def test_an_absent_drive_does_not_hide_the_store(self, built: Path) -> None:
        """What is stored is shown, then the error; exit code 1."""
        (built / "data").rename(built / "away")
        ended = run("status")
        assert ended.code == 1
        assert "entries  11 in 1 pack\n" in ended.out
        assert ended.err.startswith("error: data/cats: no such folder\nhint: is the drive mounted?")
        ended = run("status", "--json")
        assert ended.code == 1
        assert ended.document["entries"] == 11
        assert ended.document["dataset"] == {"name": "pets", "error": "data/cats: no such folder"}

    def test_a_store_that_is_named_alone_is_shown_alone(self, built: Path) -> None:
        """With --store the config here is not asked; with both, the dataset is held against that store."""
        (built / "data").rename(built / "away")
        assert run("status", "--store", "cache").code == 0
        assert "dataset" not in run("status", "--store", "cache", "--json").document
        (built / "away").rename(built / "data")
        with precook.open("other") as other:
            other.put(precook.Key(bytes(32)), 1)
        found = run("status", "--store", "other", "--config", "precook.yaml", "--json").document
        assert (found["entries"], encoders(found["dataset"], "ready")["pixels"]) == (1, [0])


class TestStoreOfAConfig:
    """Commands about stores, in a project."""

    @pytest.mark.parametrize("command", ["ls --json", "verify --json", "reindex --json", "status --json"])
    def test_the_config_names_the_store(self, built: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        """The config here or the one that is named says where the store lies, from any directory."""
        (built / "cache").rename(built / "kept")
        change_config("store: cache", "store: kept")
        assert count(run(*command.split())) == 11
        (built / "sub").mkdir()
        monkeypatch.chdir(built / "sub")
        assert count(run(*command.split(), "--config", "../precook.yaml")) == 11

    @pytest.mark.parametrize("command", ["ls --json", "verify --json", "reindex --json", "status --json"])
    def test_a_store_that_is_named_wins(self, built: Path, command: str) -> None:
        """--store is taken before the config's, even where the config is broken."""
        with precook.open("other") as other:
            other.put(precook.Key(bytes(32)), 1)
        assert count(run(*command.split(), "--store", "other")) == 1
        change_config("store:", "stoer:")
        assert count(run(*command.split(), "--store", "other")) == 1

    def test_show_and_doctor_look_there_too(self, built: Path) -> None:
        """They need no other words to find it."""
        (built / "cache").rename(built / "kept")
        change_config("store: cache", "store: kept")
        key = run("ls", "-q", "--limit", "1").out.strip()
        assert run("show", key, "--json").document["key"] == key
        assert run("doctor", "--json").document["path"] == str(built / "kept")

    def test_no_store_yet_is_exit_code_10(self, pets: Path) -> None:
        """The hint says what makes one."""
        ended = run("ls")
        assert (ended.code, ended.out) == (10, "")
        assert ended.err == "error: cache: no store there\nhint: check the path; a store is made by its first build\n"


class TestManners:
    """What holds for every command of a project."""

    def test_none_of_them_imports_torch(self, pets: Path) -> None:
        """Planning needs no encoder; and what needs no config does not read one."""
        picture(pets / "more" / "1.png", 40)
        cook()
        commands = [["plan"], ["explain", "data/cats/p0.png"], ["status"], ["init", "more", "-o", "more.yaml"]]
        script = f"""if True:
            import sys
            from precook.cli.main import app
            assert not app(["verify", "--store", "cache"], standalone_mode=False)
            assert not [name for name in sys.modules if name.startswith(("precook.config", "yaml", "PIL"))]
            for command in {commands!r}:
                assert not app(command, standalone_mode=False)
            assert not {{"torch", "transformers", "diffusers"}} & sys.modules.keys()
        """
        subprocess.run([sys.executable, "-c", script], env=environment(), stdout=subprocess.DEVNULL, check=True)

    @pytest.mark.parametrize("command", [["plan"], ["explain", "data/cats/p0.png"], ["status"], ["init", "data"]])
    def test_bars_are_for_the_terminal_under_stderr(self, pets: Path, command: list[str]) -> None:
        """Progress is drawn while a person looks at stderr, wherever stdout goes, and nowhere else."""
        bar = "looking at pictures" if command[0] == "init" else "reading pictures"
        force = ["--force"] if command[0] == "init" else []
        with (pets / "out").open("w+") as out:
            assert bar in on_terminal(*command, *force, stdout=out.fileno())
            out.seek(0)
            assert bar not in out.read()
        shutil.rmtree(pets / "cache", ignore_errors=True)
        with (pets / "err").open("w+") as err:
            assert bar not in on_terminal(*command, *force, stderr=err.fileno())
            err.seek(0)
            assert bar not in err.read()
        shutil.rmtree(pets / "cache", ignore_errors=True)
        assert bar not in run(*command, *force).err

    def test_a_narrow_terminal_is_kept_to(self, pets: Path) -> None:
        """Lines are broken between words and go on inside their paragraph; a key stays whole, to be copied."""
        (pets / "data/cats/p0.txt").write_bytes(b"\xff\xff")
        with (pets / "err").open("w") as err:
            seen = plain(on_terminal("plan", columns=40, stderr=err.fileno()))
            explained = plain(on_terminal("explain", "data/cats/p1.png", columns=40, stderr=err.fileno()))
        assert max(len(line) for line in seen.splitlines()) <= 40
        assert re.search(r"^  data/cats/p0.txt: .*\n    \w", seen, re.MULTILINE)
        assert steady(" ".join(seen.split())) == steady(" ".join(run("plan").out.split()))
        assert re.search(r"^ +[0-9a-f]{64}$", explained, re.MULTILINE)

    @pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["explain", "data/cats/p0.png"], ["status"]])
    def test_a_pipe_that_nobody_reads_is_quiet(self, pets: Path, command: list[str]) -> None:
        """`precook plan | head -0` ends without a word."""
        reader, writer = os.pipe()
        os.close(reader)
        with spawn(*command, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            assert process.communicate()[1] == b""
        assert process.returncode == 141


def count(ended: Ended) -> int:
    """Entries that a command tells of."""
    assert ended.code == 0, ended.err
    found = ended.document["entries"]
    return len(found) if isinstance(found, list) else int(found)
