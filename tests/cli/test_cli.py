"""The command line: what each command says, to people and to programs, and how it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook import Key, Recipe, digest
from precook.cli.entries import read_recipe
from precook.cli.show import outline
from precook.cli.tree import statistics
from precook.store.dtypes import DTYPES
from tests.support.commands import run

VAE = Recipe("vae", {"weights": digest("weights"), "dtype": "float16", "config": {"scaling": 0.5, "layers": (1, 2)}})
TEXT = Recipe("text encoder", {"max_length": 77})
EVIL = "\x1b]0;owned\x07[bold red]x[/]\n\u202egnp.exe"
HOUR = 3600
COMMANDS = ["status", "ls", f"show {VAE.key(0).hex}", "verify", "doctor", "reindex"]
"""Every command that needs a store and no project, as it is used on the store below."""
NAMES = ["init", "plan", "build", "explain", "status", "ls", "show", "verify", "snapshots", "export", "import", "adopt"]
NAMES += ["doctor", "reindex", "gc", "evict", "prune", "clear", "compact", "leases", "demo"]
"""Every command."""


def spawn(*args: object, **options: Any) -> subprocess.Popen[bytes]:
    """Run a command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "precook", *map(str, args)], env=environment(), **options)


def environment() -> dict[str, str]:
    """This environment, with the package under test on the path, buffered output and a terminal that knows colours."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**plain, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", "COLUMNS": "80"}


def on_terminal(*commands: list[str]) -> str:
    """What commands write to a terminal of 80 columns, one after the other."""
    script = f"from precook.cli.main import app\nfor command in {commands!r}: app(command, standalone_mode=False)"
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    with subprocess.Popen([sys.executable, "-c", script], env=environment(), **streams):
        os.close(slave)
        return read_terminal(master)


def read_terminal(master: int) -> str:
    """Everything that is written to a terminal until nobody has it open any more; closes our end."""
    written = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(master)
    return written.decode()


def put_aged(path: Path, key: Key, tree: Any, *, age: int) -> None:
    """Put an entry that the index takes to be so many seconds old."""
    with precook.open(path) as opened:
        opened.put(key, tree, recipe=VAE)
        (pack,) = (row.pack for row in opened.entries() if row.key == key.bytes)
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        index.execute("UPDATE pack SET created = created - ? WHERE id = ?", (age, bytes.fromhex(pack)))
        index.commit()


def packs(path: Path) -> list[Path]:
    """The packs of a store, by name."""
    return sorted(path.glob("packs/*/*.safetensors"))


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file; negative offsets count from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def everything(path: Path) -> dict[str, Any]:
    """Every file below a directory with its content and its times."""
    return {
        str(place): (place.stat().st_mtime_ns, place.read_bytes() if place.is_file() else None)
        for place in sorted([path, *path.rglob("*")])
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two packs: three latents, then two texts and an entry without a recipe."""
    path = tmp_path / "cache"
    with precook.open(path) as opened:
        with opened.writer() as writer:
            for number in range(3):
                latent = np.full((4, 8, 8), number, np.float16)
                tree = {"latent": latent, "crop": (64, 48)}
                writer.put(VAE.key(number), tree, recipe=VAE, labels={"file": f"cats/{number}.jpg"})
        with opened.writer() as writer:
            for text in ("a cat", "two dogs"):
                writer.put(TEXT.key(text), {"ids": np.arange(len(text)), "text": text}, recipe=TEXT)
            writer.put(Key(bytes(32)), [np.zeros(3, np.float32)])
    return path


