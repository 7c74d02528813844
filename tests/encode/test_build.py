"""Builds: exactly what is missing is encoded, and what comes of it is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.encode import build as build_module
from precook.encode import prepare
from precook.encode.build import BuildReport
from precook.maintain.gc import plan_gc
from precook.plan import plan as plan_module
from precook.sources.crop import cut
from precook.sources.pictures import decode, decode_image
from precook.sources.samples import ConceptSamples
from tests.support import projects
from tests.support.projects import Watched, dataset, picture, project

TEXTS = {"text": {"empty_prompt": False}}


def planned(plan: precook.Plan) -> int:
    return sum(int(one.wants.first.sum()) for one in plan.encoders.values())


def told(report: BuildReport) -> int:
    failed = sum(failure.encoder is not None for failure in report.failed)
    return sum(report.encoded.values()) + sum(report.reused.values()) + failed + report.changed + report.left


def assert_built(one: precook.Project) -> None:
    """Every entry is there and was made of its source as it is now."""
    plan = one.plan()
    assert not len(plan.missing)
    assert one.store.verify().clean
    for entry in plan.ready:
        stored = one.store.get(entry.key)
        if entry.sample is None:
            assert stored.tobytes() == b""
            continue
        home, number = plan.samples.in_concept(entry.sample)
        if entry.line is not None:
            assert stored.tobytes().decode() == home.texts(number)[entry.line]
        elif plan.encoders[entry.encoder].wants.encoding.input == "image":
            whole = decode(Path(home.full_path(number)).read_bytes())
            assert np.array_equal(stored, cut(whole, entry.geometry))  # type: ignore[arg-type]


def test_one_sample_more_is_one_picture_and_one_text(tmp_path: Path) -> None:
    """A thousand samples are built, one is added: one picture and one text are encoded, each encoder loaded once."""
    dataset(tmp_path / "data", 1000)
    first = {"pixels": Watched("image"), "words": Watched()}
    with project(tmp_path, encoders=first) as one:
        report = one.build()
        assert report.encoded == {"pixels": 1000, "words": 1001}
        assert report.reused == {"pixels": 0, "words": 0}
        assert report.bytes == sum(one.store.get(entry.key).nbytes for entry in one.plan().ready)
    picture(tmp_path / "data" / "new.png", 5000)
    (tmp_path / "data" / "new.txt").write_text("a new one\n")
    second = {"pixels": Watched("image"), "words": Watched()}
    with project(tmp_path, encoders=second) as one:
        report = one.build()
        assert report.encoded == {"pixels": 1, "words": 1}
        assert report.reused == {"pixels": 1000, "words": 1001}
        assert report.failed == ()
        assert_built(one)
    for encoder in (*first.values(), *second.values()):
        assert (encoder.loads, encoder.unloads) == (1, 1)
    assert [item.text for item in second["words"].items] == ["a new one"]


def test_nothing_missing_loads_nothing(tmp_path: Path) -> None:
    """With everything there no encoder is made or loaded, and neither torch nor another library is imported."""
    dataset(tmp_path / "data")
    projects.vae_folder(tmp_path / "vae")
    encoders = {"latent": {"uses": "diffusers-vae", "model": "vae"}, "pixels": {"uses": "image"}}
    with project(tmp_path, encoders=encoders) as one:
        projects.build(one)
    script = f"""
        import sys
        from tests.support.projects import project
        from pathlib import Path
        with project(Path({str(tmp_path)!r}), encoders={encoders!r}) as one:
            report = one.build()
        assert sum(report.reused.values()) == 6 and not any(report.encoded.values()), report
        assert not {{"torch", "diffusers", "transformers", "precook.encode.vae"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    watched = Watched()
    with project(tmp_path, encoders={"words": watched}) as one:
        one.build()
        one.build()
    assert watched.loads == 1


class Weighted(Watched):
    """An encoder whose weights are a file: its identity and its results."""

    def __init__(self, weights: Path) -> None:
        super().__init__(
            "text", lambda item: np.frombuffer(weights.read_bytes() + (item.text or "").encode(), np.uint8)
        )
        self.weights = weights

    def identity(self) -> object:
        return precook.digest(self.weights)


def test_other_weights_under_the_same_path_are_other_entries(tmp_path: Path) -> None:
    """Swapping the weights makes everything anew and serves nothing old; swapping back finds everything again."""
    dataset(tmp_path / "data", 5)
    weights = tmp_path / "weights"
    for content, encoded in ((b"old", 6), (b"new", 6), (b"old", 0), (b"new", 0)):
        weights.write_bytes(content)
        with project(tmp_path, encoders={"words": Weighted(weights)}) as one:
            report = one.build()
            assert report.encoded == {"words": encoded}
            assert report.reused == {"words": 6 - encoded}
            assert {one.store.get(entry.key).tobytes()[:3] for entry in one.plan().ready} == {content}


def test_other_vae_weights_under_the_same_path_are_misses(tmp_path: Path) -> None:
    """The identity of a built-in encoder is its weights: others are all misses, the old ones back are all hits."""
    dataset(tmp_path / "data")
    encoders = {"latent": {"uses": "diffusers-vae", "model": "vae"}}
    counts = []
    for seed in (0, 1, 0):
        projects.vae_folder(tmp_path / "vae", seed)
        with project(tmp_path, encoders=encoders) as one:
            counts.append(projects.build(one)["latent"])
    assert counts == [3, 3, 0]


def test_picture_mask_and_text_of_a_sample_agree(tmp_path: Path) -> None:
    """Whatever the crop and the flip, each mask lies over its own picture, and each text is its own."""
    folder = tmp_path / "data"
    for number in range(12):
        path = picture(folder / f"p{number}.png", number, size=(60 + 8 * number, 100))
        grey = Image.open(path).convert("L")
        grey.save(folder / f"p{number}-masklabel.png")
        (folder / f"p{number}.txt").write_text(f"{path.name}\n")
    encoders = {"pixels": Watched("image"), "mask": Watched("mask"), "words": Watched()}
    concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
    image = {"resolutions": [64, "32x48"], "step": 16, "crop": "random", "flip": "random", "variations": 2}
    with project(tmp_path, encoders=encoders, concepts=concepts, image=image) as one:
        report = one.build(threads=3)
        plan = one.plan()
        assert report.encoded == {name: len(plan.ready.of(name)) for name in encoders}
        assert report.encoded["pixels"] == report.encoded["mask"] > 40
        assert_built(one)
        entries = {(entry.encoder, entry.sample, entry.target): entry for entry in plan.ready}
        for (encoder, sample, target), entry in entries.items():
            if encoder == "mask":
                mask = one.store.get(entry.key).astype(int)
                pixels = one.store.get(entries["pixels", sample, target].key)
                assert mask.shape == pixels.shape[:2]
                assert np.abs(mask - np.asarray(Image.fromarray(pixels).convert("L")).astype(int)).mean() < 8
            if encoder == "words" and entry.path is not None:
                assert one.store.get(entry.key).tobytes().decode() == Path(entry.path).name
    shapes = {item.mask.shape for item in encoders["mask"].items if item.mask is not None}
    assert all(len({np.shape(item.mask) for item in batch}) == 1 for batch in encoders["mask"].batches)
    assert len(shapes) > 2


def test_a_missing_mask_is_a_white_one(tmp_path: Path) -> None:
    """Samples without a mask share one white mask for each size."""
    dataset(tmp_path / "data", 4)
    picture(tmp_path / "data" / "tall.png", 9, size=(64, 96))
    Image.new("L", (96, 64), 0).save(tmp_path / "data" / "p0-masklabel.png")
    concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png", "missing_mask": "white"}]
    mask = Watched("mask")
    with project(tmp_path, encoders={"mask": mask}, concepts=concepts) as one:
        report = one.build()
        assert report.encoded == {"mask": 3}
        values = [one.store.get(entry.key) for entry in one.plan().ready]
    assert sorted((value.shape, int(value.min()), int(value.max())) for value in values) == [
        ((48, 80), 0, 0),
        ((48, 80), 255, 255),
        ((80, 48), 255, 255),
    ]


def test_two_encoders_with_one_recipe_share_the_work(tmp_path: Path) -> None:
    """What both would make is made once, what fails fails once for both, and the report adds up."""
    dataset(tmp_path / "data", 6)

    def make(item: precook.Item) -> Any:
        if item.text == "picture 3, line 0":
            raise ValueError("not this one")
        return projects.content(item)

    encoders = {"a": Watched(make=make), "b": Watched(make=make)}
    with project(tmp_path, encoders=encoders, **TEXTS) as one:
        plan = one.plan()
        report = plan.build()
        assert report.encoded == {"a": 5, "b": 0}
        assert report.reused == {"a": 0, "b": 5}
        assert [(failure.encoder, failure.reason) for failure in report.failed] == [
            ("a", "ValueError: not this one"),
            ("b", "ValueError: not this one"),
        ]
        assert told(report) == planned(plan)
    assert encoders["b"].loads == 0


DEVICES = """
class Spread:
    input = "image"
    made = []

    def identity(self):
        return 1

    def load(self, device):
        self.device, self.seen = device, []
        self.made.append(self)

    def encode(self, batch):
        self.seen.extend(batch)
        return [item.image for item in batch]

    def unload(self):
        self.device = None
"""


def test_each_device_has_an_encoder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices share the pictures; each loads its own encoder once, and every picture is encoded once."""
    dataset(tmp_path / "data", 40)
    (tmp_path / "spread_encoder.py").write_text(DEVICES)
    encoders = {"pixels": {"uses": "spread_encoder:Spread", "batch_size": 2}}
    with project(tmp_path, encoders=encoders) as one:
        report = one.build(devices=["cpu", "cpu"])
        assert report.encoded == {"pixels": 40}
        assert_built(one)
    made = sys.modules.pop("spread_encoder").Spread.made
    assert 1 <= len(made) <= 2
    assert sum(len(encoder.seen) for encoder in made) == 40
    assert all(encoder.device is None for encoder in made)


def test_an_object_runs_on_the_first_device_only(tmp_path: Path) -> None:
    """An encoder that was given as an object is never loaded twice or used by two threads."""
    dataset(tmp_path / "data", 20)
    watched = Watched("image")
    with project(tmp_path, encoders={"pixels": watched}) as one:
        assert one.build(devices=["cpu", "cpu"]).encoded == {"pixels": 20}
    assert (watched.loads, watched.unloads) == (1, 1)


@pytest.mark.parametrize("batch", [0, 1, 2, 5])
def test_stopping_keeps_what_was_encoded(tmp_path: Path, batch: int) -> None:
    """Whenever `stop` is set, the batch in flight is kept, nothing is encoded twice, and the next build goes on."""
    dataset(tmp_path / "data", 60)
    stop = threading.Event()
    encoders: dict[str, Watched] = {}

    def count(_: object) -> None:
        if sum(len(encoder.batches) for encoder in encoders.values()) > batch:
            stop.set()

    encoders |= {"pixels": Watched("image", on_batch=count), "words": Watched(on_batch=count)}
    with project(tmp_path, encoders=encoders) as one:
        plan = one.plan()
        report = plan.build(stop=stop)
        done = sum(len(encoder.items) for encoder in encoders.values())
        assert report.stopped
        assert sum(report.encoded.values()) == done < 121
        assert report.left == 121 - done
        assert told(report) == planned(plan)
        assert one.store.snapshots() == []
        stop.clear()
        batch = 1000
        report = one.build(stop=stop)
        assert not report.stopped
        assert sum(report.encoded.values()) == 121 - done
        assert_built(one)
    assert sum(len(encoder.items) for encoder in encoders.values()) == 121


def test_a_build_that_is_stopped_at_once_does_nothing(tmp_path: Path) -> None:
    """With `stop` set from the start no encoder is loaded, and the report says that everything is left."""
    dataset(tmp_path / "data")
    stop = threading.Event()
    stop.set()
    watched = Watched()
    with project(tmp_path, encoders={"words": watched}) as one:
        report = one.build(stop=stop)
        assert (report.left, report.stopped, watched.loads) == (4, True, 0)


def test_the_dataset_is_frozen_when_it_is_complete(tmp_path: Path) -> None:
    """A build of all encoders freezes the dataset at its end; one of some of them does not."""
    dataset(tmp_path / "data")
    with project(tmp_path) as one:
        one.plan(encoders=["words"]).build()
        assert one.store.snapshots() == []
        one.build()
        assert one.store.snapshot("test").samples == 3


def test_a_plan_is_built_as_the_sources_are_then(tmp_path: Path) -> None:
    """A plan that is built later encodes what the sources have become: edited, new and gone ones too."""
    dataset(tmp_path / "data", 6)
    encoders = {"pixels": Watched("image"), "words": Watched()}
    with project(tmp_path, encoders=encoders) as one:
        plan = one.plan()
        picture(tmp_path / "data" / "p1.png", 100)
        (tmp_path / "data" / "p2.txt").write_text("edited\n")
        picture(tmp_path / "data" / "p9.png", 101)
        (tmp_path / "data" / "p3.png").unlink()
        report = plan.build()
        assert report.changed == 0
        assert [(failure.encoder, Path(failure.path or "").name) for failure in report.failed] == [("pixels", "p3.png")]
        assert_built(one)
        assert one.store.snapshot("test").samples == 6


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often plans were made and the sources were looked at."""
    counts: Counter[str] = Counter()

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(module, name, counted)

    watch(build_module, "make_plan")
    watch(plan_module, "collect_samples")
    return counts


def test_a_build_plans_once(tmp_path: Path, looks: Counter[str]) -> None:
    """The sources are looked at before it and after it; with nothing to encode once, and nothing is planned twice."""
    dataset(tmp_path / "data")
    with project(tmp_path) as one:
        report = one.build()
        assert looks == {"make_plan": 1, "collect_samples": 2}
        assert (report.missing, report.snapshot) == (0, one.store.snapshot("test").file)
        looks.clear()
        report = one.build()
        assert looks == {"make_plan": 1, "collect_samples": 1}
        assert report.snapshot == one.store.snapshot("test").file


def test_a_plan_that_is_built_later_looks_at_the_sources_again(tmp_path: Path, looks: Counter[str]) -> None:
    """Also where there was nothing to encode when it was made: it is planned again if a source has changed."""
    dataset(tmp_path / "data")
    with project(tmp_path) as one:
        one.build()
        plan = one.plan()
        looks.clear()
        plan.build()
        assert looks == {"collect_samples": 1}
        (tmp_path / "data" / "p1.txt").write_text("edited\n")
        looks.clear()
        assert plan.build().encoded == {"pixels": 0, "words": 1}
        assert looks == {"make_plan": 1, "collect_samples": 2}
        assert not len(one.plan().missing)


def test_what_was_removed_after_the_plan_is_made_again(tmp_path: Path, looks: Counter[str]) -> None:
    """A build that has nothing to encode notices that entries are gone, without looking at the sources for it."""
    dataset(tmp_path / "data")
    with project(tmp_path) as one:
        one.build()
        plan = one.plan()
        for snapshot in one.store.snapshots():
            one.store.remove_snapshot(snapshot)
        looks.clear()
        plan_gc(one.store, grace=0).execute()
        assert len(one.store) == 0
        report = plan.build(fresh=True)
        assert sum(report.encoded.values()) == 7
        assert (looks["make_plan"], report.missing) == (0, 0)
        assert one.store.snapshot("test").samples == 3


def test_memory_bounds_what_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the encoder is, pictures that were cut and not yet encoded take no more than was allowed."""
    dataset(tmp_path / "data", 60)
    nbytes = 80 * 48 * 3
    cuts = most = 0
    lock = threading.Lock()

    def counted(*args: Any) -> Any:
        nonlocal cuts
        with lock:
            cuts += 1
        return cut(*args)

    def encoded(_: object) -> None:
        nonlocal most
        most = max(most, cuts - sum(len(batch) for batch in watched.batches[:-1]))

    monkeypatch.setattr(prepare, "cut", counted)
    watched = Watched("image", on_batch=encoded)
    with project(tmp_path, encoders={"pixels": watched}) as one:
        one.build(memory=12 * nbytes, threads=4)
        assert_built(one)
    assert most <= 12


def test_a_picture_larger_than_the_memory_is_encoded_alone(tmp_path: Path) -> None:
    """Memory for less than one picture makes a build slow, not stuck."""
    dataset(tmp_path / "data", 20, lines=3)
    encoders = {"pixels": Watched("image"), "words": Watched()}
    with project(tmp_path, encoders=encoders) as one:
        one.build(memory=1)
        assert_built(one)
    assert {len(batch) for batch in encoders["pixels"].batches} == {1}


def test_pictures_of_one_size_are_encoded_in_a_row(tmp_path: Path) -> None:
    """However the files are named, batches are full: all pictures of a size come before those of another."""
    for number in range(32):
        picture(tmp_path / "data" / f"p{number:02}.png", number, size=(96, 64) if number % 2 else (64, 96))
    watched = Watched("image")
    with project(tmp_path, encoders={"pixels": watched}) as one:
        one.build()
    heights = [item.image.shape[0] for item in watched.items if item.image is not None]
    assert sorted(heights) in (heights, heights[::-1])


def test_a_file_is_read_once_for_all_it_is_cut_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several resolutions of a picture, and several lines of a caption file, cost one reading."""
    dataset(tmp_path / "data", 5, lines=4)
    read: list[object] = []

    def counted(content: bytes, **options: Any) -> Any:
        read.append(content)
        return decode_image(content, **options)

    monkeypatch.setattr(prepare, "decode_image", counted)
    texts = ConceptSamples.texts
    monkeypatch.setattr(ConceptSamples, "texts", lambda self, sample: read.append(sample) or texts(self, sample))
    image = {"resolutions": [64, 96], "step": 16}
    with project(tmp_path, image=image, encoders={"pixels": Watched("image"), "words": Watched()}) as one:
        assert one.build().encoded == {"pixels": 10, "words": 21}
    assert len(read) == 10


class Bar:
    """A reporter that adds up what it is told."""

    def __init__(self) -> None:
        self.totals: dict[str, int | None] = {}
        self.told: Counter[str] = Counter()

    def task(self, name: str, *, total: int | None, unit: str) -> Any:
        self.totals[name] = total
        return self

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        self.told.update(amount=amount, nbytes=nbytes, failed=failed)


def test_progress_reaches_its_total(tmp_path: Path) -> None:
    """Every entry is told once, with its bytes or as failed."""
    dataset(tmp_path / "data", 9)

    def make(item: precook.Item) -> Any:
        return np.nan if item.text == "picture 4, line 0" else np.zeros(3)

    bar = Bar()
    with project(tmp_path, encoders={"words": Watched(make=make)}) as one:
        plan = one.plan()
        plan.build(report=bar)
    assert bar.totals["words"] == 10
    rest = sum(total or 0 for name, total in bar.totals.items() if name != "words")
    assert (bar.told["amount"] - rest, bar.told["failed"], bar.told["nbytes"]) == (10, 1, 9 * 24)


RESIDENT = """
import os, sys
from pathlib import Path
import numpy as np
from tests.support.projects import Watched, project

pages = []

class Free(Watched):
    def load(self, device):
        # An encoder has weights. Beside none, what is under way at this moment or that would be a tenth.
        self.weights = np.ones(64 << 20, np.uint8)

    def encode(self, batch):
        self.batches = []
        pages.extend([int(Path("/proc/self/statm").read_text().split()[1])] * len(batch))
        return [np.full(256, item.image[0, 0, 0]) for item in batch]

image = {"resolutions": ["64x64"], "step": 16, "crop": "random", "variations": 52}
with project(Path(sys.argv[1]), encoders={"free": Free("image")}, image=image) as one:
    report = one.build(memory=8 << 20, threads=2, devices=["cpu"])  # no torch: it would hide a lot
assert report.encoded["free"] == len(pages) > 20_000
warm = max(pages[:2000])
print(f"{warm} pages after 2,000 entries, {max(pages)} at most")
assert max(pages) <= 1.1 * warm
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_stays_flat(tmp_path: Path) -> None:
    """Over 20,000 entries the process takes at most a tenth more memory than over the first 2,000."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for number in range(400):
        # So wide that there are enough places to cut each of them at.
        wide = Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).resize((2000, 64), Image.Resampling.NEAREST)
        wide.save(tmp_path / "data" / f"p{number}.png")
    subprocess.run([sys.executable, "-c", RESIDENT, str(tmp_path)], check=True)


def test_an_empty_folder_does_not_empty_the_dataset(tmp_path: Path) -> None:
    """SCENARIOS E3: where a drive is not mounted the build ends with an error, and the last snapshot stays."""
    dataset(tmp_path / "data")
    with project(tmp_path) as one:
        one.build()
        (tmp_path / "data").rename(tmp_path / "away")
        (tmp_path / "data").mkdir()
        with pytest.raises(precook.IncompleteError, match=r"test has no samples: no pictures in .*data") as caught:
            one.build()
        assert "mounted" in caught.value.hint
        with pytest.raises(precook.IncompleteError, match="no sample to keep"):
            one.plan().freeze()
        with pytest.raises(precook.FeedError, match="test has no samples"):
            one.feed(batch_size=1)
        assert [file.number for file in one.store.snapshots()] == [1]


def test_a_dataset_of_which_every_sample_failed_keeps_its_last_snapshot(tmp_path: Path) -> None:
    """The failures are told, and there is nothing new to train on."""
    dataset(tmp_path / "data")
    with project(tmp_path) as one:
        one.build()
    with project(tmp_path, image={"resolutions": [512], "step": 16, "upscale": "refuse"}) as one:
        report = one.build()
        assert len(report.failed) == 3
        assert [file.number for file in one.store.snapshots()] == [1]
