"""What an mgds cache survives: stops, failures, kills, damage, and others at work in the same store.

Numbers in names are those of the contract's list of traps: never invented data (2), progress is kept (6), damage is
found in `start` and rebuilt there (7), no pickle and quick aggregates (8), several processes (9).
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

# ruff: noqa: E402 - without torch there is nothing to import
torch = pytest.importorskip("torch", reason="torch is not installed")

import precook
from precook.integrations.mgds import build
from tests.support.mgds_pipelines import Encode, Run, concept, pictures, shown

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cats(tmp_path: Path) -> Path:
    """A concept's folder with eight pictures."""
    pictures(tmp_path / "cats", 8)
    return tmp_path / "cats"


def packs(folder: Path) -> list[Path]:
    """The packs of the image cache."""
    return sorted((folder / "image" / "precook" / "packs").glob("*/*.safetensors"))


def test_6_a_stop_keeps_what_was_made_and_the_next_run_goes_on(
    tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop callback ends a build between two items; the pool still works, and nothing is encoded twice."""
    asked, stopped = threading.Event(), threading.Event()
    wait = build.wait

    def hook(encoder: Encode) -> None:
        if len(encoder.calls) >= 3:
            asked.set()
            stopped.wait()  # an item that takes its time while the stop is asked for

    def wait_for_the_rest(futures: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            stopped.set()  # from here on no item may be begun
        return wait(futures, timeout)

    monkeypatch.setattr(Encode, "hook", staticmethod(hook))
    monkeypatch.setattr(build, "wait", wait_for_the_rest)
    with Run(tmp_path, [concept(cats)], image_options={"stop_callback": asked.is_set}) as run:
        with pytest.raises(precook.StoppedError, match="what was made is kept"):
            run.start()
        assert run.state.executor.submit(int).result() == 0
        made = len(run.encoder.calls)
        assert 3 <= made <= 4, "what two threads had in their hands"
    with Run(tmp_path, [concept(cats)]) as again:
        assert len(again.epoch()) == 8
        assert len(again.encoder.calls) == 8 - made


def test_2_and_6_a_failing_item_is_named_and_costs_no_other(tmp_path: Path, cats: Path) -> None:
    """The others are made and kept, the pool goes on, nothing stands in for the bad one, and mending it is enough."""
    good = (cats / "003.png").read_bytes()
    (cats / "003.png").write_bytes(b"broken")
    with Run(tmp_path, [concept(cats)]) as run:
        with pytest.raises(precook.EncodeError, match=r"003\.png: OSError: cannot decode") as caught:
            run.start()
        assert "7 of 8 are made and kept" in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        assert run.state.executor.submit(int).result() == 0
    (cats / "003.png").write_bytes(good)
    with Run(tmp_path, [concept(cats)]) as again:
        assert len(again.epoch()) == 8
        assert len(again.encoder.calls) == 1


def test_6_an_encoder_that_always_fails_ends_the_build_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing succeeds the samples are not at fault: the build gives up after some of them."""
    pictures(tmp_path / "many", 120, captions=False)

    def hook(_: Encode) -> None:
        message = "out of memory"
        raise RuntimeError(message)

    monkeypatch.setattr(Encode, "hook", staticmethod(hook))
    with Run(tmp_path, [concept(tmp_path / "many")]) as run:
        with pytest.raises(precook.EncodeError, match="out of memory"):
            run.start()
        assert len(run.encoder.calls) < 60


def test_2_a_source_that_changes_while_it_is_encoded_is_not_stored(
    tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made of other bytes than those that were identified is an error, and the next run makes it anew."""

    def hook(_: Encode) -> None:
        (cats / "002.png").write_bytes(b"changed meanwhile")

    monkeypatch.setattr(Encode, "hook", staticmethod(hook))
    with Run(tmp_path, [concept(cats)]) as run, pytest.raises(precook.EncodeError, match=r"002\.png: .*changed"):
        run.start()
    monkeypatch.undo()
    with Run(tmp_path, [concept(cats, image={"strength": 0})]) as again:
        items = {Path(item["image_path"]).name: item["latent_image"].tolist() for item in again.epoch()}
        assert items["002.png"] == list(b"changed meanwhile")


KILLED = r"""
import os, sys, threading
from pathlib import Path
from tests.support.mgds_pipelines import Encode, Run, concept

def hook(encoder):
    if len(encoder.calls) > 5:
        os.write(1, b"in the middle\n")  # one write: two threads may come here
        threading.Event().wait()

Encode.hook = staticmethod(hook)
run = Run(Path(sys.argv[1]), [concept(Path(sys.argv[2]))])
store = run.image_cache.cache.store
make = store.writer
store.writer = lambda: make(flush_bytes=1)
run.start()
"""


def test_6_a_killed_build_loses_at_most_what_was_not_flushed(tmp_path: Path, cats: Path) -> None:
    """After a SIGKILL in the middle of a build, the next run encodes the rest and gives all items."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), str(cats)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "in the middle\n"
    while not packs(tmp_path) and child.poll() is None:
        threading.Event().wait(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with Run(tmp_path, [concept(cats)]) as run:
        items = shown(run.epoch())
        assert 0 < len(run.encoder.calls) < 8
    with Run(tmp_path / "anew", [concept(cats)]) as anew:
        assert shown(anew.epoch()) == items


@pytest.mark.parametrize("between", ["epochs", "runs"])
@pytest.mark.parametrize("harm", ["delete", "flip", "cut", "head"])
def test_7_damage_is_found_at_the_start_of_an_epoch_and_mended_there(
    tmp_path: Path, cats: Path, harm: str, between: str
) -> None:
    """Packs that were deleted, overwritten or cut are built again by the next start, which gives the same items."""
    run = Run(tmp_path, [concept(cats)])
    before = shown(run.epoch())
    if between == "runs":
        run.close()
    harmed = max(packs(tmp_path), key=lambda pack: pack.stat().st_size)
    content = bytearray(harmed.read_bytes())
    if harm == "delete":
        harmed.unlink()
    elif harm == "cut":
        harmed.write_bytes(content[:-40])
    else:
        # The last bytes are those of a leaf, the first ones the header's.
        content[-3 if harm == "flip" else 20] ^= 0xFF
        with harmed.open("r+b") as file:
            file.write(content)
    if between == "runs":
        run = Run(tmp_path, [concept(cats)])
    assert shown(run.epoch()) == before
    assert len(run.encoder.calls) >= 1
    run.close()
    with Run(tmp_path, [concept(cats)]) as again:
        assert shown(again.epoch()) == before
        assert again.encoded == (0, 0)


def test_7_packs_that_were_checked_are_not_read_again(
    tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run believes a pack whose stamp is the one it had when it was checked, and reads what it needs."""
    from precook.integrations.mgds import packs as pack_checks  # noqa: PLC0415

    with Run(tmp_path, [concept(cats)]) as run:
        run.epoch()
    for pack in packs(tmp_path):
        _age(pack)
    read: list[int] = []
    real = pack_checks._damaged_keys
    monkeypatch.setattr(pack_checks, "_damaged_keys", lambda *given: read.append(1) or real(*given))
    with Run(tmp_path, [concept(cats)]) as run:
        run.epoch()
    assert read
    read.clear()
    with Run(tmp_path, [concept(cats)]) as run:
        run.epoch()
    assert not read


def _age(path: Path) -> None:
    os.utime(path, (time.time() - 60, time.time() - 60))
    deadline = time.monotonic() + 10
    # The change time cannot be set: wait until it is older than the coarsest clock we trust.
    while time.time() - path.stat().st_ctime < 2.1 and time.monotonic() < deadline:
        threading.Event().wait(0.05)


def test_8_an_epoch_start_keeps_no_object_per_sample(tmp_path: Path) -> None:
    """What the garbage collector has to walk does not grow with the number of samples."""
    grown = []
    for count in (20, 220):
        folder = tmp_path / str(count)
        pictures(folder / "data", count, captions=False)
        with Run(folder, [concept(folder / "data")]) as run:
            gc.collect()
            before = len(gc.get_objects())
            run.image_cache.current_variation = 0
            run.start()
            gc.collect()
            grown.append(len(gc.get_objects()) - before)
    assert grown[1] - grown[0] < 100


def test_9_two_pipelines_of_one_process_use_one_folder_at_once(tmp_path: Path, cats: Path) -> None:
    """Training and validation in the same caches: each shows its own concepts, and neither disturbs the other."""
    pictures(tmp_path / "held-out", 3)
    with Run(tmp_path, [concept(cats)]) as training, Run(tmp_path, [concept(tmp_path / "held-out")]) as validation:
        for _ in range(2):
            seen = training.epoch(), validation.epoch()
            assert [{item["concept_name"] for item in items} for items in seen] == [{"cats"}, {"held-out"}]
        assert training.encoded == validation.encoded == (0, 0)


RANK = """
import sys
from pathlib import Path
from tests.support.mgds_pipelines import Run, concept, shown

with Run(Path(sys.argv[1]), [concept(Path(sys.argv[2]))]) as run:
    print("ready", flush=True)
    sys.stdin.readline()
    print(repr(shown(run.epoch())), flush=True)
"""


def test_9_ranks_that_build_at_the_same_time_agree(tmp_path: Path, cats: Path) -> None:
    """Two processes that start together over an empty cache end with the same items, and so does a third."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), str(cats)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    results = []
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    for rank in ranks:
        results.append(rank.communicate()[0])
        assert rank.returncode == 0
    with Run(tmp_path, [concept(cats)]) as third:
        assert results == [f"{shown(third.epoch())!r}\n"] * 2
        assert third.encoded == (0, 0)


def test_a_full_store_is_told_as_such(tmp_path: Path, cats: Path) -> None:
    """An error of the store ends the build under its own name, not as the fault of a sample."""
    store = precook.open(tmp_path / "store", max_bytes=200)
    with store, Run(tmp_path, [concept(cats)], image_options={"store": store}) as run:
        with pytest.raises(precook.NoSpaceError):
            run.start()
        assert run.state.executor.submit(int).result() == 0