class TestStatus:
    """`precook status`."""

    def test_it_counts_what_the_store_holds(self, store: Path) -> None:
        """The JSON document has the store's own counts, as integers."""
        with precook.open(store) as opened:
            stats = opened.stats()
        found = run("status", "--store", store, "--json").document
        assert found["version"] == 1
        assert (found["entries"], found["packs"], found["format"]) == (6, 2, 1)
        assert found["logical_bytes"] == stats.payload_bytes
        assert found["disk_bytes"] == sum(pack.stat().st_size for pack in packs(store))
        assert found["overhead_bytes"] == found["disk_bytes"] - found["logical_bytes"]
        assert found["index_bytes"] > 0
        assert found["damaged_entries"] == found["unusable_packs"] == []

    def test_it_counts_by_recipe(self, store: Path) -> None:
        """Each recipe has its kind, digest, entries and newest time; entries without one come under null."""
        found = {item["kind"]: item for item in run("status", "--store", store, "--json").document["recipes"]}
        assert {kind: item["entries"] for kind, item in found.items()} == {"vae": 3, "text encoder": 2, None: 1}
        assert found["vae"]["digest"] == VAE.hex
        assert found["vae"]["bytes"] > 3 * 512
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["vae"]["newest"])

    def test_people_see_the_largest_recipe_first(self, store: Path) -> None:
        """The table has one line for each recipe, by size."""
        ended = run("status", "--store", store)
        assert "entries  6 in 2 packs" in ended.out
        lines = [line.split("  ")[0] for line in ended.out.splitlines()]
        assert lines.index("vae") < lines.index("text encoder") < lines.index("no recipe")
        assert VAE.hex[:8] in ended.out
        assert (ended.code, ended.err) == (0, "")

    def test_it_sees_what_a_builder_at_work_has_stored(self, store: Path) -> None:
        """Entries that were committed by a process that still runs are counted, and it goes on unharmed."""
        with precook.open(store) as opened:
            opened.put(VAE.key("new"), np.zeros(3))
            assert run("status", "--store", store, "--json").document["entries"] == 7
            opened.put(VAE.key("newer"), np.zeros(3))
            assert len(run("ls", "--store", store, "-q").out.split()) == 8

    def test_damaged_entries_are_listed(self, store: Path) -> None:
        """An entry that was found damaged when it was read is named, with the reason."""
        victim = next(pack for pack in packs(store) if b'"vae"' in pack.read_bytes() or b"vae" in pack.read_bytes())
        flip(victim, -1)
        with precook.open(store) as opened:
            missing = [key for key in (VAE.key(i) for i in range(3)) if opened.get(key, None) is None]
        assert len(missing) == 1
        ended = run("status", "--store", store)
        assert "1 damaged entry" in ended.out
        assert missing[0].hex[:16] in ended.out
        assert "hint: `precook verify`" in ended.err
        found = run("status", "--store", store, "--json").document["damaged_entries"]
        assert found == [{"key": missing[0].hex, "reason": "its checksum does not match"}]

    def test_unusable_packs_are_listed_once(self, store: Path) -> None:
        """A pack whose head is damaged is named on stdout, and not again as a warning."""
        victim = packs(store)[0]
        flip(victim, 60)
        (store / "index.sqlite").unlink()
        ended = run("status", "--store", store)
        assert "1 unusable pack\n" in ended.out
        assert victim.stem[:16] in ended.out
        assert victim.stem not in ended.err
        (found,) = run("status", "--store", store, "--json").document["unusable_packs"]
        assert found["pack"] == victim.stem
        assert str(victim) not in found["reason"]


