"""Schedules: encoders of pictures run together, those on different devices at the same time, and what ends one."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precook
from precook.encode import prepare
from precook.encode.registry import EncoderSpec
from precook.encode.schedule import Lane, run_lanes, share_devices
from precook.encode.source_reader import windows
from precook.fs.read import read_small
from precook.interrupt import Condition
from precook.plan.entries import PlannedEntry
from precook.plan.forecast import find_rates
from precook.plan.plan import Plan
from precook.sources import samples
from precook.sources.crop import cut
from precook.sources.geometry import COLUMNS, TARGET
from precook.sources.pictures import decode
from tests.support import projects
from tests.support.interrupts import EveryWait
from tests.support.projects import Watched, dataset, picture, project

PATIENCE = 60
"""Seconds after which threads that should meet never will."""
ENCODERS: dict[str, Watched] = {}
"""What `Placed` encoders do, by name."""


class Placed:
    """An encoder that the config gives a device; what it does stands in `ENCODERS`."""

    def __init__(self, name: str) -> None:
        self._watched = ENCODERS[name]
        self.input = self._watched.input

    def identity(self) -> object:
        return self._watched.identified

    def load(self, device: str) -> None:
        self._watched.load(device)

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return self._watched.encode(batch)

    def unload(self) -> None:
        self._watched.unload()


@pytest.fixture(autouse=True)
def no_encoders() -> Iterator[None]:
    yield
    ENCODERS.clear()


def placed(**watched: tuple[str, Watched]) -> dict[str, dict[str, Any]]:
    """Sections of encoders on these devices, each with batches of two."""
    ENCODERS.update({name: one for name, (_, one) in watched.items()})
    return {
        name: {"uses": f"{__name__}:Placed", "name": name, "device": device, "batch_size": 2}
        for name, (device, _) in watched.items()
    }


def first_row(item: precook.Item) -> Any:
    """Another result of the same pixels."""
    return projects.content(item)[:1].copy()


def stored(one: precook.Project) -> dict[tuple[str, str], bytes]:
    """What every entry holds, by its encoder and its source."""
    return {(entry.encoder, entry.path or ""): one.store.get(entry.key).tobytes() for entry in one.plan().ready}


def assert_made_of(path: Path, entry: PlannedEntry, stored: Any) -> None:
    assert entry.geometry is not None
    assert np.array_equal(stored, cut(decode(path.read_bytes()), entry.geometry))


class TestTogether:
    """Encoders that take the same part of a sample."""

    @pytest.mark.parametrize("takes", ["image", "mask"])
    def test_a_file_is_read_and_decoded_once_for_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: str
    ) -> None:
        """Two encoders get every picture, each file is read once, and the results are those of one encoder alone."""
        for number in range(6):
            picture(tmp_path / "data" / f"p{number}.png", number, (96, 64) if number % 2 else (64, 96))
            picture(tmp_path / "data" / f"p{number}-masklabel.png", 100 + number, (96, 64) if number % 2 else (64, 96))
        concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
        makes = {"a": projects.content, "b": first_row}
        alone: dict[tuple[str, str], bytes] = {}
        for name, make in makes.items():
            watched = Watched(takes, make, identity=name)
            with project(tmp_path, store=f"alone-{name}", concepts=concepts, encoders={name: watched}) as one:
                one.build()
                alone |= stored(one)
        reads: list[str] = []
        decoded: list[int] = []

        def counted(path: Any, limit: int) -> bytes:
            reads.append(str(path))
            return read_small(path, limit)

        def counting(decode: Callable[..., Any]) -> Callable[..., Any]:
            def count(*some: Any, **more: Any) -> Any:
                decoded.append(1)
                return decode(*some, **more)

            return count

        for name in ("decode_image", "decode_mask"):
            monkeypatch.setattr(prepare, name, counting(getattr(prepare, name)))
        monkeypatch.setattr(samples, "read_small", counted)
        encoders = {name: Watched(takes, make, identity=name) for name, make in makes.items()}
        with project(tmp_path, store="together", concepts=concepts, encoders=encoders) as one:
            report = one.build()
            assert stored(one) == alone
        assert report.encoded == {"a": 6, "b": 6}
        assert len(decoded) == 6
        assert Counter(reads).most_common(1)[0][1] == 1

    def test_pictures_that_only_one_lacks_are_encoded_by_it_alone(self, tmp_path: Path) -> None:
        """The other one gets what is new for both, and nothing that it has made before."""
        dataset(tmp_path / "data", 5)
        first = Watched("image", identity="a")
        with project(tmp_path, encoders={"a": first}) as one:
            one.build()
        dataset(tmp_path / "data", 8)
        encoders = {"a": Watched("image", identity="a"), "b": Watched("image", first_row, identity="b")}
        with project(tmp_path, encoders=encoders) as one:
            report = one.build()
            assert (report.encoded, report.reused) == ({"a": 3, "b": 8}, {"a": 5, "b": 0})
            assert report.snapshot is not None
        assert (len(encoders["a"].items), len(encoders["b"].items)) == (3, 8)

    def test_a_file_that_is_replaced_meanwhile_is_made_by_none_under_its_old_key(self, tmp_path: Path) -> None:
        """Neither encoder ever gets the pixels of another file for those that were planned."""
        dataset(tmp_path / "data", 6)
        encoders = {"a": Watched("image", identity="a"), "b": Watched("image", first_row, identity="b")}
        with project(tmp_path, encoders=encoders) as one:
            plan = one.plan()
            picture(tmp_path / "data" / "p3.png", 77)
            report = plan.build()
            # Both see the change, and both make it of the new file before the build ends.
            assert report.encoded == {"a": 6, "b": 6}
            assert report.snapshot is not None
            ready = [entry for entry in one.plan().ready if (entry.path or "").endswith("p3.png")]
            new = {entry.encoder: one.store.get(entry.key) for entry in ready}
            assert_made_of(tmp_path / "data" / "p3.png", ready[0], new["a"])
        assert np.array_equal(new["a"][:1], new["b"])

    def test_a_forecast_counts_the_time_once(self, tmp_path: Path) -> None:
        """What two encoders take together is shared out between them, not told for each."""
        dataset(tmp_path / "data", 6)
        encoders = {name: Watched("image", identity=name) for name in "ab"}
        with project(tmp_path, encoders=encoders) as one:
            report = one.build()
            recipes = [encoder.wants.encoding.recipe for encoder in one.plan().encoders.values()]
            rates = find_rates(recipes, one.store, one.store.memory())
        assert len(rates) == 2
        assert 0 < sum(6 * (rate.seconds or 0) for rate in rates.values()) <= report.seconds

    def test_two_with_one_recipe_make_each_entry_once(self, tmp_path: Path) -> None:
        """The second finds what the first has made, as encoders of texts do."""
        dataset(tmp_path / "data", 6)
        encoders = {"a": Watched("image"), "b": Watched("image")}
        with project(tmp_path, encoders=encoders) as one:
            report = one.build()
        assert (report.encoded, report.reused) == ({"a": 6, "b": 0}, {"a": 0, "b": 6})
        assert encoders["b"].loads == 0


class NeedsRoom(Watched):
    """An encoder whose device has no memory for it before another one is unloaded."""

    room: threading.Event
    never = False

    def load(self, device: str) -> None:
        if self.never or not self.room.is_set():
            raise MemoryError("too little of it")
        super().load(device)


class GivesRoom(Watched):
    """An encoder that gives its memory back."""

    room: threading.Event

    def unload(self) -> None:
        self.room.set()
        super().unload()


class TestNoRoom:
    """Encoders that do not fit beside others."""

    @staticmethod
    def pair() -> dict[str, Any]:
        large, other = NeedsRoom("image", first_row, identity="large"), GivesRoom("image", identity="other")
        large.room = other.room = threading.Event()
        return {"other": other, "large": large}

    def test_it_is_run_alone_after_them(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Everything is made, in as little memory as a build is given, and the log says it once."""
        caplog.set_level("INFO", "precook")
        dataset(tmp_path / "data", 40)
        encoders = self.pair()
        with project(tmp_path, encoders=encoders) as one:
            report = one.build(memory=1)
            assert report.encoded == {"other": 40, "large": 40}
            assert report.snapshot is not None
        assert len(encoders["large"].items) == 40
        why = "large cannot be loaded on cpu: MemoryError: too little of it"
        assert [text for text in caplog.messages if "not beside the other encoders" in text] == [
            f"large: not beside the other encoders, but after them: {why}"
        ]

    def test_what_was_told_already_is_not_told_again(self, tmp_path: Path) -> None:
        """A file that cannot be decoded fails once for each encoder, and the report adds up."""
        dataset(tmp_path / "data", 12)
        broken = tmp_path / "data" / "p3.png"
        content = bytearray(broken.read_bytes())
        content[content.index(b"IDAT") + 10] ^= 255
        broken.write_bytes(content)
        with project(tmp_path, encoders=self.pair()) as one:
            report = one.build()
        assert Counter(failure.encoder for failure in report.failed) == {"other": 1, "large": 1}
        assert (report.encoded, report.reused) == ({"other": 11, "large": 11}, {"other": 0, "large": 0})
        assert report.left == 0

    def test_alone_it_is_an_error(self, tmp_path: Path) -> None:
        """With the encoder, the device and the reason; what the other one made is kept."""
        dataset(tmp_path / "data", 5)
        encoders = self.pair()
        encoders["large"].never = True
        with project(tmp_path, encoders=encoders) as one:
            with pytest.raises(precook.EncodeError, match="large cannot be loaded on cpu: MemoryError: too little"):
                one.build()
            assert Counter(entry.encoder for entry in one.plan().ready) == {"other": 5}


