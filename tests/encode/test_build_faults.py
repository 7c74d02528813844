"""Builds that meet trouble: what fails is named, the rest is kept, and the next build does only what it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.encode import batching as batches_module
from precook.encode import progress
from precook.encode import run as line
from precook.encode import run as share
from precook.plan.ready import read_failures
from precook.store import claims
from precook.store.claims import Claims
from precook.store.index import schema
from precook.store.index.index import Index
from tests.encode.test_build import TEXTS, assert_built, planned, told
from tests.support import projects
from tests.support.projects import Watched, dataset, picture, project

COUNT = 500
BAD = "picture 250, line 0"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hundred samples; each test makes a store of its own for them."""
    return dataset(tmp_path_factory.mktemp("many") / "data", COUNT)


def over(folder: Path, base: Path, encoder: Watched, **changes: Any) -> precook.Project:
    """A project of one encoder over somebody else's folder."""
    concepts = [{"name": "things", "path": str(folder)}]
    return project(base, concepts=concepts, encoders={"words": encoder}, **{**TEXTS, **changes})


class OutOfMemoryError(Exception):
    """As torch calls its own."""


def raises(error: Exception) -> Callable[[precook.Item], Any]:
    def make(item: precook.Item) -> Any:
        if item.text == BAD:
            raise error
        return projects.content(item)

    return make


def returns(value: Any) -> Callable[[precook.Item], Any]:
    return lambda item: value if item.text == BAD else projects.content(item).astype(np.float32)


LASTING = {
    "raises": (raises(ValueError("cannot read this")), "ValueError: cannot read this"),
    "raises nothing to read": (raises(KeyError()), "KeyError"),
    "nan": (returns(np.float32([1, np.nan])), "words returned numbers that are not finite"),
    "infinity": (returns(np.float32([1, np.inf])), "words returned numbers that are not finite"),
    "dtype": (returns(np.zeros(3)), "words returned another nesting or dtype than for the others"),
    "nesting": (returns({"x": np.float32([1])}), "words returned another nesting or dtype than for the others"),
    "no tree": (returns(object()), "words returned what cannot be stored: tree: a builtins.object cannot be stored"),
}
PASSING = {
    "out of memory": (raises(OutOfMemoryError("tried to allocate")), "OutOfMemoryError: tried to allocate"),
    "cuda out of memory": (raises(RuntimeError("CUDA out of memory")), "RuntimeError: CUDA out of memory"),
    "memory error": (raises(MemoryError()), "MemoryError"),
}


@pytest.mark.parametrize("fault", [*LASTING, *PASSING])
def test_one_bad_sample_fails_alone(many: Path, tmp_path: Path, fault: str) -> None:
    """The others are stored, the bad one is named with its reason, and is tried again only where that may help."""
    make, reason = {**LASTING, **PASSING}[fault]
    encoder = Watched(make=make)
    with over(many, tmp_path, encoder) as one:
        report = one.build()
        assert report.encoded == {"words": COUNT - 1}
        assert told(report) == COUNT
        (failure,) = report.failed
        assert (failure.encoder, failure.concept, failure.reason) == ("words", "things", reason)
        assert failure.path == str(many / "p250.png")
        # What was to stay so is left out of the snapshot; where memory may be there next time, nothing is frozen yet.
        assert [file.dataset for file in one.store.snapshots()] == (["test"] if fault in LASTING else [])
        encoder.batches.clear()
        report = one.build()
        assert (report.encoded, report.reused) == ({"words": 0}, {"words": COUNT - 1})
        assert [failure.reason for failure in report.failed] == [reason]
        assert told(report) == COUNT
        assert {item.text for item in encoder.items} == (set() if fault in LASTING else {BAD})
        encoder.batches.clear()
        encoder.make = lambda item: projects.content(item).astype(np.float32)
        report = one.build(retry_failed=True)
        assert [item.text for item in encoder.items] == [BAD]
        assert (report.encoded, report.failed) == ({"words": 1}, ())
        assert one.build(retry_failed=True).failed == ()
        assert read_failures(one.store.memory()) == {}
        assert one.store.snapshot("test").samples == COUNT


