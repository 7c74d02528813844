"""`precook plan`: what a build would do, and why."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import precook
from precook.plan.ready import record_failure
from tests.support.commands import Ended, change_config, cook, encoders, everything, read_only, run, steady
from tests.support.projects import picture


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
