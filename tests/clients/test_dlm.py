"""dlm on our caches: its own unit tests and its trainer's pre-tokenise step, with nothing but imports changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.clients.checkouts import checkout

DLM = checkout("DocumentLanguageModel", "tenseleyFlow/DocumentLanguageModel")
HERE = Path(__file__).parent
SUITES = (
    "directives/test_cache.py",
    "directives/test_cache_key.py",
    "data/test_vl_cache.py",
    "data/test_vl_preprocessor.py",
    "train/test_tokenization.py",
    "store/test_show.py",
    "store/test_paths.py",
)
BY_FILE_NAMES = {
    "TestOpen.test_creates_layout": "looks for a folder `entries`",
    "TestOpen.test_corrupt_manifest_starts_fresh": "wants to be told about manifest.json; ours tells how to adopt",
    "TestOpen.test_manifest_version_mismatch_starts_fresh": "wants to be told about manifest.json, as above",
    "TestOpen.test_malformed_manifest_entry_is_skipped": "counts rows of manifest.json that have no file",
    "TestGetPut.test_corrupt_entry_recovers": "damages the first *.npz",
    "TestGetPut.test_put_write_failure_drops_entry": "breaks numpy.savez_compressed, which writes its *.npz",
    "TestGetPut.test_put_stat_failure_records_zero_sized_entry": "breaks the size of *.tmp",
    "TestInvalidation.test_missing_file_recovers": "removes the first *.npz",
    "TestLRUEviction.test_evicts_when_over_budget": "empties `_touched_this_run`, a private set of file keys",
    "TestLRUEviction.test_eviction_stops_once_under_budget": "looks for file names in `_manifest`",
    "TestPruneClear.test_prune_removes_old_entries": "changes a time in `_manifest`",
    "TestAtomicPut.test_manifest_save_is_atomic": "looks for manifest.json",
    "TestVlCacheRoundTrip.test_put_creates_shard_dir": "looks for a folder named by a picture's digest",
    "TestVlCacheRoundTrip.test_clear_removes_tree": "wants the folder gone; others may be using ours",
    "TestPreprocessImageWithCache.test_first_call_misses_then_writes": "looks for *.npz",
}
"""Tests of dlm that look at its files, and how; what they are about holds in tests/integrations/test_dlm.py."""
BY_IDENTITY = {
    "TestTokenizerSha256.test_pinned_on_instance": "a changed tokenizer keeps its digest; ours gets another",
    "TestProcessorSha256.test_pinned_on_instance": "a changed processor keeps its digest; ours gets another",
    "TestProcessorSha256.test_exotic_resample_value_stringifies_stably": "an `object()` as a setting; ours is refused",
    "TestPreprocessImageWithCache.test_second_call_hits_cache": "its processor's pixels depend on how often it ran; "
    "each call is another processor to ours",
}
"""Tests that hold dlm's digests to be right where they are not; met only where the digests are swapped, too."""


def environment(**more: str) -> dict[str, str]:
    """Ours and dlm's sources; its tests have a package `tests`, too, so ours is not on the path."""
    ours = HERE.parents[1] / "src"
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ours, HERE, DLM / "src"))), **more}