class TestAtTheSameTime:
    """Encoders on different devices."""

    @staticmethod
    def meeting(tmp_path: Path, count: int = 12) -> precook.Project:
        """A project with two encoders, each of which waits in its first batch for the other's."""
        dataset(tmp_path / "data", count)
        barrier = threading.Barrier(2)

        def meet(watched: Watched) -> None:
            if len(watched.batches) == 1:
                barrier.wait(PATIENCE)

        words, pixels = Watched("text"), Watched("image")
        words.on_batch, pixels.on_batch = (lambda _: meet(words)), (lambda _: meet(pixels))
        encoders = placed(words=("cpu", words), pixels=("cpu:0", pixels))
        return project(tmp_path, encoders=encoders, text={"empty_prompt": False})

    def test_they_work_side_by_side(self, tmp_path: Path) -> None:
        """A text is encoded while a picture is; everything is made once, and nothing is left running."""
        one = self.meeting(tmp_path)
        with one:
            report = one.build()
            assert report.encoded == {"words": 12, "pixels": 12}
            assert report.snapshot is not None
        assert all((watched.loads, watched.unloads) == (1, 1) for watched in ENCODERS.values())

    def test_on_one_device_they_take_turns(self, tmp_path: Path) -> None:
        """The second is loaded when the first has let go of the device."""
        dataset(tmp_path / "data", 4)
        first, second = Watched("text"), Watched("image")
        seen: list[tuple[int, int]] = []
        second.on_batch = lambda _: seen.append((first.unloads, len(first.items)))
        with project(tmp_path, encoders=placed(words=("cpu:0", first), pixels=("cpu:0", second))) as one:
            one.build()
        assert set(seen) == {(1, 5)}

    def test_an_error_of_one_ends_the_other_after_its_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It comes out as it is, and what was encoded is kept and not encoded again."""
        one = self.meeting(tmp_path, count=40)
        words, pixels = ENCODERS["words"], ENCODERS["pixels"]
        meet, meet_too = (cast("Callable[[Any], object]", watched.on_batch) for watched in (words, pixels))
        over = threading.Event()

        def fail(batch: list[precook.Item]) -> None:
            meet(batch)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        # The second batch is in flight when the other has ended.
        def hold(batch: list[precook.Item]) -> None:
            meet_too(batch)
            if len(pixels.batches) == 2:
                assert over.wait(PATIENCE)

        words.on_batch, pixels.on_batch = fail, hold
        monkeypatch.setattr(words, "unload", over.set)
        with one:
            with pytest.raises(precook.EncodeError, match=r"words: the device failed at .*p\d*.png"):
                one.build()
            assert len(pixels.batches) < 20
            assert Counter(entry.encoder for entry in one.plan().ready) == {"pixels": len(pixels.items)}

    def test_a_stop_ends_both_after_their_batches(self, tmp_path: Path) -> None:
        """What both had in flight is kept, the report says that it was stopped, and the next build goes on."""
        one = self.meeting(tmp_path, count=40)
        stop = threading.Event()
        meet = cast("Callable[[Any], object]", ENCODERS["words"].on_batch)

        def meet_and_stop(batch: list[precook.Item]) -> None:
            meet(batch)
            stop.set()

        ENCODERS["words"].on_batch = meet_and_stop
        with one:
            report = one.build(stop=stop)
            assert report.stopped
            items = {name: len(watched.items) for name, watched in ENCODERS.items()}
            assert report.encoded == items
            assert report.left == 80 - sum(items.values()) > 0
            assert Counter(entry.encoder for entry in one.plan().ready) == items
            again = one.build()
            assert again.encoded == {name: 40 - count for name, count in items.items()}
            assert again.snapshot is not None

    def test_ctrl_c_ends_both_after_their_batches(self, tmp_path: Path) -> None:
        """It comes out as itself when both have ended, and what they had in flight is kept."""
        one = self.meeting(tmp_path, count=40)
        with one:
            plan = one.plan()
            with EveryWait(4), pytest.raises(KeyboardInterrupt):
                plan.build()
            assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("precook-lane")]
            made = Counter(entry.encoder for entry in one.plan().ready)
            assert made == Counter({name: len(watched.items) for name, watched in ENCODERS.items()})
            assert one.build().snapshot is not None

    def test_failing_fast_ends_both(self, tmp_path: Path) -> None:
        """The failure is the error, as where encoders run in turn."""
        one = self.meeting(tmp_path, count=40)
        meet = cast("Callable[[Any], object]", ENCODERS["words"].on_batch)

        def fail(batch: list[precook.Item]) -> None:
            meet(batch)
            raise ValueError("not these")

        ENCODERS["words"].on_batch = fail
        with one, pytest.raises(precook.EncodeError, match=r"words: .*: ValueError: not these"):
            one.build(fail_fast=True)


@given(
    st.lists(st.sets(st.sampled_from(["cpu", "cpu:0", "cpu:1", "cuda", "cuda:0", "cuda:1"]), min_size=1), max_size=7)
)
def test_lanes_share_no_device_and_lose_no_encoder(devices: list[set[str]]) -> None:
    """Each group is in one lane, in its order; two lanes have no device in common; none could be split further."""
    groups = [[EncoderSpec(str(n), Watched(), devices=tuple(sorted(some)))] for n, some in enumerate(devices)]
    lanes = share_devices(groups)
    names = [[group[0].name for group in lane] for lane in lanes]
    assert sorted(name for lane in names for name in lane) == [str(number) for number in range(len(groups))]
    assert all(lane == sorted(lane, key=int) for lane in names)

    def used(lane: list[str]) -> set[str]:
        return {"cuda:0" if one == "cuda" else one for name in lane for one in devices[int(name)]}

    every = [used(lane) for lane in names]
    assert len(set().union(*every)) == sum(map(len, every))
    for lane in names:
        reached = used(lane[:1])
        for _ in lane:
            reached |= set().union(*(used([name]) for name in lane if used([name]) & reached))
        assert reached == used(lane)


def test_of_several_errors_none_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The first is raised, and the log has the others."""
    both = threading.Barrier(2)

    def run(lane: Any, _: threading.Event) -> None:
        both.wait(PATIENCE)
        raise precook.EncodeError(f"no {lane}")

    with pytest.raises(precook.EncodeError) as raised:
        run_lanes([cast("Lane", "a"), cast("Lane", "b")], run, threading.Event())
    other = {"no a": "no b", "no b": "no a"}[raised.value.message]
    assert [record.getMessage() for record in caplog.records] == [f"another encoder ended early, too: {other}"]