class TestLs:
    """`precook ls`."""

    def test_it_lists_every_entry_in_order_of_keys(self, store: Path) -> None:
        """-q prints whole keys and nothing else."""
        ended = run("ls", "--store", store, "-q")
        with precook.open(store) as opened:
            assert ended.out.split() == [row.key.hex() for row in opened.entries()]
        assert len(ended.out.split()) == 6
        assert ended.err == ""

    def test_people_see_size_age_and_recipe(self, store: Path) -> None:
        """The table has a heading and a line for each entry."""
        heading, *lines = run("ls", "--store", store).out.splitlines()
        assert heading.split() == ["key", "size", "written", "recipe"]
        assert len(lines) == 6
        assert lines[0].startswith("0" * 16)
        assert lines[0].endswith("no recipe")
        assert sum(line.endswith(f"vae {VAE.hex[:8]}") for line in lines) == 3

    def test_programs_see_everything(self, store: Path) -> None:
        """Each entry in the JSON document has its key, bytes, time, recipe and packs."""
        document = run("ls", "--store", store, "--json").document
        assert document["version"] == 1
        found = {item["key"]: item for item in document["entries"]}
        entry = found[VAE.key(0).hex]
        assert entry["recipe"] == {"kind": "vae", "digest": VAE.hex}
        assert entry["bytes"] >= 512
        assert entry["created"].endswith("Z")
        assert [(store / "packs" / pack[:2] / f"{pack}.safetensors").is_file() for pack in entry["packs"]] == [True]
        assert found["0" * 64]["recipe"] is None

    @pytest.mark.parametrize("wanted", ["vae", VAE.hex, VAE.hex[:4], VAE.hex[:9].upper()])
    def test_a_recipe_is_chosen_by_kind_or_digest(self, store: Path, wanted: str) -> None:
        """The whole kind, or the first digits of the digest."""
        assert set(run("ls", "--store", store, "-q", "--recipe", wanted).out.split()) == {
            VAE.key(number).hex for number in range(3)
        }

    def test_an_unknown_recipe_is_an_error_that_names_the_known_ones(self, store: Path) -> None:
        """A misspelt recipe must not look like an empty store."""
        ended = run("ls", "--store", store, "--recipe", "vea")
        assert ended.code == 1
        assert "error: no recipe here has the kind or digest 'vea'" in ended.err
        assert f"vae {VAE.hex[:8]}" in ended.err

    def test_sizes_choose_entries(self, store: Path) -> None:
        """--min-size and --max-size include their ends."""
        sizes = {item["key"]: item["bytes"] for item in run("ls", "--store", store, "--json").document["entries"]}
        for size in sorted(set(sizes.values())):
            large = run("ls", "--store", store, "-q", "--min-size", f"{size}B").out.split()
            small = run("ls", "--store", store, "-q", "--max-size", f"{size}B").out.split()
            assert set(large) == {key for key, nbytes in sizes.items() if nbytes >= size}
            assert set(small) == {key for key, nbytes in sizes.items() if nbytes <= size}
        assert run("ls", "--store", store, "-q", "--min-size", "1MiB").out == ""

    def test_ages_choose_entries(self, store: Path) -> None:
        """--older-than and --newer-than split the store in two."""
        old = VAE.key("old")
        put_aged(store, old, np.zeros(3), age=30 * HOUR)
        assert run("ls", "--store", store, "-q", "--older-than", "1d").out.split() == [old.hex]
        newer = run("ls", "--store", store, "-q", "--newer-than", "1d").out.split()
        assert len(newer) == 6
        assert old.hex not in newer
        assert "30 hours ago" in run("ls", "--store", store, "--older-than", "1d").out

    def test_sorting_puts_the_largest_or_newest_first(self, store: Path) -> None:
        """With --limit the first ones of that order are kept."""
        old, oldest = VAE.key("old"), VAE.key("oldest")
        put_aged(store, old, np.zeros(1000), age=30 * HOUR)
        put_aged(store, oldest, np.zeros(1), age=60 * HOUR)
        by_age = run("ls", "--store", store, "-q", "--sort", "age").out.split()
        assert by_age[-2:] == [old.hex, oldest.hex]
        by_size = run("ls", "--store", store, "-q", "--sort", "size").out.split()
        assert by_size[0] == old.hex
        for sort, expected in (("age", by_age), ("size", by_size), ("key", sorted(by_age))):
            assert run("ls", "--store", store, "-q", "--sort", sort, "--limit", "3").out.split() == expected[:3]

    def test_a_key_in_two_packs_is_listed_once(self, store: Path, tmp_path: Path) -> None:
        """What two builders wrote is one entry with two packs."""
        with precook.open(tmp_path / "other") as other:
            other.put(VAE.key(0), np.zeros(3))
        (pack,) = packs(tmp_path / "other")
        (store / "packs" / pack.parent.name).mkdir(exist_ok=True)
        shutil.copy(pack, store / "packs" / pack.parent.name)
        found = [item for item in run("ls", "--store", store, "--json").document["entries"] if len(item["packs"]) > 1]
        assert [item["key"] for item in found] == [VAE.key(0).hex]
        assert len(run("ls", "--store", store, "-q").out.split()) == 6

    def test_nothing_found_is_no_error(self, store: Path) -> None:
        """An empty list is empty on stdout and said on stderr."""
        ended = run("ls", "--store", store, "--older-than", "2w")
        assert (ended.code, ended.out, ended.err) == (0, "", "no entries\n")
        assert run("ls", "--store", store, "--older-than", "2w", "--json").document == {"version": 1, "entries": []}

    @pytest.mark.parametrize(
        "options",
        [
            ("--min-size", "64"),
            ("--max-size", "64mib"),
            ("--older-than", "7"),
            ("--newer-than", "yesterday"),
            ("--sort", "colour"),
            ("--limit", "0"),
            ("--bogus",),
        ],
    )
    def test_wrong_options_are_usage_errors(self, store: Path, options: tuple[str, ...]) -> None:
        """Exit code 2, an explanation, and nothing on stdout."""
        ended = run("ls", "--store", store, *options)
        assert (ended.code, ended.out) == (2, "")
        assert options[0] in ended.err


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