@pytest.mark.parametrize("identities", [False, True], ids=["caches", "caches and digests"])
def test_its_unit_tests_pass_on_our_caches(tmp_path: Path, *, identities: bool) -> None:
    """Every test that does not look at dlm's own files passes; those that do are listed, and no other fails."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "dlm_swapped", "-c", os.devnull]
    suites = [str(DLM / "tests" / "unit" / suite) for suite in SUITES]
    ended = subprocess.run(
        [*command, "--rootdir", str(DLM), f"--junitxml={report}", *suites],
        env=environment(SWAP_DIGESTS="1" if identities else ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), ended.stdout + ended.stderr
    cases = ET.parse(report).getroot().iter("testcase")
    passed, failed = set(), set()
    for case in cases:
        name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
        (failed if case.find("failure") is not None or case.find("error") is not None else passed).add(name)
    assert failed == {*BY_FILE_NAMES, *(BY_IDENTITY if identities else ())}, ended.stdout[-4000:]
    assert len(passed) > 60


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A document with sources, which is what dlm uses its cache for."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(8):
        (corpus / f"file {number}.py").write_text(f"def f{number} ( x ) :\n    return x * {number} a test more\n")
    path = tmp_path / "document.dlm"
    path.write_text(
        "---\ndlm_id: 01KPC4CHE" + "0" * 17 + "\nbase_model: smollm2-135m\n"
        "training:\n  seed: 42\n  sources:\n    - path: corpus\n      include: ['**/*.py']\n---\n"
        "# a test\n\n::instruction::\n### Q\nwhat is this ?\n### A\na test .\n"
    )
    return path


def pretokenize(whose: str, document: Path, home: Path, *more: str, digests: bool = True) -> Any:
    """Run dlm's step in a process of its own; what it printed."""
    ended = subprocess.run(
        [sys.executable, str(HERE / "dlm_pretokenize.py"), whose, str(document), str(home), *more],
        env=environment(SWAP_DIGESTS="1" if digests else ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "falling back" not in ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_the_second_run_of_its_trainer_finds_every_section(document: Path, tmp_path: Path) -> None:
    """The real pre-tokenise step, in processes that just end: the same rows as on its own cache, then only hits."""
    theirs = pretokenize("theirs", document, tmp_path / "their home")
    first = pretokenize("ours", document, tmp_path / "our home")
    second = pretokenize("ours", document, tmp_path / "our home")
    assert first["rows"] == second["rows"] == theirs["rows"]
    assert first["counts"] == theirs["counts"] == [0, len(theirs["rows"])]
    assert second["counts"] == [len(theirs["rows"]), 0]
    shown = json.loads(precook("status", "--store", second["folder"], "--json"))
    assert [(run["reused"], run["encoded"]) for run in shown["runs"]] == [
        (0, len(theirs["rows"])),
        (len(theirs["rows"]), 0),
    ]


def test_another_chat_template_tokenizes_again(document: Path, tmp_path: Path) -> None:
    """Dlm's own digest leaves the template out and serves the old tokens; ours tokenizes the messages anew."""
    changed = "{% for message in messages %}more {{ message.content }} {% endfor %}"
    right = pretokenize("theirs", document, tmp_path / "fresh", changed)
    for whose, is_right in (("theirs", False), ("ours", True)):
        home = tmp_path / whose
        pretokenize(whose, document, home)
        assert (pretokenize(whose, document, home, changed)["rows"] == right["rows"]) is is_right


def test_an_edited_file_alone_is_tokenized_again(document: Path, tmp_path: Path) -> None:
    """One section of one file changes: one miss."""
    first = pretokenize("ours", document, tmp_path / "home")
    (document.parent / "corpus" / "file 3.py").write_text("def other :\n    return a test\n")
    assert pretokenize("ours", document, tmp_path / "home")["counts"] == [len(first["rows"]) - 1, 1]


def test_its_commands_show_and_clear_our_cache(document: Path, tmp_path: Path) -> None:
    """`dlm cache show`, `prune` and `clear` work on our store, and count what is in it."""
    home = tmp_path / "home"
    rows = pretokenize("ours", document, home)["rows"]

    def command(*words: str) -> str:
        start = "import dlm_swapped; from dlm.cli.app import app; app()"
        ended = subprocess.run(
            [sys.executable, "-c", start, "--home", str(home), "cache", *words],
            env=environment(SWAP_DIGESTS="1"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    assert json.loads(command("show", str(document), "--json"))["entry_count"] == len(rows)
    assert "pruned 0" in command("prune", str(document), "--older-than", "1h")
    assert f"cleared {len(rows)}" in command("clear", str(document), "--force")
    assert json.loads(command("show", str(document), "--json"))["entry_count"] == 0


PROCESS = """
import sys, json, hashlib
if sys.argv[1] == "ours":
    import dlm_swapped
import torchvision_operators
from pathlib import Path
from PIL import Image
from transformers import CLIPImageProcessor
from dlm.data.vl_cache import VlCache
from dlm.data.vl_preprocessor import preprocess_image
folder = Path(sys.argv[2])
folder.mkdir(exist_ok=True)
Image.effect_mandelbrot((48, 40), (-2, -1, 1, 1), 50).convert("RGB").save(folder / "picture.png")
small = {"size": {"shortest_edge": 32}, "crop_size": {"height": 16, "width": 16}}
processor = CLIPImageProcessor(**{**small, **json.loads(sys.argv[3])})
sha = hashlib.sha256((folder / "picture.png").read_bytes()).hexdigest()
made = preprocess_image(blob_path=folder / "picture.png", blob_sha=sha, processor=processor, target_size=(16, 16),
    cache=VlCache(folder / "vl") if sys.argv[1] != "none" else None)
print(json.dumps([made.cache_hit, made.pixel_values.tolist()]))
"""


def test_its_preprocessor_runs_on_our_cache(tmp_path: Path) -> None:
    """A real processor in three processes: made once, found again, and another crop is not served the old pixels."""

    def process(whose: str, **settings: Any) -> Any:
        command = [sys.executable, "-c", PROCESS, whose, str(tmp_path / whose), json.dumps(settings)]
        ended = subprocess.run(command, env=environment(SWAP_DIGESTS="1"), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    right = process("none")[1]
    assert process("ours") == [False, right]
    assert process("ours") == [True, right]
    other = process("none", do_center_crop=False)[1]
    assert process("ours", do_center_crop=False) == [False, other]
    process("theirs")
    assert process("theirs", do_center_crop=False) == [True, right]  # what its digest leaves out


def precook(*words: object) -> str:
    """Run a command of ours; what it printed."""
    command = [sys.executable, "-m", "precook", *map(str, words)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_its_own_cache_is_adopted_and_found(document: Path, tmp_path: Path) -> None:
    """Sections that dlm has tokenized itself are hits of our cache, in the same folder, from its first run on."""
    home = tmp_path / "home"
    theirs = pretokenize("theirs", document, home)
    folder = Path(theirs["folder"])
    old = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    precook("adopt", folder, "--store", folder / "precook", "--yes")
    ours = pretokenize("ours", document, home, digests=False)
    assert ours["rows"] == theirs["rows"]
    assert ours["counts"] == [len(theirs["rows"]), 0]
    assert {path: path.read_bytes() for path in old} == old
    assert pretokenize("theirs", document, home)["counts"] == [len(theirs["rows"]), 0]


def test_its_own_cache_is_adopted_for_our_digest(document: Path, tmp_path: Path) -> None:
    """Where keys have our digest of the tokenizer, the command is told which of dlm's it takes the place of."""
    home = tmp_path / "home"
    theirs = pretokenize("theirs", document, home)
    folder = Path(theirs["folder"])
    assert pretokenize("ours", document, tmp_path / "fresh")["counts"] == [0, len(theirs["rows"])]
    old = json.loads((folder / "manifest.json").read_text())["tokenizer_sha256"]
    program = "import dlm_pretokenize as step; from precook.integrations.tokenized import tokenizer_sha256;"
    program += "print(tokenizer_sha256(step.tokenizer(step.TEMPLATE)))"
    new = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    precook("adopt", folder, "--store", folder / "precook", "--digest", f"{old}={new}", "--yes")
    assert pretokenize("ours", document, home)["counts"] == [len(theirs["rows"]), 0]


def test_its_own_pictures_are_adopted_and_found(tmp_path: Path) -> None:
    """What its `VlCache` has written, under the digest that its keys have."""
    program = """
import sys, numpy as np
from pathlib import Path
if sys.argv[1] == "ours":
    import dlm_swapped
from dlm.data.vl_cache import VlCache, VlCacheKey
cache = VlCache(Path(sys.argv[2]))
for number in range(3):
    key = VlCacheKey(f"{number:02x}" * 32, "5e" * 32, 224, 336)
    pixels = np.random.default_rng(number).normal(size=(1, 3, 8, 8)).astype(np.float32)
    if sys.argv[1] == "ours":
        assert np.array_equal(cache.get(key), pixels)
    else:
        cache.put(key, pixels)
"""
    folder = tmp_path / "vl"
    for whose in ("theirs", "ours"):
        command = [sys.executable, "-c", program, whose, str(folder)]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        if whose == "theirs":
            precook("adopt", folder, "--store", folder / "precook", "--digest", "5e" * 32, "--yes")