def test_a_second_interruption_does_not_wait_for_a_long_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits for what lanes are at; the second comes out although they have not ended."""
    begun, finish = threading.Barrier(3), threading.Event()
    presses: list[int] = []

    def run(lane: Lane, stop: threading.Event) -> None:
        begun.wait(PATIENCE)
        assert finish.wait(PATIENCE)

    def press(condition: object, timeout: float | None = None) -> bool:
        if not presses:
            begun.wait(PATIENCE)
        presses.append(threading.active_count())
        raise KeyboardInterrupt

    monkeypatch.setattr(Condition, "wait", press)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_lanes([[], []], run, threading.Event())
        assert len(presses) == 2
    finally:
        finish.set()


@st.composite
def drawn_rows(draw: st.DrawFn) -> tuple[list[list[tuple[int, int]]], int]:
    """For each of some encoders, the (file, cut) that it lacks, and how many are wanted at a time."""
    pairs = st.tuples(st.integers(0, 11), st.integers(0, 2))
    return draw(st.lists(st.lists(pairs, unique=True, max_size=20), min_size=1, max_size=3)), draw(st.integers(1, 9))


@given(drawn_rows())
def test_windows_lose_nothing_and_keep_files_together(drawn: tuple[list[list[tuple[int, int]]], int]) -> None:
    """Every row comes once; those of a file in one window where there are several encoders, and in a row in it."""
    wanted, step = drawn
    if not any(wanted):
        return
    cuts = [np.zeros((12, COLUMNS), np.int64) for _ in range(3)]
    for number, cut_of in enumerate(cuts):
        cut_of[:, TARGET] = [(16 + 16 * (file % 3), 32 + number) for file in range(12)]
    plan = cast("Plan", SimpleNamespace(targets=SimpleNamespace(cuts=cuts, choices=())))
    encoders = [
        SimpleNamespace(
            wants=SimpleNamespace(
                encoding=SimpleNamespace(per="cut"),
                samples=np.array([file for file, _ in some], np.int64),
                targets=np.array([part for _, part in some], np.int64),
            )
        )
        for some in wanted
    ]
    rows = [np.arange(len(some)) for some in wanted]
    found = list(windows(plan, cast("Any", encoders), rows, step))
    first = [encoders[0].wants.samples[row] for window in found for row in window[0].tolist()]
    for number, some in enumerate(wanted):
        order = [row for window in found for row in window[number].tolist()]
        assert sorted(order) == list(range(len(some)))
        files = [some[row][0] for row in order]
        assert len(set(files)) == sum(one != other for one, other in zip(files, [None, *files], strict=False))
        # One file's cuts in their order, and an encoder alone has the order of the first.
        assert all(some[a][1] < some[b][1] for a, b in itertools.pairwise(order) if some[a][0] == some[b][0])
    alone = list(windows(plan, cast("Any", encoders[:1]), rows[:1], step))
    assert first == [encoders[0].wants.samples[row] for (some_rows,) in alone for row in some_rows.tolist()]
    if len(wanted) > 1:
        at = [
            {wanted[n][row][0] for n, some_rows in enumerate(window) for row in some_rows.tolist()} for window in found
        ]
        assert len(set().union(*at)) == sum(map(len, at))
