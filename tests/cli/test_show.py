"""`precook show`: one entry, whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook import Key, digest
from precook.cli.entries import read_recipe
from precook.cli.show import outline
from tests.support.commands import VAE, flip, run
from tests.support.snapshots import packs


class TestShow:
    """`precook show`."""

    def test_it_shows_the_whole_entry(self, store: Path) -> None:
        """Key, recipe, labels, size, pack, row and checksum, and below them the tree with its numbers."""
        out = run("show", VAE.key(2).hex, "--store", store).out
        assert VAE.key(2).hex in out
        assert f"vae {VAE.hex[:8]}" in out
        assert re.search(r"dtype: float16\n", out)
        assert re.search(r"config:\n +layers: \[1, 2\]\n +scaling: 0.5\n", out)
        assert f"weights: digest {digest('weights').hex[:16]}…" in out
        assert "file: cats/2.jpg" in out
        assert re.search(r"pack +.*\.safetensors\n", out)
        assert re.search(r"row +2\n", out)
        assert re.search(r"checksum +ok\n", out)
        assert "latent  float16 [4 × 8 × 8]  512 B  numpy" in out  # noqa: RUF001
        assert "min 2  max 2  mean 2  std 0  no NaN, no inf" in out
        assert "crop    (64, 48)" in out

    def test_programs_see_the_whole_entry(self, store: Path) -> None:
        """The JSON document nests like the tree, each node with its type."""
        found = run("show", VAE.key(2).hex, "--store", store, "--json").document
        assert found["version"] == 1
        assert found["recipe"] == {
            "kind": "vae",
            "digest": VAE.hex,
            "data": {
                "config": {"layers": [1, 2], "scaling": 0.5},
                "dtype": "float16",
                "weights": {"$digest": digest("weights").hex},
            },
        }
        assert found["labels"] == {"file": "cats/2.jpg"}
        assert (found["row"], found["checksum"], found["copies"]) == (2, "ok", 1)
        assert Path(found["pack"]).is_file()
        latent, crop = found["tree"]["items"]
        statistics = {"of": "values", "min": 2.0, "max": 2.0, "mean": 2.0, "std": 0.0, "nan": 0, "inf": 0}
        assert latent == {
            "key": "latent",
            "type": "tensor",
            "library": "numpy",
            "dtype": "float16",
            "shape": [4, 8, 8],
            "bytes": 512,
            "statistics": statistics,
        }
        items = [{"type": "int", "value": 64}, {"type": "int", "value": 48}]
        assert crop == {"key": "crop", "type": "tuple", "items": items}

    @pytest.mark.parametrize("digits", [4, 5, 11, 63])
    def test_the_first_digits_are_enough(self, store: Path, digits: int) -> None:
        """Four digits or more, odd numbers too, in either case."""
        key = VAE.key(1).hex
        for given in (key[:digits], key[:digits].upper()):
            assert run("show", given, "--store", store, "--json").document["key"] == key

    def test_digits_that_fit_several_entries_are_refused(self, store: Path) -> None:
        """The error lists a few of them."""
        keys = [Key(bytes.fromhex("abcd" + f"{number:02x}" * 30)) for number in range(9)]
        with precook.open(store) as opened, opened.writer() as writer:
            for key in keys:
                writer.put(key, 1)
        ended = run("show", "abcd", "--store", store)
        assert (ended.code, ended.out) == (1, "")
        assert "error: more than one entry begins with abcd" in ended.err
        assert keys[0].hex[:16] in ended.err
        assert "and more" in ended.err
        assert run("show", "abcd03", "--store", store, "--json").document["key"] == keys[3].hex

    @pytest.mark.parametrize("digits", ["fedcba98", "f" * 64])
    def test_a_missing_entry_is_an_error(self, store: Path, digits: str) -> None:
        """Exit code 1 and a hint."""
        ended = run("show", digits, "--store", store)
        assert ended.code == 1
        assert ended.err.startswith("error: no entry")
        assert "hint: `precook ls`" in ended.err

    @pytest.mark.parametrize("text", ["abc", "xyz1", "0" * 65, "", "12 34"])
    def test_what_is_no_key_is_a_usage_error(self, store: Path, text: str) -> None:
        """Exit code 2."""
        ended = run("show", text, "--store", store)
        assert ended.code == 2
        assert "is not a key" in ended.err

    def test_a_damaged_entry_shows_its_shapes_and_no_numbers(self, store: Path) -> None:
        """Exit code 4; what cannot be trusted is not shown."""
        victim = next(pack for pack in packs(store) if b"latent" in pack.read_bytes())
        flip(victim, -1)
        ended = run("show", VAE.key(2).hex, "--store", store)
        assert ended.code == 4
        assert "damaged: its checksum does not match" in ended.out
        assert "float16 [4 × 8 × 8]" in ended.out  # noqa: RUF001
        assert "mean" not in ended.out
        found = run("show", VAE.key(2).hex, "--store", store, "--json").document
        assert found["checksum"] == "damaged"
        assert found["tree"]["items"][0]["statistics"] is None
        assert run("show", VAE.key(1).hex, "--store", store).code == 0

    def test_an_entry_known_to_be_damaged_says_so(self, store: Path) -> None:
        """After a builder has noted the damage the entry is a miss, and `show` tells why."""
        victim = next(pack for pack in packs(store) if b"latent" in pack.read_bytes())
        flip(victim, -1)
        with precook.open(store) as opened:
            assert opened.get(VAE.key(2), None) is None
        for digits in (VAE.key(2).hex, VAE.key(2).hex[:12]):
            ended = run("show", digits, "--store", store)
            assert ended.code == 4
            assert "is damaged: its checksum does not match" in ended.err

    def test_values_are_shortened_for_people_and_whole_for_programs(self, store: Path) -> None:
        """Long texts, bytes and lists are cut; JSON has all of them, and numbers JSON lacks are tagged."""
        key = VAE.key("long")
        tree = {
            "text": "word " * 100,
            "raw": b"\x00" * 99,
            "list": [{"n": number} for number in range(99)],
            "huge": 2**5000,
            "nan": float("nan"),
            3: None,
        }
        with precook.open(store) as opened:
            opened.put(key, tree)
        out = run("show", key.hex, "--store", store).out
        assert "(500 characters)" in out
        assert "(99 bytes)" in out
        assert "… 75 more" in out
        assert "an integer of 5,001 bits" in out
        assert max(len(line) for line in out.partition("\n\n")[2].splitlines()) < 100
        items = {
            item["key"]: item for item in run("show", key.hex, "--store", store, "--json").document["tree"]["items"]
        }
        assert items["text"] == {"key": "text", "type": "str", "value": "word " * 100}
        assert len(items["list"]["items"]) == 99
        assert items["nan"]["value"] == {"$float": "nan"}
        assert items[3] == {"key": 3, "type": "None", "value": None}

    def test_a_tree_that_is_one_value_is_shown(self, store: Path) -> None:
        """An entry need not be a dict."""
        with precook.open(store) as opened:
            opened.put(VAE.key("tensor"), np.float64([[1, 2]]))
            opened.put(VAE.key("text"), "hello")
        assert "float64 [1 × 2]" in run("show", VAE.key("tensor").hex, "--store", store).out  # noqa: RUF001
        assert "\n'hello'\n" in run("show", VAE.key("text").hex, "--store", store).out

    def test_bad_numbers_are_counted(self, store: Path) -> None:
        """NaN and infinities are counted, and the rest is measured without them."""
        key = VAE.key("bad")
        with precook.open(store) as opened:
            opened.put(key, np.float32([np.nan, np.inf, -np.inf, np.nan, 1, 3]))
        assert "min 1  max 3  mean 2  std 1  2 NaN  2 inf" in run("show", key.hex, "--store", store).out

    def test_recipes_that_cannot_be_read_are_shown_as_such(self) -> None:
        """Bytes from a hostile index never end a command."""
        for form in (b"\xff", b"[]", b"1", b"[1,2]", b"[" * 100_000, b'"ab"'):
            found = read_recipe(form)
            assert found is not None
            assert isinstance(found.name, str)
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep]
        for data in (
            {"$digest": 3},
            {"$bytes": 7},
            {"$str": "zz"},
            {"$dict": 3},
            {"$dataclass": []},
            {"$enum": 3},
            deep,
        ):
            assert outline({"a": data, "b": 1})