def test_a_failure_is_tried_again_when_its_input_or_recipe_changes(tmp_path: Path) -> None:
    """Another text or another identity is another entry: the old failure does not stand in its way."""
    dataset(tmp_path / "data", 4)
    (tmp_path / "data" / "p1.txt").write_text(BAD)
    encoder = Watched(make=raises(ValueError("no")))
    with project(tmp_path, encoders={"words": encoder}) as one:
        assert len(one.build().failed) == 1
        assert [failure.reason for failure in one.plan().failed] == ["ValueError: no"]
    with project(tmp_path, encoders={"words": Watched(identity=2)}) as one:
        assert one.build().failed == ()
    with project(tmp_path, encoders={"words": encoder}) as one:
        (tmp_path / "data" / "p1.txt").write_text("a better text")
        encoder.batches.clear()
        report = one.build()
        assert (report.encoded, report.failed) == ({"words": 1}, ())
        assert [item.text for item in encoder.items] == ["a better text"]


def test_a_wrong_number_of_results_is_never_matched_up(tmp_path: Path) -> None:
    """An encoder that leaves one out fails for that one, and no text gets another's result."""
    dataset(tmp_path / "data", 30)

    class Short(Watched):
        def encode(self, batch: list[precook.Item]) -> list[Any]:
            return [
                one for item, one in zip(batch, super().encode(batch), strict=True) if item.text != "picture 9, line 0"
            ]

    with project(tmp_path, encoders={"words": Short()}, **TEXTS) as one:
        report = one.build()
        assert report.encoded == {"words": 29}
        assert [failure.reason for failure in report.failed] == ["words returned 0 results for 1 items"]
        assert_built(one)


@pytest.mark.parametrize("bad", [0, 7, 39])
def test_a_wrong_shape_fails_alone_wherever_it_comes(tmp_path: Path, bad: int) -> None:
    """A picture whose result has another shape than those of equal size fails, also if it is the very first."""
    dataset(tmp_path / "data", 40)
    seen: list[bytes] = []

    def make(item: precook.Item) -> Any:
        assert item.image is not None
        if item.image.tobytes() not in seen:
            seen.append(item.image.tobytes())
        return item.image[:-1] if seen.index(item.image.tobytes()) == bad else item.image

    with project(tmp_path, encoders={"pixels": Watched("image", make)}) as one:
        report = one.build()
        assert report.encoded == {"pixels": 39}
        assert [failure.reason for failure in report.failed] == [
            "pixels returned shape (47, 80, 3), for the others shape (48, 80, 3)"
        ]
        assert_built(one)


def test_an_encoder_that_raises_once_loses_nothing(tmp_path: Path) -> None:
    """A batch that failed is tried again item by item, a single item once more: nothing failed in the end."""
    dataset(tmp_path / "data", 17)  # two batches of eight, and one item alone

    class Shaky(Watched):
        def encode(self, batch: list[precook.Item]) -> list[Any]:
            made = super().encode(batch)
            if len(self.batches) in (1, 11):
                raise ValueError("just this once")
            return made

    shaky = Shaky("image")
    with project(tmp_path, encoders={"words": shaky}) as one:
        report = one.build()
        assert (report.encoded, report.failed) == ({"words": 17}, ())
        assert_built(one)


