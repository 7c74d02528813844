"""The loader: a feed where training loops take a DataLoader."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from tests.support.feeds import equal, everything, frozen, images, same
from tests.support.projects import Watched
from tests.support.snapshots import packs

torch = pytest.importorskip("torch", reason="batches are torch tensors")
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
from torch.utils.data import DataLoader  # noqa: E402


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve samples of two sizes, built once: nobody writes to them."""
    base = images(tmp_path_factory.mktemp("built"), 12)
    with everything(base) as owner:
        owner.build()
    return base


@pytest.fixture
def owner(built: Path) -> Iterator[precook.Project]:
    """A project of these samples."""
    with everything(built) as opened:
        yield opened


def epochs(owner: precook.Project, count: int, **options: Any) -> list[list[dict[str, Any]]]:
    """What `feed.epoch` says, epoch by epoch."""
    feed = owner.feed(**{"batch_size": 2, **options})
    return [list(feed.epoch(number)) for number in range(count)]


def after(owner: precook.Project, batches: int) -> dict[str, Any]:
    """The state of a loader after so many batches of its first epoch."""
    loader = owner.feed(batch_size=2).loader()
    for _ in islice(loader, batches):
        pass
    return loader.state_dict()


class TestEpochs:
    """Which epoch an iteration is."""

    @pytest.mark.parametrize("workers", [0, 1])
    def test_each_iteration_is_the_next_epoch(self, owner: precook.Project, workers: int) -> None:
        """Three iterations see three epochs, as `feed.epoch` says them, with worker processes and without."""
        loader = owner.feed(batch_size=2).loader(num_workers=workers)
        assert isinstance(loader, DataLoader)
        for expected in epochs(owner, 3):
            assert len(loader) == len(expected)
            assert equal(loader, expected)

    def test_setting_the_epoch_each_time_changes_nothing(self, owner: precook.Project) -> None:
        """`set_epoch(e)` before each epoch, as trainers do it, also of the samplers, gives what comes without."""
        loader = owner.feed(batch_size=2).loader()
        for number, expected in enumerate(epochs(owner, 3)):
            (loader, loader.sampler, loader.batch_sampler)[number].set_epoch(number)
            assert equal(loader, expected)

    def test_an_epoch_can_be_shown_again(self, owner: precook.Project) -> None:
        """Whoever sets an epoch gets it from its start."""
        loader = owner.feed(batch_size=2).loader()
        expected = epochs(owner, 3)
        next(iter(loader))
        for number in (2, 0, 0):
            loader.set_epoch(number)
            assert equal(loader, expected[number])

    def test_a_new_loader_for_each_epoch_is_told(
        self, owner: precook.Project, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It shows the first epoch for ever, unless the epoch is set, as Lightning does where it reloads."""
        feed = owner.feed(batch_size=2)
        for number in range(2):
            loader = feed.loader()
            loader.set_epoch(number)
            list(loader)
        list(feed.epoch(0))
        assert not caplog.records
        list(feed.loader())
        (record,) = caplog.records
        assert "begins with epoch 0" in record.getMessage()
        assert "set_epoch" in record.getMessage()

    def test_an_iterator_without_a_batch_taken_is_no_epoch(self, owner: precook.Project) -> None:
        """Asking for an iterator, or for the length, begins nothing."""
        loader = owner.feed(batch_size=2).loader()
        iter(loader)
        assert len(loader) == len(list(loader))

    def test_an_epoch_that_was_left_early_is_over(self, owner: precook.Project) -> None:
        """A loop that breaks off begins the next epoch next time, as trainers with a limit of batches do."""
        loader = owner.feed(batch_size=2).loader()
        for expected in epochs(owner, 2):
            assert same(next(iter(loader)), expected[0])


class TestResume:
    """Going on after a stop."""

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("taken", [0, 1, 3, 6])
    def test_the_very_next_batch_comes_first(self, owner: precook.Project, taken: int, workers: int) -> None:
        """A state taken after any batch of the second epoch goes on there; the epochs after it follow."""
        expected = epochs(owner, 3)
        loader = owner.feed(batch_size=2).loader(num_workers=workers)
        list(loader)
        running = iter(loader)
        for _ in range(taken):
            next(running)
        state = json.loads(json.dumps(loader.state_dict()))
        assert state == loader.feed.state_dict()
        resumed = owner.feed(batch_size=2).loader(num_workers=workers)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert (state["epoch"], state["batch"]) == ((1, taken) if taken < 6 else (2, 0)), "no epoch comes that is over"
        if taken < 6:
            assert len(resumed) == len(expected[1]), "the whole of the epoch"
            assert equal(resumed, expected[1][taken:])
        assert equal(resumed, expected[2])

    @pytest.mark.parametrize("taken", [0, 2, 6])
    @pytest.mark.parametrize("counts", [True, False])
    def test_a_loop_that_sets_epochs_resumes_the_same(self, owner: precook.Project, taken: int, counts: bool) -> None:
        """`set_epoch` of the state's epoch keeps what is left of it, also nothing; of the next one, if nothing is."""
        expected = epochs(owner, 3)
        loader = owner.feed(batch_size=2).loader()
        running = iter(loader)
        for _ in range(taken):
            next(running)
        state = loader.state_dict()
        resumed = owner.feed(batch_size=2).loader()
        resumed.load_state_dict(state)
        for number in range(0 if counts or taken < 6 else 1, 3):
            resumed.set_epoch(number)
            assert equal(resumed, expected[number][taken if not number else 0 :])

    def test_loaders_of_one_feed_stand_each_for_itself(self, owner: precook.Project) -> None:
        """Another loader, or a look at an epoch, moves none; a state of the feed is one for all of them."""
        expected = epochs(owner, 2)
        feed = owner.feed(batch_size=2)
        loader, other = feed.loader(), feed.loader()
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert equal(other, expected[0])
        assert equal(feed.epoch(0), expected[0])
        next(iter(feed.batch_sampler(0)))
        assert loader.state_dict() == state
        assert equal(loader, expected[0][1:])
        feed.load_state_dict(state)
        for one in (loader, other, feed.loader()):
            assert equal(one, expected[0][1:])
            assert equal(one, expected[1])
            feed.load_state_dict(state)

    def test_a_loop_that_counts_otherwise_than_its_state_is_refused(self, owner: precook.Project) -> None:
        """Whoever resumes in epoch 1 and says that it is epoch 0, or 2, would repeat or lose the rest of it."""
        loader = owner.feed(batch_size=2).loader()
        loader.set_epoch(1)
        next(iter(loader))
        state = loader.state_dict()
        for number in (0, 2):
            resumed = owner.feed(batch_size=2).loader()
            resumed.load_state_dict(state)
            with pytest.raises(precook.FeedError, match="is one of epoch 1") as caught:
                resumed.sampler.set_epoch(number)
            assert 'state["epoch"]' in caught.value.hint

    def test_another_batch_size_is_refused(self, owner: precook.Project) -> None:
        """The rest of an epoch in other batches is other data."""
        loader = owner.feed(batch_size=2).loader()
        next(iter(loader))
        with pytest.raises(precook.FeedError, match="batch_size 2, not 3") as caught:
            owner.feed(batch_size=2).loader(batch_size=3).load_state_dict(loader.state_dict())
        assert "batch size" in caught.value.hint


class TestBatchSize:
    """The batch size of a loader is that of its feed."""

    def test_a_loader_may_say_it(self, owner: precook.Project) -> None:
        """The feed then has it, too: `feed.epoch` says what the loader gives."""
        feed = owner.feed(batch_size=2)
        loader = feed.loader(batch_size=3)
        assert loader.batch_size == 3
        assert equal(loader, epochs(owner, 1, batch_size=3)[0])
        assert equal(loader, feed.epoch(1))

    def test_a_feed_has_one(self, owner: precook.Project) -> None:
        """Another one, of a second loader or after the first batch, needs another feed."""
        feeds = [owner.feed(batch_size=2) for _ in range(3)]
        feeds[0].loader()
        next(iter(feeds[1].epoch(0)))
        next(iter(feeds[2].batch_sampler(0)))
        for feed in feeds:
            with pytest.raises(precook.FeedError, match="in use with a batch_size of 2"):
                feed.loader(batch_size=3)
            assert feed.loader(batch_size=2).batch_size == 2
        with pytest.raises(precook.FeedError, match="must be 1 or more"):
            owner.feed(batch_size=2).loader(batch_size=0)


def test_an_epoch_of_another_length_than_told_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where sizes are drawn, epochs differ in length: a trainer that asked for it once cuts epochs off."""
    sizes = {"resolutions": [64, 96], "pick": "one"}
    with everything(images(tmp_path, 7), encoders={"pixels": {"uses": "image"}}, image=sizes) as owner:
        owner.build()
        loader = owner.feed(batch_size=2).loader()
        lengths = [len(batches) for batches in epochs(owner, 8)]
        assert len(set(lengths)) > 1, "the draws of the test's pictures"
        for length in lengths:
            assert len(loader) == len(list(loader)) == length
        assert not caplog.records
        loader.set_epoch(0)
        assert len(loader) == lengths[0]
        for _ in lengths:
            sum(1 for _ in loader)  # a list would ask for the length
        (record,) = caplog.records
        assert f"the loop was told of {lengths[0]}" in record.getMessage()


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_lie_on_the_device(owner: precook.Project, workers: int) -> None:
    """As a name or as torch's own device; one that is not there is refused before anything is read."""
    for device in ("meta", torch.device("meta")):
        batch = next(iter(owner.feed(batch_size=2).loader(device=device, num_workers=workers)))
        assert batch["pixels"].device.type == batch["loss_weight"].device.type == "meta"
    with pytest.raises(precook.FeedError, match="num_workers"):
        owner.feed(batch_size=2).loader(num_workers=-1)
    with pytest.raises(precook.FeedError, match="nowhere"):
        owner.feed(batch_size=2).loader(device="nowhere", num_workers=workers)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_batch_that_was_let_go_takes_no_memory(owner: precook.Project, prepared: bool) -> None:
    """Only the trainer decides how long a batch lives, also while the epoch goes on."""
    loader = owner.feed(batch_size=2).loader()
    if prepared:
        loader = accelerate.Accelerator(cpu=True).prepare(loader)
    coming = iter(loader)
    batch = next(coming)
    seen = weakref.ref(batch["pixels"])
    del batch
    assert seen() is None
    assert sum(1 for _ in coming) == len(loader) - 1


def test_batches_of_which_nothing_is_left_are_left_out(tmp_path: Path) -> None:
    """With threads, with workers and where some are skipped; accelerate is told of the last batch that comes."""
    with everything(images(tmp_path, lines=1)) as owner:
        owner.build()
        shown = [batch["sample"][0] for batch in owner.feed(batch_size=1).epoch(0)]
        snapshot = owner.store.snapshot("test")
        rows = [row.tobytes().hex() for row in snapshot.content.samples.id]
        for lost in (shown[2], shown[5]):
            snapshot.content.line_keys["words"][rows.index(lost)] = 0
        options = {"batch_size": 1, "on_missing": "skip"}
        expected = list(snapshot.feed(**options).epoch(0))
        assert [batch["sample"][0] for batch in expected] == [shown[0], shown[1], shown[3], shown[4]]
        assert equal(snapshot.feed(**options).loader(num_workers=1), expected)
        accelerator = accelerate.Accelerator(cpu=True)
        loader = accelerator.prepare(snapshot.feed(**options).loader())
        for batches in (loader, accelerate.skip_first_batches(loader, 0)):
            loader.set_epoch(0)
            ends = []
            for number, batch in enumerate(batches):
                assert same(dict(batch), expected[number])
                ends.append(accelerator.gradient_state.end_of_dataloader)
            assert ends == [False, False, False, True]


class TestAccelerate:
    """A loader that accelerate has taken."""

    def test_what_is_prepared_is_the_loader_itself(self, owner: precook.Project) -> None:
        """No second sharding, `dispatch_batches` or not, and every epoch as the feed says."""
        configured = accelerate.DataLoaderConfiguration(dispatch_batches=True)
        loader = owner.feed(batch_size=2).loader()
        prepared = accelerate.Accelerator(cpu=True, dataloader_config=configured).prepare(loader)
        assert prepared is loader
        for expected in epochs(owner, 3):
            assert equal(prepared, expected)

    def test_batches_that_accelerate_would_split_are_refused(self, owner: precook.Project) -> None:
        """With `split_batches` a batch size counts all ranks, and ours counts one: told when the loader is prepared.

        One rank alone is all ranks.
        """
        configured = accelerate.DataLoaderConfiguration(split_batches=True)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configured)
        alone = owner.feed(batch_size=2).loader()
        assert accelerator.prepare(alone) is alone
        loader = owner.feed(batch_size=2, rank=0, world_size=2).loader()
        for prepare in (accelerator.prepare, accelerator.prepare_data_loader):
            with pytest.raises(precook.FeedError, match="split_batches") as caught:
                prepare(loader)
            assert "batch_size" in caught.value.hint

    @pytest.mark.parametrize(
        ("options", "placed", "device"),
        [({}, None, "meta"), ({"device": "cpu"}, None, "cpu"), ({}, False, "cpu")],
    )
    def test_batches_lie_where_accelerate_wants_them(
        self, owner: precook.Project, monkeypatch: pytest.MonkeyPatch, options: Any, placed: bool | None, device: str
    ) -> None:
        """On its device, unless the loader has one of its own or accelerate is told to leave them alone."""
        accelerator = accelerate.Accelerator(cpu=True)
        monkeypatch.setattr(accelerator.state, "device", torch.device("meta"))
        loader = accelerator.prepare(
            owner.feed(batch_size=2).loader(**options), device_placement=None if placed is None else [placed]
        )
        assert next(iter(loader))["pixels"].device.type == device

    def test_processes_that_share_a_model_are_not_fed_apart(
        self, owner: precook.Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where a model is split among processes, they need the same batches: the ranks have to be said then."""
        accelerator = accelerate.Accelerator(cpu=True)
        monkeypatch.setattr(
            type(accelerator), "parallelism_config", accelerate.utils.ParallelismConfig(tp_size=2), raising=False
        )
        with pytest.raises(precook.FeedError, match="need the same batches") as caught:
            accelerator.prepare_data_loader(owner.feed(batch_size=2).loader())
        assert "world_size=" in caught.value.hint
        accelerator.prepare_data_loader(owner.feed(batch_size=2, rank=0, world_size=1).loader())

    def test_numpy_arrays_stay_where_they_are(self, owner: precook.Project) -> None:
        """Whoever asks for numpy arrays gets them from accelerate, too."""
        loader = accelerate.Accelerator(cpu=True).prepare(owner.feed(batch_size=2, tensors="numpy").loader())
        assert equal(loader, epochs(owner, 1, tensors="numpy")[0])

    def test_gradients_are_synchronised_with_the_last_batch(self, owner: precook.Project) -> None:
        """Accumulation over four of six batches ends with the epoch: the last batch is known as such, no other is."""
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        loader, model = accelerator.prepare(owner.feed(batch_size=2).loader(), torch.nn.Linear(1, 1))

        def synchronised(batches: Any) -> list[bool]:
            seen = []
            for _ in batches:
                with accelerator.accumulate(model):
                    seen.append(accelerator.sync_gradients)
            return seen

        for _ in range(2):
            assert synchronised(loader) == [False, False, False, True, False, True]
        assert not accelerator.gradient_state.in_dataloader
        assert accelerator.gather_for_metrics(torch.ones(3)).shape == (3,)
        assert synchronised(accelerate.skip_first_batches(loader, 1)) == [False, False, False, True, True]
        assert not accelerator.gradient_state.in_dataloader

    @pytest.mark.parametrize("skipped", [0, 2, 6])
    def test_batches_that_are_skipped_are_those_of_the_epoch(self, owner: precook.Project, skipped: int) -> None:
        """`skip_first_batches` leaves out so many of the epoch that comes, and the loader goes on after it."""
        expected = epochs(owner, 3)
        loader = accelerate.Accelerator(cpu=True).prepare(owner.feed(batch_size=2).loader())
        list(loader)
        rest = accelerate.skip_first_batches(loader, skipped)
        assert len(rest) == len(expected[1]) - skipped
        for number, batch in enumerate(rest, skipped):
            assert same(batch, expected[1][number])
            state = loader.state_dict()
            assert (state["epoch"], state["batch"]) == ((1, number + 1) if number < 5 else (2, 0))
        assert equal(loader, expected[2])

    def test_batches_of_an_epoch_that_nobody_named_are_skipped_with_a_warning(
        self, owner: precook.Project, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A script that counts on its own resumes in the first epoch, whichever it was in: it is told, and only it."""
        loaders = [owner.feed(batch_size=2).loader() for _ in range(3)]
        loaders[0].set_epoch(0)
        loaders[1].load_state_dict(after(owner, 2))
        for loader in loaders:
            assert not caplog.records
            list(accelerate.skip_first_batches(loader, 2))
        (record,) = caplog.records
        assert "the first 2 of the batches of epoch 0" in record.getMessage()
        assert "set_epoch" in record.getMessage()

    @pytest.mark.parametrize(("taken", "skipped"), [(2, 3), (2, 1), (6, 5), (6, 1)])
    def test_batches_that_are_skipped_are_those_of_the_state(
        self, owner: precook.Project, taken: int, skipped: int
    ) -> None:
        """A loop that skips more or fewer than the state that was loaded says would lose or repeat some: it is told."""
        loader = owner.feed(batch_size=2).loader()
        loader.load_state_dict(after(owner, taken))
        with pytest.raises(precook.FeedError, match=f"^{skipped} batches of epoch {taken // 6} were skipped"):
            next(iter(accelerate.skip_first_batches(loader, skipped)))

    def test_skipped_batches_and_workers(self, owner: precook.Project) -> None:
        """What is left is as the loader gives it, also where worker processes read, and the loader goes on after it."""
        expected = epochs(owner, 2)
        loader = owner.feed(batch_size=2).loader(rename={"pixels": "images"}, device="meta", num_workers=1)
        for number, batch in enumerate(accelerate.skip_first_batches(loader, 2), 2):
            assert batch["sample"] == expected[0][number]["sample"]
            assert batch["images"].device.type == "meta"
            assert loader.state_dict()["batch"] == (number + 1) % 6
        assert [batch["sample"] for batch in loader] == [batch["sample"] for batch in expected[1]]

    def test_what_is_left_of_an_epoch_can_be_left_early(self, owner: precook.Project) -> None:
        """A loop that breaks off among the batches after the skipped ones begins the next epoch next time."""
        accelerator = accelerate.Accelerator(cpu=True)
        expected = epochs(owner, 2)
        loader = accelerator.prepare(owner.feed(batch_size=2).loader())
        rest = iter(accelerate.skip_first_batches(loader, 1))
        assert same(next(rest), expected[0][1])
        assert accelerator.gradient_state.in_dataloader
        assert equal(loader, expected[1])
        assert not accelerator.gradient_state.in_dataloader

    @pytest.mark.parametrize("skips", [True, False])
    def test_a_checkpoint_of_accelerate_has_the_position(
        self, owner: precook.Project, tmp_path: Path, skips: bool
    ) -> None:
        """`save_state` and `load_state` go on exactly, also in a script that skips the batches by itself."""
        expected = epochs(owner, 3)
        accelerator = accelerate.Accelerator(cpu=True)
        loader = accelerator.prepare(owner.feed(batch_size=2).loader())
        list(loader)
        for number, _ in enumerate(loader):
            if number == 3:
                accelerator.save_state(str(tmp_path / "state"))
                break
        accelerator.free_memory()
        resumed = accelerator.prepare(owner.feed(batch_size=2).loader())
        accelerator.load_state(str(tmp_path / "state"))
        rest = accelerate.skip_first_batches(resumed, 4) if skips else resumed
        assert equal(rest, expected[1][4:])
        assert equal(resumed, expected[2])


class TestFields:
    """What a loop gets of a batch."""

    @pytest.fixture
    def owner(self, tmp_path: Path) -> precook.Project:
        """A project whose texts are trees."""
        words = Watched("text", lambda item: {"hidden": torch.ones(len(item.text), 2), "pooled": torch.ones(2)})
        made = everything(images(tmp_path), encoders={"pixels": {"uses": "image"}, "words": words})
        made.build()
        return made

    def test_only_some_are_kept_and_get_the_names_a_script_wants(self, owner: precook.Project) -> None:
        """`fields` leaves texts out, `rename` takes parts to the top under other names; the tensors are the same."""
        feed = owner.feed(batch_size=2)
        (first, *_) = feed.epoch(0)
        names = {"pixels": "pixel_values", "words.hidden": "states"}
        for fields in (
            ["pixels", "words", "size"],
            ["pixel_values", "words.hidden", "words.pooled", "words.mask", "size"],
        ):
            loader = owner.feed(batch_size=2).loader(fields=fields, rename=names)
            batch = next(iter(loader))
            assert list(batch) == ["pixel_values", "states", "words", "size"]
            assert same(batch["pixel_values"], first["pixels"])
            assert same(batch["states"], first["words"]["hidden"])
            assert batch["words"].keys() == {"pooled", "mask"}
        batch = next(iter(owner.feed(batch_size=2).loader(rename={"words": "prompt", "words.mask": "mask"})))
        assert batch.keys() == first.keys() - {"words"} | {"prompt", "mask"}
        assert batch["prompt"].keys() == {"hidden", "pooled"}

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"fields": ["latent"]}, "a batch has no 'latent'"),
            ({"fields": "pixels"}, "fields is a list of names"),
            ({"rename": {"words.ids": "ids"}}, "a batch has no 'words.ids'"),
            ({"rename": {"words": 1}}, "a new name for each name"),
            ({"rename": {"pixels": "size"}}, "pixels and size would both be 'size'"),
            ({"rename": {"words.hidden": "x", "words.pooled": "x"}}, "words.hidden and words.pooled would both be 'x'"),
            ({"rename": {"words.hidden": "words"}}, "would both be 'words'"),
            ({"rename": {"words": "text"}, "fields": ["pixels"]}, "words is renamed, and not among the fields"),
        ],
    )
    def test_names_that_cannot_be_meant_are_refused_at_once(
        self, owner: precook.Project, options: Any, reason: str
    ) -> None:
        """Before the first batch, with the names that there are."""
        feed = owner.feed(batch_size=2)
        with pytest.raises(precook.FeedError, match=reason) as caught:
            feed.loader(**options)
        if "no '" in reason:
            assert "pixels, words.hidden" in caught.value.hint


