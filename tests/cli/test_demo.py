"""`precook demo`: its story is true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.commands import environment, run, spawn
from tests.support.pages import ROOT, check_session


class TestDemo:
    """`precook demo`."""

    def test_its_story_is_true(self, tmp_path: Path) -> None:
        """Each step encodes what its title says and no more, and the weights swapped back cost nothing."""
        for library in ("torch", "diffusers", "transformers"):
            pytest.importorskip(library, reason=f"{library} is not installed")
        with spawn("demo", tmp_path / "demo", "--json", stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            document = json.load(process.stdout)
        assert process.returncode == 0
        encoded = [
            tuple(int(found) for found in re.findall(r"^(?:latent|prompt|mask) +(\d+)", told["output"], re.MULTILINE))
            for step in document["steps"]
            for told in step["commands"]
            if told["command"] == "precook build"
        ]
        assert encoded == [(24, 25, 5), (0, 0, 0), (0, 1, 0), (1, 1, 0), (25, 0, 0), (0, 0, 0)]
        commands = Counter(told["command"] for step in document["steps"] for told in step["commands"])
        assert commands["precook plan"] == 2
        assert "latent: 25 recipe changed" in document["steps"][6]["commands"][1]["output"]
        batches = document["steps"][-2]["commands"][1]["output"]
        assert len(re.findall(r"'latent': \(\d, 4, \d+, \d+\).*'mask': \(\d, 1, \d+, \d+\)", batches)) == 3
        assert re.search(r"^shapes +25 .* 5 +5  ", document["steps"][-1]["commands"][0]["output"], re.MULTILINE)
        assert len(list((tmp_path / "demo" / "pictures").glob("*-masklabel.png"))) == 2
        printed = [(told["command"], told["output"]) for step in document["steps"] for told in step["commands"]]
        check_session(ROOT / "README.md", printed)

    def test_a_folder_with_something_in_it_is_refused(self, things: Path) -> None:
        """Exit code 2, and nothing is touched."""
        before = sorted(things.iterdir())
        for place in (things, things / "precook.yaml"):
            ended = run("demo", place)
            assert (ended.code, ended.out) == (2, "")
            assert re.fullmatch(r"error: .* exists already\nhint: .*`precook demo DIR`\n", ended.err)
        assert sorted(things.iterdir()) == before

    def test_without_the_libraries_it_names_the_extras(self, tmp_path: Path) -> None:
        """The error says what is missing and how to install it, and no folder is made."""
        script = f"""if True:
            import sys
            from importlib.machinery import PathFinder

            class Without:
                @staticmethod
                def find_spec(name, path=None, target=None):
                    return None if name in ("torch", "diffusers") else PathFinder.find_spec(name, path, target)

            sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
            from precook.cli.main import app
            app(["demo", {str(tmp_path / "demo")!r}])
        """
        ended = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1
        assert ended.stderr.startswith("error: the demo runs real models and needs torch")
        assert "hint: pip install 'precook[diffusers,transformers]'" in ended.stderr
        assert not (tmp_path / "demo").exists()