@pytest.mark.parametrize("capacity", [1, 3, 5])
def test_running_out_of_memory_makes_batches_smaller(tmp_path: Path, capacity: int) -> None:
    """Batches are halved until they fit, and stay so: no sample is lost, and few batches are tried in vain."""
    dataset(tmp_path / "data", 64)

    def limited(batch: list[precook.Item]) -> None:
        if len(batch) > capacity:
            raise OutOfMemoryError

    encoder = Watched("image", on_batch=limited)
    with project(tmp_path, encoders={"words": encoder}) as one:
        report = one.build()
        assert (report.encoded, report.failed) == ({"words": 64}, ())
    sizes = [len(batch) for batch in encoder.batches]
    assert max(sizes[len(sizes) // 2 :]) <= capacity


def test_one_item_too_large_does_not_slow_the_others(many: Path, tmp_path: Path) -> None:
    """An item that fits into no memory costs one halving, not one by one for all that follow."""
    encoder = Watched(make=raises(OutOfMemoryError()))
    with over(many, tmp_path, encoder) as one:
        one.build()
    assert len(encoder.batches) < COUNT // 2


def damage(path: Path) -> None:
    """Make pixels undecodable and leave the header and the end of a PNG as they are."""
    content = bytearray(path.read_bytes())
    at = content.index(b"IDAT") + 4
    content[at : at + 12] = bytes(12)
    path.write_bytes(content)


def test_a_picture_that_does_not_decode_fails_alone(tmp_path: Path) -> None:
    """A header that is fine with pixels that are not: that sample fails, is told, and is left out of the snapshot."""
    dataset(tmp_path / "data", 40)
    damage(tmp_path / "data" / "p20.png")
    encoder = Watched("image")
    with project(tmp_path, encoders={"pixels": encoder}) as one:
        plan = one.plan()
        assert len(plan.missing) == 40
        report = plan.build()
        assert report.encoded == {"pixels": 39}
        (failure,) = report.failed
        assert (Path(failure.path or "").name, failure.encoder) == ("p20.png", "pixels")
        assert failure.reason.startswith(("damaged", "cut off"))
        assert one.store.snapshot("test").samples == 39
        assert len(one.plan().missing) == 0
        picture(tmp_path / "data" / "p20.png", 20)
        report = one.build()
        assert (report.encoded, report.failed) == ({"pixels": 1}, ())
        assert_built(one)


def test_fail_fast_stops_at_the_first_failure(many: Path, tmp_path: Path) -> None:
    """The error names encoder, file and reason; what was encoded before it is kept."""
    encoder = Watched(make=raises(ValueError("cannot read this")))
    with over(many, tmp_path, encoder) as one:
        with pytest.raises(precook.EncodeError, match=r"words: .*p250\.png: ValueError: cannot read this"):
            one.build(fail_fast=True)
        done = len(one.plan().ready)
        (bad,) = [batch for batch in encoder.batches if len(batch) > 1 and BAD in [item.text for item in batch]]
        assert done == len(encoder.items) - len(bad) - 1  # all but its batch, in vain, and itself
        report = one.build()
        assert (report.encoded, len(report.failed)) == ({"words": COUNT - 1 - done}, 1)


def test_fail_fast_stops_at_a_source_too(tmp_path: Path) -> None:
    """Not only encoders fail."""
    dataset(tmp_path / "data", 4)
    damage(tmp_path / "data" / "p2.png")
    with project(tmp_path) as one, pytest.raises(precook.EncodeError, match=r"pixels: .*p2\.png"):
        one.build(fail_fast=True)


def test_a_lost_device_ends_the_build_and_blames_no_sample(tmp_path: Path) -> None:
    """After a CUDA error everything would fail: the build ends there, and nothing is remembered as failed."""
    dataset(tmp_path / "data", 30)

    def lost(batch: list[precook.Item]) -> None:
        if len(encoder.batches) > 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    encoder = Watched("image", on_batch=lost)
    with project(tmp_path, encoders={"pixels": encoder}) as one:
        with pytest.raises(precook.EncodeError, match="pixels: the device failed"):
            one.build()
        assert (len(one.plan().ready), one.plan().failed) == (16, ())
        encoder.on_batch = None
        assert one.build().encoded == {"pixels": 14}


def test_an_encoder_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """The error says which encoder, on which device and why; those before it are kept."""
    dataset(tmp_path / "data", 4)

    class Unloadable(Watched):
        def load(self, device: str) -> None:
            raise OSError("no such weights")

    with project(tmp_path, encoders={"pixels": Watched("image"), "words": Unloadable()}) as one:
        with pytest.raises(precook.EncodeError, match="words cannot be loaded on cpu: OSError: no such weights"):
            one.build(devices=["cpu"])
        assert (len(one.plan().ready), one.plan().failed) == (4, ())


def test_a_missing_library_or_model_names_the_encoder(tmp_path: Path) -> None:
    """What a built-in encoder complains about comes with its name in the config."""
    dataset(tmp_path / "data", 2)
    projects.vae_folder(tmp_path / "vae")
    encoders = {"latent": {"uses": "diffusers-vae", "model": "vae", "device": "cpu"}}
    with project(tmp_path, encoders=encoders) as one, pytest.raises(precook.EncodeError, match=r"^latent: "):
        one.build()


def test_an_encoder_that_cannot_be_unloaded_is_told_and_loses_nothing(tmp_path: Path) -> None:
    """Everything it made is kept; the error names it."""
    dataset(tmp_path / "data", 4)

    class Clinging(Watched):
        def unload(self) -> None:
            raise RuntimeError("will not go")

    with project(tmp_path, encoders={"words": Clinging()}) as one:
        with pytest.raises(precook.EncodeError, match="words cannot be unloaded: RuntimeError: will not go"):
            one.build()
        assert one.build().reused == {"words": 5}


def test_a_disk_that_takes_no_more_ends_the_build(tmp_path: Path) -> None:
    """The store's error is raised instead of a hang, the store stays valid, and with space the next build goes on."""
    dataset(tmp_path / "data", 60)
    script = """
import resource, sys
from pathlib import Path
import numpy as np, precook
from tests.support.projects import Watched, project

def make(item):
    return np.full(5000, float(len(seen.items)))

seen = Watched("image", make)
with project(Path(sys.argv[1]), encoders={"pixels": seen}) as one:
    one.plan()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    try:
        one.build(devices=["cpu"])
    except precook.StoreError as error:
        print(type(error).__name__)
    else:
        raise SystemExit("nothing was wrong")
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout.split() in (["StoreWriteError"], ["NoSpaceError"])
    with project(tmp_path, encoders={"pixels": Watched("image")}) as one:
        assert one.store.verify().clean
        assert one.build().failed == ()
        assert not len(one.plan().missing)


def test_a_reporter_that_raises_ends_the_build(tmp_path: Path) -> None:
    """Whatever the caller's own code raises comes out, from whichever thread, and nothing hangs."""
    dataset(tmp_path / "data", 40)

    class Broken:
        def task(self, name: str, *, total: int | None, unit: str) -> Any:
            return self

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def advance(self, amount: int = 1, **_: int) -> None:
            if threading.current_thread().name.startswith("precook-encode"):
                raise ZeroDivisionError

    with project(tmp_path) as one:
        plan = one.plan()
        with pytest.raises(ZeroDivisionError):
            plan.build(report=Broken())
        assert one.build().failed == ()
        assert not len(one.plan().missing)


def in_order(one: precook.Project) -> list[Path]:
    """The pictures in the order in which they are encoded, where all have one size."""
    return [Path(entry.path or "") for entry in one.plan().missing]


def test_a_source_that_goes_away_is_told_and_not_remembered(tmp_path: Path) -> None:
    """A picture deleted or replaced by a folder half way fails with its reason; back again, it is encoded."""
    dataset(tmp_path / "data", 60)

    def remove(_: object) -> None:
        if len(encoder.batches) == 1:
            for path in last:
                path.unlink()
            last[1].mkdir()
            os.mkfifo(last[2])

    encoder = Watched("image", on_batch=remove)
    with project(tmp_path, encoders={"pixels": encoder}) as one:
        last = in_order(one)[-3:]
        report = one.build(threads=1)
        assert report.encoded == {"pixels": 57}
        reasons = {Path(failure.path or ""): failure.reason for failure in report.failed if failure.encoder}
        assert reasons == {
            last[0]: "cannot be read: No such file or directory",
            last[1]: "cannot be read: a folder, not a file",
            last[2]: "cannot be read: a FIFO, not a file",
        }
        last[1].rmdir()
        last[2].unlink()
        for path in last:
            picture(path, int(path.stem[1:]))
        report = one.build()
        assert (report.encoded, report.failed) == ({"pixels": 3}, ())
        assert_built(one)


@pytest.mark.parametrize("when", ["while it is encoded", "before it is read"])
@pytest.mark.parametrize("kind", ["picture", "caption"])
def test_an_edit_during_the_build_is_never_mixed_up(tmp_path: Path, when: str, kind: str) -> None:
    """Old bytes stay under their own key and new ones under theirs, and the same build encodes the new ones too."""
    # Files of captions are read some dozens at a time, and a few times ahead.
    count = 60 if kind == "picture" else 240
    dataset(tmp_path / "data", count)
    old = b""

    def edit(_: object) -> None:
        nonlocal old
        if len(encoder.batches) == 1:
            old = path.read_bytes()
            if kind == "picture":
                picture(path, 777)
            else:
                path.write_text("another text\n")

    encoder = Watched("image" if kind == "picture" else "text", on_batch=edit)
    with project(tmp_path, encoders={"one": encoder}, **TEXTS) as one:
        path = in_order(one)[0 if when == "while it is encoded" else -1]
        path = path if kind == "picture" else path.with_suffix(".txt")
        report = one.build(threads=1, memory=1)
        assert (report.failed, report.changed) == ((), 0)
        assert report.encoded["one"] == (count + 1 if when == "while it is encoded" else count)
        assert_built(one)
        assert one.store.snapshot("test").samples == count
        assert len(encoder.items) == report.encoded["one"] == len(one.store)
        # What was stored for the old bytes, if anything was, is theirs.
        path.write_bytes(old)
        one.build()
        assert_built(one)
        assert len(one.store) == count + 1


def test_a_source_that_never_rests_does_not_keep_the_build(tmp_path: Path) -> None:
    """A file that changes again and again is left to the next build after a while; the rest is there."""
    folder = dataset(tmp_path / "data", 3)

    def edit(_: object) -> None:
        picture(folder / "p1.png", 1000 + len(encoder.batches))

    encoder = Watched("image", on_batch=edit)
    with project(tmp_path, encoders={"one": encoder}) as one:
        report = one.build(threads=1, memory=1)
        assert report.failed == ()
        assert len(one.plan().missing) == 1
        assert one.store.snapshots() == []
        encoder.on_batch = None
        one.build()
        assert_built(one)


CHILD = """
import signal, sys, threading
from pathlib import Path
from precook.store import claims
from tests.support.projects import project

base, log, size, seconds = sys.argv[1:]
claims.SECONDS = float(seconds)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
image = {"resolutions": ["64x64"], "step": 16, "crop": "random", "variations": 10}
encoders = {"pixels": {"uses": "tests.support.projects:Gated", "input": "image", "log": log, "batch_size": int(size)}}
with project(Path(base), image=image, encoders=encoders) as one:
    try:
        report = one.build(stop=stop, devices=["cpu"])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        print("stopped" if report.stopped else "done", sum(report.encoded.values()), len(report.failed), flush=True)
"""


class Child:
    """A build in another process, whose encoder waits for us at each batch."""

    def __init__(self, base: Path, *, size: int = 8, seconds: float = 1) -> None:
        self.log = base / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(base), str(self.log), str(size), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def batch(self) -> bool:
        """Wait until the encoder has a batch in hand; False if there is none any more."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().startswith("batch")

    def go(self, batches: int) -> None:
        """Let it finish so many batches, and wait for it to begin the next."""
        assert self.process.stdin is not None
        for _ in range(batches):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            assert self.batch()

    def end(self, number: int | None = None) -> str:
        """Send a signal, let it go on, and see how it ends."""
        if number is not None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate()
        return rest.strip().rpartition("\n")[2]


@contextmanager
def children(*some: Child) -> Iterator[None]:
    """Whatever happens, none of them is left."""
    try:
        yield
    finally:
        for child in some:
            child.process.kill()
            child.process.communicate()


def wide(base: Path, count: int) -> int:
    """Pictures that can be cut in many places; how many entries they give."""
    (base / "data").mkdir()
    for number in range(count):
        # Noise: no two cuts look alike.
        noise = np.random.default_rng(number).integers(0, 256, (64, 400, 3), np.uint8)
        Image.fromarray(noise).save(base / "data" / f"p{number}.png", compress_level=0)
    return len(opened(base).plan().missing)


def opened(base: Path) -> precook.Project:
    """The project of the children."""
    image = {"resolutions": ["64x64"], "step": 16, "crop": "random", "variations": 10}
    encoders = {"pixels": {"uses": "tests.support.projects:Gated", "input": "image", "log": str(base / "log")}}
    return project(base, image=image, encoders=encoders)


def logged(base: Path) -> Counter[str]:
    """How often each item was encoded, by all builds together."""
    return Counter((base / "log").read_text().split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_builds_that_are_stopped_and_continued_do_little_twice(tmp_path: Path, number: signal.Signals) -> None:
    """Stopped ten times, little is encoded again for each stop, and everything is there.

    It is the batch in flight, and the one before it where the disk had not taken it yet.
    """
    total = wide(tmp_path, 24)
    stops = 10
    for stopped in range(stops):
        child = Child(tmp_path, seconds=0.5)
        with children(child):
            assert child.batch()
            child.go(stopped % 3)
            told_last = child.end(number)
        assert told_last.split(" ")[0] == {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped"}.get(number, "")
        with opened(tmp_path) as one:
            assert one.store.verify().clean
    last = Child(tmp_path)
    assert last.end().startswith("done")
    encoded = logged(tmp_path)
    assert len(encoded) == total
    assert sum(encoded.values()) <= total + (2 * 8 * stops if number == signal.SIGKILL else 0)
    with opened(tmp_path) as one:
        assert_built(one)
        assert one.store.snapshot("test").samples == 24


def test_two_builds_at_once_share_the_work(tmp_path: Path) -> None:
    """What one has claimed the other leaves to it and waits for: both end with everything, nothing is made twice."""
    total = wide(tmp_path, 40)
    # Claims that outlast any moment in which a busy machine lets neither of them prolong its own.
    first = Child(tmp_path, seconds=100)
    with children(first):
        assert first.batch()
        second = Child(tmp_path, size=1, seconds=100)
        with children(second):
            assert second.batch()
            # The second has all it wants when nothing is left but what the first has claimed.
            second.go(total - 256 - 1)
            ends: list[str] = []
            waits = threading.Thread(target=lambda: ends.append(second.end()))
            waits.start()
            assert first.end().startswith("done 256 ")
            waits.join()
            assert ends == [f"done {total - 256} 0"]
    assert logged(tmp_path).total() == len(logged(tmp_path)) == total
    with opened(tmp_path) as one:
        assert_built(one)


def test_a_killed_build_is_finished_by_the_other(tmp_path: Path) -> None:
    """What a dead builder had claimed is free after a while; the one that waits for it makes it."""
    total = wide(tmp_path, 40)
    first = Child(tmp_path, seconds=1)
    with children(first):
        assert first.batch()
        second = Child(tmp_path, size=64, seconds=1)
        with children(second):
            assert second.batch()
            first.end(signal.SIGKILL)
            end = second.end()
    assert end == f"done {total} 0"
    assert total <= logged(tmp_path).total() <= total + 8
    with opened(tmp_path) as one:
        assert_built(one)


def test_a_failure_of_the_other_build_is_not_tried_again(tmp_path: Path) -> None:
    """A build that waits for another's claims hears of its failures too, and does not try the same itself."""
    dataset(tmp_path / "data", 3)
    looked = threading.Event()
    interval = sys.getswitchinterval()
    with project(tmp_path, encoders={"words": Watched(make=raises(ValueError("no")))}) as one:
        (tmp_path / "data" / "p1.txt").write_text(BAD)
        begun = threading.Event()

        def hold(_: object) -> None:
            begun.set()
            assert looked.wait(60)

        busy = Watched(make=raises(ValueError("no")), on_batch=hold)
        with project(tmp_path, encoders={"words": busy}) as other:
            thread = threading.Thread(target=other.build)
            thread.start()
            assert begun.wait(60)
            held = other.store
            idle = Watched(make=raises(ValueError("no")))
            with project(tmp_path, encoders={"words": idle}) as waiting, pytest.MonkeyPatch.context() as patch:
                of_others = share.ClaimedRows.of_others

                def wait(self: share.ClaimedRows) -> Any:
                    # As soon as this one begins to wait, the other goes on.
                    if self._store is not held:
                        looked.set()
                    return of_others(self)

                patch.setattr(share.ClaimedRows, "of_others", wait)
                report = waiting.build()
            thread.join()
        assert [failure.reason for failure in report.failed] == ["ValueError: no"]
        assert (report.encoded, report.reused) == ({"words": 0}, {"words": 3})
        assert idle.batches == []
        assert told(report) == planned(one.plan())
    assert sys.getswitchinterval() == interval, "whichever of the two ended last"


def test_what_another_build_gives_up_is_made_by_the_one_that_waits(tmp_path: Path) -> None:
    """Also what had failed before, if it is to be tried again."""
    dataset(tmp_path / "data", 3)
    (tmp_path / "data" / "p1.txt").write_text(BAD)
    encoder = Watched(make=raises(ValueError("no")))
    with project(tmp_path, encoders={"words": encoder}) as one, pytest.MonkeyPatch.context() as patch:
        (failure,) = one.build().failed
        assert failure.key is not None
        encoder.make = projects.content
        of_others = share.ClaimedRows.of_others
        with one.store.claims() as others:
            others.take([failure.key.bytes])
            patch.setattr(share.ClaimedRows, "of_others", lambda self: others.release() or of_others(self))
            report = one.build(retry_failed=True)
        assert (report.encoded, report.failed) == ({"words": 1}, ())


LOOKS = 500
"""A wait that has not ended after so many looks at what others do would never end."""


def test_a_build_that_waits_gives_up_what_failed_for_any_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build may wait for one encoder's failure while this one waits for another encoder's entry of theirs."""
    dataset(tmp_path / "data", 3)
    waiting = threading.Event()
    bad = picture(tmp_path / "data" / "bad.png", 9)

    def fail(item: precook.Item) -> Any:
        # Late: when this build has nothing to do any more but to wait for others.
        assert waiting.wait(60)
        if np.array_equal(item.image, np.asarray(Image.open(bad))):
            raise ValueError("no")
        return projects.content(item)

    encoders = {"a": Watched("image", fail), "b": Watched("image", identity=2)}
    with project(tmp_path, image={"resolutions": ["96x64"], "step": 16}, encoders=encoders) as one:
        keys = {entry.encoder: entry.key.bytes for entry in one.plan().missing if str(entry.path).endswith("bad.png")}
        others = one.store.claims()
        looks: list[set[bytes]] = []

        def look(_: float) -> None:
            waiting.set()
            time.sleep(0.01)
            looks.append(others.take([keys["a"]]))
            if looks[-1] or len(looks) == LOOKS:
                others.release()

        with others:
            assert others.take([keys["b"]]) == {keys["b"]}
            monkeypatch.setattr(share, "time", SimpleNamespace(sleep=look, monotonic=time.monotonic))
            report = one.build()
        assert looks[-1] == {keys["a"]}
        assert [(failure.encoder, failure.reason) for failure in report.failed] == [("a", "ValueError: no")]
        assert report.encoded == {"a": 3, "b": 4}


def test_an_encoder_that_cannot_be_loaded_ends_a_wait_for_other_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for what this build has claimed would wait for ever, as it would for them."""
    dataset(tmp_path / "data", 3)
    waiting = threading.Event()

    class Broken(Watched):
        def load(self, device: str) -> None:
            assert waiting.wait(60)
            raise OSError("no such model")

    with project(tmp_path, encoders={"words": Broken()}, **TEXTS) as one:
        others = one.store.claims()
        looks: list[float] = []

        def look(seconds: float) -> None:
            waiting.set()
            looks.append(seconds)
            if len(looks) == LOOKS:
                others.release()
            time.sleep(0.01)

        with others:
            assert others.take([one.plan().missing[0].key.bytes])
            monkeypatch.setattr(share, "time", SimpleNamespace(sleep=look, monotonic=time.monotonic))
            with pytest.raises(precook.EncodeError, match="no such model"):
                one.build()
        assert 0 < len(looks) < LOOKS


def test_claims_last_while_a_batch_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who takes longer over a batch than a claim holds keeps what is claimed."""
    dataset(tmp_path / "data", 3)
    prolonged = threading.Semaphore(0)
    keep = Index.keep_claims
    now = 1e9

    def counted(self: Index, owner: bytes, *, seconds: float) -> None:
        nonlocal now
        keep(self, owner, seconds=seconds)
        # A clock of our own: a slow machine has no more time between two of these than a quick one.
        now += seconds / 2
        prolonged.release()

    monkeypatch.setattr(claims, "SECONDS", 0.2)
    monkeypatch.setattr(Index, "keep_claims", counted)
    monkeypatch.setattr(schema, "time", SimpleNamespace(time=lambda: now))
    taken: list[set[bytes]] = []

    def slow(_: object) -> None:
        for _ in range(6):
            assert prolonged.acquire(timeout=60)
        with other.store.claims() as theirs:
            taken.append(theirs.take([entry.key.bytes for entry in other.plan().missing]))

    encoders = {"words": Watched(on_batch=slow)}
    with project(tmp_path, encoders={"words": Watched()}) as other, project(tmp_path, encoders=encoders) as one:
        assert one.build().encoded == {"words": 4}
    assert taken == [set()]


def test_a_claim_ends_by_itself_and_with_the_clock(store: precook.Store) -> None:
    """A claim that has run out is anybody's, and so is one from before the clock was set back."""
    store.put(precook.Recipe("test", 1).key(1), 1)
    index = store.internals().index
    keys = [bytes([number]) * 32 for number in range(3)]
    assert index.claim(keys[:2], b"a", seconds=60) == set(keys[:2])
    assert index.claim(keys, b"b", seconds=-1) == {keys[2]}
    assert index.claim(keys, b"c", seconds=1e6) == {keys[2]}
    assert index.claim(keys, b"d", seconds=60) == {keys[2]}
    assert index.claim([], b"a", seconds=60, done=keys) == set()
    assert index.claim(keys, b"d", seconds=60) == set(keys)
    index.release_claims(b"d")
    with Claims(index) as some:
        assert some.take(keys) == set(keys)
    assert index.claim(keys, b"e", seconds=60) == set(keys)


def test_claims_are_given_up_as_the_work_gets_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long build does not hold a claim for everything that it has ever made."""
    dataset(tmp_path / "data", 200)
    monkeypatch.setattr(line, "_WINDOW", 10)
    monkeypatch.setattr(progress, "_CHEAP", 0)
    monkeypatch.setattr(
        batches_module, "LARGEST", batches_module.FIRST
    )  # the larger the batches, the more is under way
    held: list[int] = []

    def count(_: object) -> None:
        index = one.store.internals().index
        held.append(index._read(lambda db: db.execute("SELECT count(*) FROM claim").fetchone()[0]))

    with project(tmp_path, encoders={"pixels": Watched("image", on_batch=count)}) as one:
        one.build(threads=1)
        count(None)
    assert max(held) < 120
    assert held[-1] == 0
