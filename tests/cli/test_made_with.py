"""Made with: versions of libraries and of own code are recorded with entries, and told where today's are others."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import PIL
import pytest

import precook
from precook.encode import registry
from precook.identity import versions
from precook.sources import pictures
from tests.sources.test_extra_formats import saved
from tests.support.commands import change_config, encoders, environment, report, run
from tests.support.projects import OWN_ENCODER, dataset, picture, project

OLD, NEW = "12.3.0", "99.0.0"
ADVICE = "`precook verify --recompute 20%` compares, `version: 2` in encoders.{} makes them anew"


@pytest.fixture
def old_pillow(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Pillow that says that it is an older one."""
    monkeypatch.setattr(PIL, "__version__", OLD)
    return monkeypatch


@pytest.fixture(autouse=True)
def no_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture was decoded yet by anything but Pillow, whatever other tests have done in this process."""
    readers = {name: reader for name, reader in pictures._READERS.items() if name not in pictures.DECODERS}
    monkeypatch.setattr(pictures, "_READERS", readers)


def renew_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on it says that it is a newer one."""
    monkeypatch.setattr(PIL, "__version__", NEW)


def built_here() -> None:
    """Build the project in this folder."""
    assert run("build").code == 0


def is_installed(name: str) -> bool:
    """Whether a library is here."""
    return importlib.util.find_spec(name) is not None


def told(*words: str) -> list[str]:
    """The lines in which a command tells of other versions."""
    ended = run(*words)
    assert ended.code == 0, ended.err
    return [line.strip() for line in ended.out.splitlines() if "today" in line or "has changed since" in line]


def told_anew(folder: Path) -> list[str]:
    """What a plan tells that imports the modules of a folder anew, as another process would."""
    for name, module in list(sys.modules.items()):
        if str(folder) in str(getattr(module, "__file__", None)):
            del sys.modules[name]
    return told("plan")


def changes(name: str) -> Any:
    """What a plan for programs says about the versions of an encoder."""
    return encoders(run("plan", "--json").document, "made_with")[name][0]