class TestSeveral:
    """Two loops over one feed, and what comes in between."""

    def test_the_state_of_a_feed_with_two_loaders_is_refused(self, owner: precook.Project) -> None:
        """After a pass of validation the feed does not say where training stands; the loader does."""
        feed = owner.feed(batch_size=2)
        training, validation = feed.loader(), feed.loader()
        next(iter(training))
        validation.set_epoch(0)
        for _ in validation:
            pass
        with pytest.raises(precook.FeedError, match="2 loaders") as caught:
            feed.state_dict()
        assert "loader.state_dict()" in str(caught.value.hint)
        assert training.state_dict()["batch"] == 1

    def test_an_epoch_that_is_set_inside_of_another_one_comes_next(self, owner: precook.Project) -> None:
        """Whatever is left of the iteration that was under way does not undo it; nor does it undo a state."""
        loader = owner.feed(batch_size=2).loader()
        expected = epochs(owner, 3)
        for number, _ in enumerate(loader):
            if number == 1:
                loader.set_epoch(2)
        assert equal(loader, expected[2])
        state = after(owner, 1)
        running = iter(loader)
        next(running)
        loader.load_state_dict(state)
        next(running)
        assert equal(loader, expected[0][1:])

    def test_a_loaded_state_holds_for_the_feed_and_its_next_loader(self, owner: precook.Project) -> None:
        """They go on where the loader does that was given the state."""
        feed = owner.feed(batch_size=2)
        feed.loader().load_state_dict(after(owner, 2))
        assert equal(feed.loader(), epochs(owner, 1)[0][2:])

    def test_a_loader_that_cannot_be_made_leaves_the_feed_as_it_was(self, owner: precook.Project) -> None:
        """Its batch size with it."""
        feed = owner.feed(batch_size=2)
        with pytest.raises(precook.FeedError, match="no 'nothing'"):
            feed.loader(batch_size=3, fields=["nothing"])
        assert equal(feed.epoch(0), epochs(owner, 1)[0])

    def test_the_length_after_a_break_is_that_of_the_next_epoch(self, owner: precook.Project) -> None:
        """As it is of the one that is under way until then."""
        loader = owner.feed(batch_size=2).loader()
        for _ in loader:
            break
        loader.feed.schedule = lambda epoch: type("Steps", (), {"steps": 100 + epoch})  # type: ignore[method-assign]
        assert len(loader) == 101

    def test_a_closed_feed_gives_no_batches(self, owner: precook.Project) -> None:
        """Nothing keeps its entries any more."""
        feed = owner.feed(batch_size=2)
        loader = feed.loader()
        feed.close()
        with pytest.raises(precook.FeedError, match="closed"):
            list(loader)

    def test_more_batches_than_an_epoch_has_are_no_state(self, owner: precook.Project) -> None:
        """A state that nobody has taken is refused."""
        with pytest.raises(precook.FeedError, match="99 of"):
            owner.feed(batch_size=2).load_state_dict({**after(owner, 2), "batch": 99})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_one_of_several_ranks_lacks_is_an_error(tmp_path: Path, workers: int) -> None:
    """The others would wait for it for ever; alone, it is left out."""
    path = tmp_path / "cache"
    with precook.open(path) as store:
        snapshot = frozen(store, precook.Recipe("test", {}), [np.full(8, number) for number in range(6)])
        key = snapshot.content.picture_keys["latent"][0].tobytes()
    (pack,) = (pack for pack in packs(path) if key in pack.read_bytes())
    pack.unlink()
    with precook.open(path) as store:
        snapshot = store.snapshot("made-up")
        with snapshot.feed(batch_size=1, on_missing="skip") as alone:
            assert len(list(alone.loader(num_workers=workers))) == 5
        lost = []
        for rank in range(2):
            with snapshot.feed(batch_size=1, on_missing="skip", rank=rank, world_size=2) as feed:
                try:
                    list(feed.loader(num_workers=workers))
                except precook.FeedError as error:
                    lost.append(error.message)
        assert len(lost) == 1
        assert "no sample of a batch can be had" in lost[0]