class TestNumbers:
    """Statistics, from the bits as they are stored."""

    @pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.foreign and dtype.lanes == 1])
    def test_foreign_floats_are_decoded_without_their_library(self, name: str) -> None:
        """Every pattern of every small float type has the value that ml_dtypes gives it."""
        ml_dtypes = pytest.importorskip("ml_dtypes")
        dtype = DTYPES[name]
        bits = np.arange(1 << (8 * dtype.size), dtype=dtype.bits)
        with np.errstate(invalid="ignore"):
            values = bits.view(getattr(ml_dtypes, dtype.numpy)).astype(np.float64)
        for low in range(0, bits.size, max(bits.size // 256, 1)):
            part = slice(low, low + max(bits.size // 256, 1))
            finite = values[part][np.isfinite(values[part])]
            found = statistics(bits[part], dtype)
            assert found.nan == np.isnan(values[part]).sum()
            assert found.inf == np.isinf(values[part]).sum()
            assert found.min == (finite.min() if finite.size else None)
            assert found.max == (finite.max() if finite.size else None)
            assert found.mean == (pytest.approx(finite.mean()) if finite.size else None)

    def test_packed_fours_are_unpacked(self) -> None:
        """One byte holds two numbers."""
        found = statistics(np.array([0x7F, 0x00], np.uint8), DTYPES["F4"])
        assert (found.min, found.max, found.mean) == (-6.0, 6.0, 0.0)

    def test_large_integers_keep_their_ends(self) -> None:
        """The ends of 64-bit integers are exact, though the mean is a float."""
        ends = np.array([-(2**63), 2**63 - 1], np.int64)
        found = statistics(ends, DTYPES["I64"])
        assert (found.min, found.max) == (-(2**63), 2**63 - 1)
        assert statistics(np.array([2**64 - 1], np.uint64), DTYPES["U64"]).max == 2**64 - 1

    def test_many_elements_are_measured_in_parts(self) -> None:
        """Mean and deviation over several chunks are those of the whole."""
        values = np.random.default_rng(0).normal(1e4, 1, 3_000_001).astype(np.float32)
        found = statistics(values, DTYPES["F32"])
        assert found.mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-12)
        assert found.std == pytest.approx(values.std(dtype=np.float64), rel=1e-9)

    def test_nothing_and_too_much_have_no_mean(self) -> None:
        """Empty tensors and sums beyond float64 give None, which JSON can hold."""
        assert statistics(np.zeros((0, 3)), DTYPES["F64"]).mean is None
        assert statistics(np.zeros((0, 3), np.int8), DTYPES["I8"]).mean is None
        huge = statistics(np.full(9, 1e308), DTYPES["F64"])
        assert (huge.max, huge.mean, huge.std) == (1e308, None, None)

    def test_complex_numbers_are_measured_by_magnitude(self) -> None:
        """|3 + 4i| is 5."""
        found = statistics(np.array([3 + 4j], np.complex64), DTYPES["C64"])
        assert (found.min, found.magnitudes) == (5.0, True)


class TestVerify:
    """`precook verify`."""

    def test_a_sound_store_is_clean(self, store: Path) -> None:
        """Exit code 0, and what was checked."""
        ended = run("verify", "--store", store)
        assert ended.code == 0
        assert re.fullmatch(r"checked 2 packs, 6 entries, .* in .*: no damage\n", ended.out)
        found = run("verify", "--store", store, "--json").document
        assert (found["version"], found["clean"], found["complete"], found["damage"]) == (1, True, True, [])
        assert (found["packs"], found["entries"]) == (2, 6)
        assert found["bytes"] == sum(pack.stat().st_size for pack in packs(store))

    def test_damage_is_listed_with_pack_key_offset_and_reason(self, store: Path) -> None:
        """Exit code 4, for one damaged entry and one damaged pack, and what to do next."""
        latents, texts = sorted(packs(store), key=lambda pack: b"latent" not in pack.read_bytes())
        flip(latents, -1)
        flip(texts, 60)
        ended = run("verify", "--store", store)
        assert ended.code == 4
        assert f"packs/{latents.parent.name}/{latents.name}\n" in ended.out
        assert re.search(rf"entry {VAE.key(2).hex[:16]}  at byte [\d,]+  its checksum does not match\n", ended.out)
        assert re.search(r"whole pack  not a pack: .*\n", ended.out)
        assert "1 damaged pack, 1 damaged entry" in ended.out
        assert "hint: " in ended.err
        found = run("verify", "--store", store, "--json")
        assert found.code == 4
        damage = {item["key"]: item for item in found.document["damage"]}
        entry = damage[VAE.key(2).hex]
        assert entry["pack"] == str(latents)
        assert entry["offset"] == latents.stat().st_size - 512
        assert damage[None]["pack"] == str(texts)
        assert str(texts) not in damage[None]["reason"]

    def test_subsets_cover_the_store(self, store: Path) -> None:
        """Every pack lies in exactly one of n parts, and a part says how to go on."""
        checked = [run("verify", "--store", store, "--subset", f"{part}/3", "--json").document for part in (1, 2, 3)]
        assert sum(part["packs"] for part in checked) == 2
        assert checked[0]["subset"] == "1/3"
        for part, found in enumerate(checked, 1):
            hint = run("verify", "--store", store, "--subset", f"{part}/3").err
            following = f"`precook verify --subset {part % 3 + 1}/3` checks the next"
            assert (following in hint) is not found["complete"]

    def test_the_time_can_be_limited(self, store: Path) -> None:
        """With no time at all one pack is checked, and the next run goes on there."""
        ended = run("verify", "--store", store, "--max-time", "0s", "--json")
        assert ended.code == 0
        assert (ended.document["packs"], ended.document["pass"]["finished"]) == (1, False)
        rest = run("verify", "--store", store, "--max-time", "1h", "--json").document
        assert (rest["packs"], rest["pass"]) == (1, {"finished": True, "packs": 2, "damaged": 0})

    @pytest.mark.parametrize(
        "options", [("--subset", "0/7"), ("--subset", "8/7"), ("--subset", "x"), ("--max-time", "10")]
    )
    def test_wrong_options_are_usage_errors(self, store: Path, options: tuple[str, str]) -> None:
        """Exit code 2."""
        assert run("verify", "--store", store, *options).code == 2

    def test_a_bar_is_shown_on_a_terminal_only(self, store: Path) -> None:
        """Progress goes to a person and is gone in the end; the result stays."""
        assert "2 of 2 packs" in on_terminal(["verify", "--store", str(store)])
        assert run("verify", "--store", store).err == ""


class TestReindex:
    """`precook reindex`."""

    def test_it_makes_the_index_anew(self, store: Path) -> None:
        """A lost index costs nothing but this command."""
        (store / "index.sqlite").unlink()
        assert re.fullmatch(r"indexed 6 entries of 2 packs in .*\n", run("reindex", "--store", store).out)
        assert (store / "index.sqlite").stat().st_size > 0
        found = run("reindex", "--store", store, "--json").document
        assert (found["version"], found["entries"], found["packs"]) == (1, 6, 2)

    def test_it_makes_no_store(self, tmp_path: Path) -> None:
        """Where there is no store there is none afterwards."""
        assert run("reindex", "--store", tmp_path / "nothing").code == 10
        assert not (tmp_path / "nothing").exists()

    def test_a_pack_that_cannot_be_used_is_a_warning(self, store: Path) -> None:
        """The rest is indexed, and the pack that was left out is named on stderr."""
        victim = packs(store)[0]
        flip(victim, 60)
        ended = run("reindex", "--store", store)
        assert ended.code == 0
        assert ended.err.startswith("warning: ")
        assert victim.stem in ended.err
        assert "indexed 3 entries of 1 pack in" in ended.out

    def test_a_read_only_store_is_refused(self, store: Path) -> None:
        """Exit code 13 where the directory cannot be written to."""
        with read_only(store):
            ended = run("reindex", "--store", store)
        assert ended.code == 13
        assert "cannot be written" in ended.err


class TestFinding:
    """Which store a command means."""

    def test_the_store_here_or_in_cache_is_found(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without --store, the current directory and ./cache are tried."""
        for place in (store, store.parent):
            monkeypatch.chdir(place)
            assert run("status", "--json").document["path"] == str(store.resolve())

    def test_no_store_is_exit_code_10_with_a_hint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hint says how to name one."""
        monkeypatch.chdir(tmp_path)
        for command in (("status",), ("ls",), ("show", "abcd"), ("verify",), ("reindex",)):
            ended = run(*command)
            assert (ended.code, ended.out) == (10, "")
            assert re.fullmatch(r"error: .*: no store there\nhint: .*--store DIR.*\n", ended.err)

    def test_a_place_that_is_something_else_is_exit_code_10(self, tmp_path: Path) -> None:
        """A directory of pictures is no store, and neither is a file."""
        (tmp_path / "cat.jpg").touch()
        for place in (tmp_path, tmp_path / "cat.jpg", tmp_path / "nothing"):
            ended = run("status", "--store", place)
            assert ended.code == 10
            assert "empty" not in ended.err  # advice for whoever makes a store

    def test_a_newer_store_is_exit_code_12(self, store: Path) -> None:
        """What a newer precook made is left alone."""
        marker = store / "store.toml"
        marker.write_text(marker.read_text().replace("format = 1", "format = 99"))
        ended = run("status", "--store", store)
        assert ended.code == 12
        assert "hint: upgrade precook" in ended.err


class TestManners:
    """What holds for every command."""

    def test_help_lists_the_commands_and_exit_codes(self) -> None:
        """Only what exists today, and every exit code there is."""
        out = run("--help").out
        commands = re.search(r"Commands:\n((?:  .*\n)+)", out)
        assert commands is not None
        names = [line.split()[0] for line in commands[1].splitlines()]
        assert names == NAMES
        assert "..." not in commands[1]  # each says what it does in its line
        codes = {int(code) for code in re.findall(r"^ +(\d+)  \w", out, re.MULTILINE)}
        errors = [value for value in map(precook.__getattr__, precook.__all__) if isinstance(value, type)]
        assert {error.exit_code for error in errors if issubclass(error, precook.PrecookError)} <= codes
        assert {0, 3, 130} <= codes

    @pytest.mark.parametrize("command", NAMES)
    def test_every_command_explains_itself(self, command: str) -> None:
        """Each has a help page with --json, with --store, and with --config; those that make one do without."""
        out = run(command, "--help").out
        assert "--json" in out
        assert ("--store DIR" in out) is (command != "demo")
        assert ("--config FILE" in out) is (command not in ("init", "demo"))
        assert out == run(command, "-h").out

    def test_the_version_is_told(self) -> None:
        """--version prints the package's."""
        assert run("--version").out == f"precook {precook.__version__}\n"

    def test_wrong_commands_are_usage_errors(self) -> None:
        """Exit code 2."""
        assert run("frobnicate").code == 2

    def test_the_module_is_the_command(self, store: Path) -> None:
        """`python -m precook` does what `precook` does."""
        with spawn("status", "--store", store, "--json", stdout=subprocess.PIPE) as process:
            assert process.communicate()[0].decode() == run("status", "--store", store, "--json").out

    def test_no_command_imports_torch(self, store: Path) -> None:
        """Importing torch takes seconds, and looking into a store needs none of it; help needs not even numpy."""
        commands = [[*command.split(), "--store", str(store)] for command in COMMANDS]
        script = f"""if True:
            import sys
            from precook.cli.main import app
            for help in [["--help"], *([name, "--help"] for name in {NAMES!r})]:
                app(help, standalone_mode=False)
                assert not {{"numpy", "sqlite3", "PIL", "yaml"}} & sys.modules.keys(), help
            for command in {commands!r}:
                assert not app(command, standalone_mode=False)
                assert "torch" not in sys.modules, command
        """
        subprocess.run([sys.executable, "-c", script], env=environment(), stdout=subprocess.DEVNULL, check=True)

    def test_a_command_does_not_wait_for_the_others(self, store: Path) -> None:
        """Of all the modules of commands only its own is imported."""
        script = f"""if True:
            import sys
            from precook.cli.main import app
            app(["reindex", "--store", {str(store)!r}], standalone_mode=False)
            assert {{name for name in {NAMES!r} if f"precook.cli.{{name}}" in sys.modules}} == {{"reindex"}}
        """
        subprocess.run([sys.executable, "-c", script], env=environment(), stdout=subprocess.DEVNULL, check=True)

    def test_reading_changes_nothing(self, store: Path) -> None:
        """No command that reads makes, changes or removes a file, with or without an index."""
        for _ in ("with an index", "without"):
            before = everything(store)
            for command in (("status",), ("ls",), ("show", VAE.key(0).hex)):
                assert run(*command, "--store", store).code == 0
            assert everything(store) == before
            (store / "index.sqlite").unlink(missing_ok=True)

    def test_a_read_only_store_can_be_read(self, store: Path) -> None:
        """Everything that only looks works where nothing can be written."""
        with read_only(store):
            for command in (("status",), ("ls",), ("show", VAE.key(0).hex), ("verify",), ("doctor",)):
                assert run(*command, "--store", store).code == 0

    def test_there_are_no_colours_off_a_terminal(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Data is plain text, whatever the environment asks for."""
        monkeypatch.setenv("FORCE_COLOR", "1")
        for command in COMMANDS:
            ended = run(*command.split(), "--store", store)
            assert "\x1b" not in ended.out + ended.err

    def test_a_damaged_index_is_a_warning(self, store: Path) -> None:
        """The library's warnings reach people on stderr, and stdout stays as it is."""
        before = run("ls", "--store", store, "-q")
        (store / "index.sqlite").write_bytes(b"nonsense" * 1000)
        after = run("ls", "--store", store, "-q")
        assert before.err == ""
        assert after.err.startswith("warning: making the index of")
        assert after.out == before.out

    def test_torch_tensors_are_shown_without_torch(self, store: Path) -> None:
        """What torch wrote, bfloat16 too, is measured from its bits."""
        torch = pytest.importorskip("torch")
        key = VAE.key("torch")
        with precook.open(store) as opened:
            opened.put(key, {"a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "b": torch.tensor([True, False])})
        out = run("show", key.hex, "--store", store).out
        assert "bfloat16 [2]  4 B  torch" in out
        assert "min -2  max 1.5  mean -0.25" in out
        assert "50.0% true" in out


class TestHostileText:
    """Names, recipes, labels and values that try to be more than text."""

    @pytest.fixture
    def evil(self, tmp_path: Path) -> Path:
        """A store in a directory with an evil name, and evil text wherever there can be text."""
        path = tmp_path / f"evil{EVIL}"
        recipe = Recipe(EVIL, {EVIL: EVIL, "list": [EVIL], "bad": "\udcff", "bytes": b"\x1b"})
        with precook.open(path) as opened:
            opened.put(recipe.key(1), {EVIL: np.zeros(3), "b": EVIL, "c": [EVIL]}, recipe=recipe, labels={EVIL: EVIL})
        return path

    def test_nothing_steers_the_terminal(self, evil: Path) -> None:
        """On a terminal the only escape sequences are ours, and off it there are none; no line is forged."""
        key = run("ls", "--store", evil, "-q").out.strip()
        commands = [[*command.replace(VAE.key(0).hex, key).split(), "--store", str(evil)] for command in COMMANDS]
        for command in commands:
            ended = run(*command)
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^gnp", ended.out + ended.err, re.MULTILINE)
            if command[0] in ("status", "ls", "show"):
                assert r"\x1b]0;owned\x07[bold red]x[/]\n\u202egnp.exe" in ended.out
        written = on_terminal(*commands)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n").replace("\r", "")
        assert written != plain
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^gnp", plain, re.MULTILINE)
        assert plain.count("[bold red]x[/]") > 5

    def test_errors_are_escaped(self, evil: Path) -> None:
        """An error that quotes a name quotes it escaped."""
        ended = run("ls", "--store", evil, "--recipe", EVIL + "?")
        assert ended.code == 1
        assert len(ended.err.splitlines()) == 2
        (evil / "store.toml").write_text(f"{EVIL}")
        ended = run("status", "--store", evil)
        assert ended.code == 10
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", ended.err)

    def test_json_survives(self, evil: Path) -> None:
        """Evil text, lone surrogates too, comes through JSON as it is, in ASCII."""
        for command in ("status", "ls", "verify", "doctor", "reindex"):
            assert run(command, "--store", evil, "--json").out.isascii()
        found = run("status", "--store", evil, "--json").document
        assert found["recipes"][0]["kind"] == EVIL
        assert found["path"] == str(evil.resolve())
        (listed,) = run("ls", "--store", evil, "--json").document["entries"]
        shown = run("show", listed["key"], "--store", evil, "--json").document
        assert shown["labels"] == {EVIL: EVIL}
        assert shown["tree"]["items"][1]["value"] == EVIL

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


class TestEndings:
    """How a command ends when it is not allowed to finish."""

    @pytest.fixture
    def long(self, tmp_path: Path) -> Path:
        """A store whose list of entries is longer than a pipe holds."""
        path = tmp_path / "long"
        with precook.open(path) as opened, opened.writer() as writer:
            for number in range(5000):
                writer.put(VAE.key(number), number)
        return path

    def test_an_interrupt_is_exit_code_130(self, long: Path) -> None:
        """Ctrl-C ends a command without a traceback."""
        with spawn("ls", "--store", long, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(10)  # it is at work now, and blocks because nobody reads on
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
        assert process.returncode == 130
        assert err == b"interrupted\n"

    def test_a_broken_pipe_is_quiet(self, long: Path) -> None:
        """`precook ls | head -1` prints one line and nothing else."""
        with spawn("ls", "--store", long, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait() == 141

    @pytest.mark.parametrize("command", [["status"], ["ls", "-q"], ["status", "--json"]])
    def test_a_pipe_that_nobody_reads_is_quiet(self, store: Path, command: list[str]) -> None:
        """Output that never leaves our buffer is dropped without a word, too."""
        reader, writer = os.pipe()
        os.close(reader)
        with spawn(*command, "--store", store, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            assert process.communicate()[1] == b""
        assert process.returncode == 141

    @pytest.mark.parametrize("command", [["status"], ["ls", "-q"]])
    def test_a_full_disk_under_stdout_is_an_error(self, store: Path, command: list[str]) -> None:
        """No traceback, and the exit code says that it failed."""
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        with (
            Path("/dev/full").open("wb") as full,
            spawn(*command, "--store", store, stdout=full, stderr=subprocess.PIPE) as process,
        ):
            _, err = process.communicate()
        assert process.returncode == 1
        assert re.fullmatch(rb"error: .*No space left on device\n", err)

    def test_any_encoding_will_do(self, store: Path) -> None:
        """Where stdout cannot hold a character it is escaped."""
        process = subprocess.run(
            [sys.executable, "-m", "precook", "show", VAE.key(0).hex, "--store", str(store)],
            env={**environment(), "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=True,
        )
        assert rb"[4 \xd7 8 \xd7 8]" in process.stdout


class read_only:  # noqa: N801 - reads as a statement
    """A directory that cannot be written to for a while: by its mode, or for root by a mount."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mounted = False

    def __enter__(self) -> None:
        if os.geteuid() != 0:
            self._path.chmod(0o555)
            return
        for options in (["--bind", str(self._path), str(self._path)], ["-o", "remount,ro,bind", str(self._path)]):
            if subprocess.run(["mount", *options], capture_output=True, check=False).returncode != 0:
                self.__exit__()
                pytest.skip("this root may not mount")
            self._mounted = True

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            subprocess.run(["umount", str(self._path)], check=True)
        elif os.geteuid() != 0:
            self._path.chmod(0o755)