class TestLibraries:
    """Versions of libraries."""

    def test_the_same_versions_are_no_news(self, things: Path) -> None:
        """Right after a build nothing differs, and programs see what would be used today."""
        built_here()
        for words in ("plan", "status", "explain data/p0.png"):
            assert told(*words.split()) == []
        made = changes("pixels")
        assert made["today"] == {"precook": precook.__version__, "Pillow": PIL.__version__}
        assert (made["different_entries"], made["changes"]) == (0, [])

    @pytest.mark.parametrize(("ending", "library"), [("heic", "pillow-heif"), ("jxl", "pillow-jxl-plugin")])
    def test_decoders_of_pictures_are_recorded_where_they_were_needed(
        self, tmp_path: Path, ending: str, library: str
    ) -> None:
        """They decide pixels as Pillow does; entries of other pictures do not name them, and keep their keys."""
        dataset(tmp_path / "data", 2)
        sections: dict[str, Any] = {"encoders": {"pixels": {"uses": "image"}}}
        with project(tmp_path, **sections) as made:
            made.build()
            before = {entry.key: made.store.locate(entry.key).made for entry in made.plan().ready}
            (tmp_path / f"data/other.{ending}").write_bytes(saved(ending)[0])
            real = importlib.metadata.version(library)
            made.build()
            after = {entry.key: made.store.locate(entry.key).made for entry in made.plan().ready}
        assert before.keys() < after.keys()
        assert {key: after[key] for key in before} == before
        assert all(library not in recorded for recorded in before.values())
        (key,) = after.keys() - before.keys()
        assert after[key][library] == real
        assert not versions.compare_versions(after[key], before[next(iter(before))])
        (change,) = versions.compare_versions({**after[key], library: "0.1"}, {})
        assert (change.name, change.made, change.today) == (library, ("0.1",), real)

    @pytest.mark.parametrize("words", ["plan", "plan --no-write", "status"])
    def test_another_version_is_told_once(self, things: Path, old_pillow: pytest.MonkeyPatch, words: str) -> None:
        """For the encoder that it matters to, with the number of entries and what to do; texts never saw Pillow."""
        built_here()
        renew_pillow(old_pillow)
        wanted = f"pixels: made with Pillow {OLD}, today {NEW} (6 entries); {ADVICE.format('pixels')}"
        assert told(*words.split()) == [wanted]

    def test_programs_are_told_too(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """In the documents of plan, status and explain."""
        built_here()
        renew_pillow(old_pillow)
        wanted = [{"name": "Pillow", "made": [OLD], "today": NEW}]
        assert (changes("pixels")["different_entries"], changes("pixels")["changes"]) == (6, wanted)
        assert changes("words")["changes"] == []
        dataset_document = run("status", "--json").document["dataset"]
        assert encoders(dataset_document, "made_with")["pixels"][0]["changes"] == wanted
        (sample,) = run("explain", "data/p0.png", "--json").document["samples"]
        pixels, words = sample["entries"]
        assert pixels["changes"] == wanted
        assert pixels["made_with"] == {"Pillow": OLD, "precook": precook.__version__}
        assert words["changes"] == []

    def test_explain_tells_it_of_an_entry(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """Beside the entry, and what to do at the end."""
        built_here()
        renew_pillow(old_pillow)
        assert told("explain", "data/p0.png") == [f"note     made with Pillow {OLD}, today {NEW}"]
        assert f"pixels: {ADVICE.format('pixels')}" in run("explain", "data/p0.png").out

    def test_nothing_is_made_anew_by_itself(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """A build with another version finds everything ready, and says with what it was made."""
        built_here()
        renew_pillow(old_pillow)
        assert report()["encoded"] == {"pixels": 0, "words": 0}
        assert told("build") == told("plan") != []

    def test_another_build_of_the_same_version_is_no_news(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """Behind a plus sign stands for which device a library was built, not another version."""
        built_here()
        old_pillow.setattr(PIL, "__version__", f"{OLD}+cuda")
        assert told("plan") == []

    def test_precooks_own_version_is_recorded_and_no_news(self, things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What our own code decides has a version in the key."""
        built_here()
        monkeypatch.setattr(precook, "__version__", NEW)
        assert told("plan") == []
        (sample,) = run("explain", "data/p0.png", "--json").document["samples"]
        assert sample["entries"][0]["made_with"]["precook"] != NEW

    def test_each_encoder_has_its_own_libraries(self, pets: Path) -> None:
        """A text never meets Pillow, nor a mask a tokenizer; installed ones are known without being imported."""
        today = {name: set(made[0]["today"]) for name, made in encoders(self.planned(), "made_with").items()}
        assert today == {
            "pixels": {"precook", "Pillow"},
            "tokens": {"precook", *filter(is_installed, ("transformers", "tokenizers"))},
            "mask": {"precook", "Pillow"},
        }
        assert set(registry._LIBRARIES) == set(registry._INPUTS), "an encoder does not say which libraries matter"

    def planned(self) -> Any:
        """The document of a plan in a process of its own, which has loaded none of the large libraries."""
        code = (
            "import sys\nfrom precook.cli.main import app\n"
            "try:\n    app(['plan', '--json'])\n"
            "finally:\n    assert not {'torch', 'transformers', 'diffusers', 'tokenizers'} & set(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=True)
        return json.loads(done.stdout)

    def test_an_entry_shows_what_it_was_made_with(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """`precook show`, for people and for programs."""
        built_here()
        with precook.load("precook.yaml") as opened:
            key = opened.plan(encoders=["pixels"]).ready.keys()[0]
        shown = run("show", key.hex)
        assert f"Pillow: {OLD}" in shown.out
        assert run("show", key.hex, "--json").document["made_with"]["Pillow"] == OLD

    def test_entries_of_another_dataset_are_not_told(
        self, tmp_path: Path, old_pillow: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both lie in one store under one recipe; each plan speaks of its own entries."""
        monkeypatch.chdir(tmp_path)
        for number, name in enumerate(("first", "second")):
            picture(tmp_path / name / "a.png", number)
            (tmp_path / f"{name}.yaml").write_text(
                f"dataset: {name}\nconcepts: [{{name: a, path: {name}}}]\n"
                "image: {resolutions: [64], step: 16}\nencoders:\n  pixels: {uses: image}\n"
            )
            assert run("build", "--config", f"{name}.yaml").code == 0
            renew_pillow(old_pillow)
        assert "compares" not in run("plan", "--config", "second.yaml").out
        assert len(told("plan", "--config", "first.yaml")) == 1

    def test_a_feed_warns_and_one_of_a_snapshot_does_not(
        self, tmp_path: Path, old_pillow: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whoever trains with the config is told once; a snapshot has no encoders, and nothing to compare with."""
        dataset(tmp_path / "data", 2)
        with project(tmp_path, encoders={"pixels": {"uses": "image"}}) as opened:
            opened.build()
            renew_pillow(old_pillow)
            with opened.store.snapshot("test").feed(batch_size=1):
                assert caplog.messages == []
            with opened.feed(batch_size=1):
                (message,) = caplog.messages
        assert message.startswith(f"test: pixels: made with Pillow {OLD}, today {NEW} (2 entries); ")

    def test_a_live_feed_records_versions(self, tmp_path: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """What a batch lacked was made with something, too."""
        pytest.importorskip("torch", reason="torch is not installed")
        dataset(tmp_path / "data", 2)
        with project(tmp_path, encoders={"pixels": {"uses": "image"}}) as opened:
            with opened.feed(batch_size=1, on_missing="encode") as feed:
                list(feed.epoch(0))
            renew_pillow(old_pillow)
            (difference,) = opened.plan().version_differences
            assert (difference.entries, difference.changes[0].made) == (2, (OLD,))


class TestCarriedOver:
    """Whatever moves entries moves what they were made with."""

    @pytest.fixture
    def mixed(self, things: Path, old_pillow: pytest.MonkeyPatch) -> Path:
        """Six pictures made with an old Pillow and two with a new one, which is today's."""
        built_here()
        renew_pillow(old_pillow)
        for number in (6, 7):
            picture(things / "data" / f"p{number}.png", number)
        built_here()
        assert self.counted() == 6
        return things

    def counted(self, *options: str) -> int:
        """How many entries a plan tells of, all of which were made with the old one."""
        document = run("plan", "--json", *options).document
        made = encoders(document, "made_with")["pixels"][0]
        assert made["changes"] == ([{"name": "Pillow", "made": [OLD], "today": NEW}] if made["changes"] else [])
        count: int = made["different_entries"]
        return count

    def test_compact_keeps_it_entry_by_entry(self, mixed: Path) -> None:
        """Rows of one recipe that were made with different versions share a pack."""
        assert run("compact", "--yes").code == 0
        assert len(list((mixed / "cache" / "packs").rglob("*.safetensors"))) == 1
        assert self.counted() == 6
        assert run("verify").code == 0

    def test_a_removal_counts(self, mixed: Path) -> None:
        """Entries that are gone are not told, also before their pack is rewritten and after."""
        (mixed / "data" / "p0.png").unlink()
        built_here()
        assert run("gc", "--grace", "0s", "--yes").code == 0
        assert self.counted() == 5
        assert run("compact", "--yes").code == 0
        assert self.counted() == 5

    @pytest.mark.parametrize("how", ["command", "deleted"])
    def test_a_new_index_finds_it(self, mixed: Path, how: str) -> None:
        """It stands in the packs, and an index that is made anew has it from there."""
        if how == "command":
            assert run("reindex").code == 0
        else:
            for file in (mixed / "cache").glob("index.sqlite*"):
                file.unlink()
        assert self.counted() == 6

    def test_an_archive_carries_it(self, mixed: Path) -> None:
        """Into a new store, and into one that has some of the entries."""
        assert run("export", "things", "things.tar").code == 0
        shutil.rmtree(mixed / "cache")
        assert run("import", "things.tar").code == 0
        assert self.counted() == 6
        assert run("import", "things.tar").code == 0
        assert self.counted() == 6

    def test_shards_say_it(self, mixed: Path) -> None:
        """For each encoder, what its entries were made with."""
        assert run("export", "things", "plain", "--as", "safetensors").code == 0
        manifest = json.loads((mixed / "plain" / "manifest.json").read_text())
        made = manifest["encoders"]["pixels"]["made_with"]
        assert sorted(one["Pillow"] for one in made) == [OLD, NEW]

    def test_entries_that_say_nothing_are_not_counted(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """Beside some that do, under the same recipe."""
        with precook.load("precook.yaml") as opened:
            entries = opened.plan(encoders=["pixels"]).missing
            recipe = opened.plan().encoders["pixels"].wants.encoding.recipe
            opened.store.put(entries[0].key, 1, recipe=recipe)
        built_here()
        renew_pillow(old_pillow)
        assert self.counted() == 5

    def test_a_pack_that_says_nothing_is_no_news(self, pets: Path) -> None:
        """Entries that somebody put by hand, or that an older precook made, were made with nobody knows what."""
        with precook.load("precook.yaml") as opened, opened.store.writer() as writer:
            plan = opened.plan()
            for entry in plan.missing:
                writer.put(entry.key, 1, recipe=plan.encoders[entry.encoder].wants.encoding.recipe)
        assert told("plan") == []


class TestOwnCode:
    """The source of an own encoder."""

    @pytest.fixture
    def helped(self, things: Path) -> Path:
        """The encoder uses a module beside it, and is built."""
        code = (things / "encoders.py").read_text()
        (things / "encoders.py").write_text(code.replace("import os, sys", "import os, sys\nfrom helper import VALUE"))
        (things / "helper.py").write_text("VALUE = 1\n")
        (things / "unrelated.py").write_text("VALUE = 1\n")
        built_here()
        assert told_anew(things) == []
        return things

    @pytest.mark.parametrize("module", ["encoders", "helper"])
    def test_an_edit_is_told(self, helped: Path, module: str) -> None:
        """Of its own module and of one that it imports; its entries stay ready."""
        with (helped / f"{module}.py").open("a") as code:
            code.write("# another line\n")
        wanted = f"words: its code has changed since: {module} (6 entries); {ADVICE.format('words')}"
        assert told_anew(helped) == [wanted]
        assert encoders(run("plan", "--json").document, "ready", "missing")["words"] == [6, 0]

    def test_an_edit_elsewhere_is_not(self, helped: Path) -> None:
        """A module that nothing leads to has no part in it."""
        (helped / "unrelated.py").write_text("VALUE = 2\n")
        assert told_anew(helped) == []

    def test_without_its_code_nothing_is_said(self, helped: Path) -> None:
        """`--no-code` looks at no own class, and so tells nothing of it."""
        (helped / "helper.py").write_text("VALUE = 2\n")
        ended = run("plan", "--no-code")
        assert ended.code == 0
        assert "has changed" not in ended.out

    def test_a_package_is_followed_by_its_relative_imports(self, things: Path) -> None:
        """`from .parts import x` and `from . import y` lead to files of the package."""
        package = things / "mine"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "parts.py").write_text("x = 1\n")
        (package / "more.py").write_text("y = 1\n")
        code = (things / "encoders.py").read_text()
        (package / "words.py").write_text("from . import more\nfrom .parts import x\n" + code)
        change_config("encoders:Words", "mine.words:Words")
        built_here()
        assert told_anew(things) == []
        (package / "parts.py").write_text("x = 2\n")
        (package / "more.py").write_text("y = 2\n")
        (line,) = told_anew(things)
        assert line.startswith("words: its code has changed since: mine.more, mine.parts (6 entries)")

    def test_an_object_is_told_like_a_class(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An encoder that was given to Python has a module, too; its identity is what makes entries anew."""
        script = tmp_path / "script.py"
        script.write_text(
            "import precook\n"
            f"{OWN_ENCODER}"
            "sections = {'concepts': [{'name': 'a', 'path': 'data'}], 'dataset': 'a', 'encoders': {'own': Own()}}\n"
            "with precook.Project(**sections) as project:\n"
            "    print(*project.plan().version_differences, sep='\\n')\n"
            "    project.build()\n"
        )
        dataset(tmp_path / "data", 1)

        def run_script() -> str:
            done = subprocess.run(
                [sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
            )
            return done.stdout.strip()

        assert run_script() == ""
        script.write_text(script.read_text() + "# edited\n")
        assert run_script() == (
            "own: its code has changed since: __main__ (2 entries); `precook verify --recompute 20%` compares,"
            " another value in its identity() makes them anew"
        )


class TestVersion:
    """`version:` of an encoder's section."""

    def test_another_version_makes_its_entries_anew(self, things: Path) -> None:
        """Of that encoder and of no other; the first one is not lost."""
        built_here()
        change_config("{uses: image}", "{uses: image, version: 2}")
        change_config("batch_size: 2", 'batch_size: 2, version: "b"')
        plan = run("plan")
        assert encoders(run("plan", "--json").document, "ready", "missing") == {"pixels": [0, 6], "words": [0, 6]}
        assert "pixels: 6 recipe changed (user_version: absent → 2)" in plan.out
        change_config(", version: 2", "")
        assert encoders(run("plan", "--json").document, "ready", "missing")["pixels"] == [6, 0]

    def test_the_advice_counts_on(self, things: Path, old_pillow: pytest.MonkeyPatch) -> None:
        """The next number after the one that stands there; for a word, another one."""
        change_config("{uses: image}", "{uses: image, version: 2}")
        built_here()
        change_config("{uses: image, version: 2}", '{uses: image, version: "2"}')
        renew_pillow(old_pillow)
        assert "`version: 3` in encoders.pixels makes them anew" in run("plan").out
        change_config('version: "2"', "version: two")
        built_here()
        old_pillow.setattr(PIL, "__version__", OLD)
        assert "another `version:` in encoders.pixels makes them anew" in run("plan").out

    @pytest.mark.parametrize("value", ["1.10", "true", "[1]", '""'])
    def test_other_values_are_refused(self, things: Path, value: str) -> None:
        """A number with a point would lose its last zero; a version is text or a whole number."""
        change_config("{uses: image}", f"{{uses: image, version: {value}}}")
        ended = run("plan")
        assert ended.code == 2
        assert "encoders.pixels.version: must" in ended.err

    def test_a_constructor_that_asks_for_it_gets_it(self, tmp_path: Path) -> None:
        """It is part of the key all the same: nobody has to know what the class makes of it."""
        dataset(tmp_path / "data", 1)
        section = {"uses": "tests.support.projects:Words", "version": 7}
        keys = []
        for encoder in (section, {**section, "version": 8}):
            with project(tmp_path, encoders={"words": encoder}) as opened:
                (planned,) = opened.plan().encoders.values()
                keys.append(planned.wants.encoding.recipe.data)
        assert keys == [{"identity": {"version": number}, "user_version": str(number)} for number in (7, 8)]

    def test_any_other_constructor_does_not(self, things: Path) -> None:
        """`encoders:Words` takes no version, and has another key with one."""
        change_config("batch_size: 2", "batch_size: 2, version: 5")
        built_here()
        with precook.load("precook.yaml") as opened:
            recipe = opened.plan(encoders=["words"]).encoders["words"].wants.encoding.recipe
        assert recipe.data == {"identity": {"encoder": "words"}, "user_version": "5"}


class TestTwoEnvironments:
    """A Pillow that is really another one."""

    @pytest.fixture
    def other_pillow(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with an older Pillow in it, which an environment has in front of the one here."""
        folder = tmp_path_factory.mktemp("pillow")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        wanted = ["--only-binary", ":all:", "--target", str(folder), f"Pillow=={OLD}"]
        quick = {**os.environ, "PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "20"}
        done = subprocess.run([*pip, *wanted], env=quick, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"Pillow {OLD} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
        return folder

    def test_a_plan_tells_that_the_other_one_made_them(self, tmp_path: Path, other_pillow: Path) -> None:
        """Built in one environment and planned in another; back in the first there is nothing to tell."""
        dataset(tmp_path / "data", 2)
        (tmp_path / "precook.yaml").write_text(
            "dataset: things\nconcepts: [{name: things, path: data}]\nimage: {resolutions: [64], step: 16}\n"
            "text: {empty_prompt: false}\nencoders:\n  pixels: {uses: image}\n"
        )
        here = environment()
        there = {**here, "PYTHONPATH": os.pathsep.join([str(other_pillow), here["PYTHONPATH"]])}

        def precook_in(env: dict[str, str], *words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "precook", *words],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
            return done.stdout

        precook_in(there, "build")
        assert f"pixels: made with Pillow {OLD}, today {PIL.__version__} (2 entries); " in precook_in(here, "plan")
        assert "made with" not in precook_in(there, "plan")
