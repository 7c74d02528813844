"""The mgds front against its contract: what a pipeline sees of the cache, epoch after epoch.

Numbers in names are those of the contract's semantics: groups (1), balancing (2), index map (3), variations (4), split
and aggregate (5), before_cache_fun (6), threads (7), values (8), order across caches (9), position of modules (10).
"""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

# ruff: noqa: E402 - without torch there is nothing to import
torch = pytest.importorskip("torch", reason="torch is not installed")

import precook
from precook.integrations.mgds.groups import GroupNames, IndexMap, SharedSettings, gather_groups
from precook.report import SILENT
from tests.support.mgds_pipelines import (
    MGDS,
    AspectBatchSorting,
    DiskCache,
    Module,
    OutputPipelineModule,
    PipelineModule,
    PipelineState,
    Run,
    SingleVariationRandomAccessPipelineModule,
    Theirs,
    collect_pictures,
    concept,
    pictures,
    shown,
)


@pytest.fixture
def dogs(tmp_path: Path) -> Path:
    """Another one with three."""
    pictures(tmp_path / "dogs", 3)
    return tmp_path / "dogs"


class Many(Module):
    """Every kind of value that OneTrainer caches, and the sample's number."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__("image_path", "")
        self.made = sorted(values)
        self._values = lambda: values

    def get_outputs(self) -> list[str]:
        return self.made

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return dict(self._values())


def caches_values(folder: Path, cats: Path, values: dict[str, Any], device: str = "cpu", **options: Any) -> Any:
    """A pipeline whose cache holds these values, started."""
    paths = collect_pictures()
    options = {"split_names": sorted(values), "aggregate_names": []} | options
    cache = DiskCache(
        cache_dir=str(folder),
        source_path_in_name="image_path",
        identities={"Many._values": 1},
        report=SILENT,
        **options,
    )
    state = PipelineState(1)
    names = [*options["split_names"], *options["aggregate_names"]]
    modules = [paths, Many(values), cache, OutputPipelineModule(names=names)]
    data = MGDS(torch.device(device), [concept(cats)], {}, modules, batch_size=1, state=state)
    try:
        data.start_next_epoch()
    finally:
        state.executor.shutdown()
    return cache


def test_the_class_has_the_shape_of_the_one_it_replaces() -> None:
    """Bases in the same order, and the nine arguments of mgds' own class with the same names and defaults."""
    assert DiskCache.__mro__[1:3] == (PipelineModule, SingleVariationRandomAccessPipelineModule)
    ours = list(inspect.signature(DiskCache.__init__).parameters.values())
    theirs = list(inspect.signature(Theirs.__init__).parameters.values())
    assert [(one.name, one.default) for one in ours[:10]] == [(one.name, one.default) for one in theirs]
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in ours[10:])


@pytest.mark.parametrize(
    ("cat_changes", "dog_changes"),
    [
        ({}, {}),
        ({"image_variations": 2, "text_variations": 3}, {"balancing": 0.5}),
        ({"balancing": 2.5, "image_variations": 3, "text_variations": 2}, {"balancing": 0.34}),
        ({"balancing": 3, "balancing_strategy": "SAMPLES", "image_variations": 2}, {"enabled": False}),
        ({"balancing": 9, "balancing_strategy": "SAMPLES", "image_variations": 2}, {"balancing": 0.1}),
    ],
)
def test_1_to_4_every_epoch_is_the_one_that_mgds_own_cache_gives(
    tmp_path: Path, cats: Path, dogs: Path, cat_changes: dict[str, Any], dog_changes: dict[str, Any]
) -> None:
    """Groups, REPEATS, SAMPLES, variations and draws: the same items in the same order, in five epochs."""
    made = [concept(cats, **cat_changes), concept(dogs, **dog_changes)]
    with Run(tmp_path / "theirs", made, cache=Theirs) as theirs, Run(tmp_path / "ours", made) as ours:
        for _ in range(5):
            assert shown(ours.epoch()) == shown(theirs.epoch())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 3),
            st.sampled_from([("REPEATS", 0.5), ("REPEATS", 1.0), ("REPEATS", 2.25), ("SAMPLES", 2), ("SAMPLES", 7)]),
            st.booleans(),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 6),
)
def test_1_to_3_the_index_map_reads_one_endless_tape_per_group(samples: list[Any], epoch: int) -> None:
    """Whatever the groups, output o of epoch e is tape position o + e * outputs of its group."""
    concepts = [
        {"g": group, "v": variations, "s": strategy, "b": balancing, "on": enabled}
        for group, variations, (strategy, balancing), enabled in samples
    ]
    names = GroupNames("concept.v", "concept.b", "concept.s", ("concept.g",), "concept.on")
    shared = SharedSettings(lambda _, name, index: concepts[index], names.all)
    found = IndexMap(gather_groups(shared, names, len(concepts)))
    expected = []
    for group in dict.fromkeys(one["g"] for one in concepts if one["on"]):
        members = [at for at, one in enumerate(concepts) if one["on"] and one["g"] == group]
        first = concepts[members[0]]
        outputs = math.floor(len(members) * first["b"]) if first["s"] == "REPEATS" else int(first["b"])
        for output in range(outputs):
            tape = output + epoch * outputs
            expected.append((members[tape % len(members)], tape // len(members) % first["v"]))
    located = [found.locate(epoch, output) for output in range(len(found))]
    assert [(int(found.groups[at].members[member]), variation) for at, variation, member in located] == expected
    assert {(at, variation) for at, variation, _ in located} == {
        (at, variation) for at, group in enumerate(found.groups) for variation in group.variations_in(epoch)
    }


def test_2_an_unknown_balancing_strategy_is_named(tmp_path: Path, cats: Path) -> None:
    """Another strategy than REPEATS and SAMPLES is refused with its name, before anything is encoded."""
    with Run(tmp_path, [concept(cats, balancing_strategy="LOTTERY")]) as run:
        with pytest.raises(precook.ConfigError, match="LOTTERY"):
            run.start()
        assert run.encoded == (0, 0)


def test_4_variations_are_built_when_an_epoch_first_reads_them_and_for_the_whole_group(
    tmp_path: Path, cats: Path
) -> None:
    """SAMPLES 2 of 4 encodes 4 at once, nothing in the next epoch, and 4 again when the tape reaches variation 1."""
    made = [concept(cats, balancing=2, balancing_strategy="SAMPLES", image_variations=2)]
    with Run(tmp_path, made) as run:
        built = []
        for _ in range(6):
            run.epoch()
            built.append(len(run.encoder.calls))
        assert built == [4, 0, 4, 0, 0, 0]


def test_4_a_run_that_resumes_at_epoch_3_goes_on_where_the_tape_is(tmp_path: Path, cats: Path, dogs: Path) -> None:
    """A new process at epoch 3 gives what a run through epochs 0 to 3 gives, with the cache of the other or without."""
    made = [concept(cats, image_variations=3, text_variations=2), concept(dogs, balancing=0.5)]
    with Run(tmp_path / "a", made) as through:
        for _ in range(3):
            through.epoch()
        expected = shown(through.epoch())
    with Run(tmp_path / "a", made, epoch=3) as resumed, Run(tmp_path / "b", made, epoch=3) as anew:
        assert shown(resumed.epoch()) == expected
        assert resumed.encoded == (0, 0)
        assert shown(anew.epoch()) == expected


def test_5_an_item_brings_all_values_of_its_part_and_nothing_for_no_name(tmp_path: Path, cats: Path) -> None:
    """One read gives every split value, a look into memory every aggregate, and no name gives an empty dict."""
    with Run(tmp_path, [concept(cats)]) as run:
        run.start()
        assert set(run.image_cache.get_item(1, "latent_image")) == {"latent_image", "original_resolution"}
        assert set(run.image_cache.get_item(1, "image_path")) == {"crop_resolution", "image_path"}
        assert run.image_cache.get_item(1) == {}
        assert run.image_cache.get_outputs() == [
            "latent_image",
            "original_resolution",
            "crop_resolution",
            "image_path",
        ]
        with pytest.raises(IndexError):
            run.image_cache.get_item(4, "latent_image")


def test_5_each_item_is_a_fresh_dict_with_values_of_its_own(tmp_path: Path, cats: Path) -> None:
    """Whatever a caller does to an item, the next one to ask gets what was stored."""
    with Run(tmp_path, [concept(cats)]) as run:
        run.start()
        for name in ("latent_image", "crop_resolution"):
            first = run.image_cache.get_item(0, name)
            kept = shown([first])
            for value in first.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
            first.clear()
            assert shown([run.image_cache.get_item(0, name)]) == kept
    values = {"latent": torch.ones(1), "notes": [1, {"a": [2]}]}
    cache = caches_values(tmp_path / "list", cats, values, split_names=["latent"], aggregate_names=["notes"])
    cache.get_item(0, "notes")["notes"][1]["a"].append(3)
    assert cache.get_item(0, "notes") == {"notes": [1, {"a": [2]}]}
    cache.close()


def test_5_the_cache_has_the_inputs_length_before_it_starts_and_its_own_after(tmp_path: Path, cats: Path) -> None:
    """Before the first start there are as many as upstream has, afterwards as many as the balancing shows."""
    with Run(tmp_path, [concept(cats, balancing=2.5)]) as run:
        for module in run.data.loading_pipeline.modules[:3]:
            module.start(0)
        assert run.image_cache.length() == 4
        run.image_cache.current_variation = 0
        run.image_cache.start(0)
        assert run.image_cache.length() == 10


def test_6_before_cache_fun_is_called_once_and_only_when_something_is_computed(
    tmp_path: Path, cats: Path, dogs: Path
) -> None:
    """Two groups with misses call it once; a start that finds everything does not; one new variation does again."""
    made = [concept(cats, image_variations=2), concept(dogs)]
    with Run(tmp_path, made) as run:
        called = []
        for _ in range(3):
            run.epoch()
            called.append(list(run.before))
        assert called == [["image", "text"], ["image"], []]


def test_6_reading_an_item_never_encodes(tmp_path: Path, cats: Path) -> None:
    """An entry that is lost in the middle of an epoch is an error that names it, never a call of the encoder."""
    with Run(tmp_path, [concept(cats)], image_options={"store": precook.open(tmp_path / "store")}) as run:
        run.start()
        run.encoder.calls.clear()
        for pack in (tmp_path / "store" / "packs").glob("*/*.safetensors"):
            pack.unlink()
        with pytest.raises(precook.MissingEntryError):
            list(run.items())
        assert run.encoded[0] == 0


def test_7_a_view_is_stored_without_the_tensor_behind_it(tmp_path: Path, cats: Path) -> None:
    """Cropped views in a list take the bytes they show, not those of their whole storage."""
    large = torch.arange(1_000_000, dtype=torch.float32)
    with precook.open(tmp_path / "store") as store:
        cache = caches_values(tmp_path, cats, {"views": [large[:2], large[5:8]]}, store=store)
        found = cache.get_item(0, "views")["views"]
        assert [view.tolist() for view in found] == [[0, 1], [5, 6, 7]]
        assert store.stats().payload_bytes < 1000


def test_8_every_kind_of_value_comes_back_as_it_went_in(tmp_path: Path, cats: Path) -> None:
    """Tensors of every dtype and shape, lists of tensors, tuples and texts keep their types, nested ones too."""
    values = {
        "half": torch.randn(4, 2, 3).half(),
        "brain": torch.randn(5).bfloat16(),
        "single": torch.randn(()),
        "tokens": torch.arange(7),
        "layers": [torch.randn(3, 2), torch.randn(1, 2)],
        "pair": (torch.zeros(1), 2),
        "resolution": (64, 128),
        "path": "somewhere/a.png",
        "number": 3,
        "nested": {"a": [(1, 2), None], "b": {"c": 1.5}},
    }
    cache = caches_values(tmp_path / "split", cats, values)
    assert shown([cache.get_item(2, "half")]) == shown([values])
    assert type(cache.get_item(2, "half")["resolution"]) is tuple
    cache.close()
    names = sorted(values)
    cache = caches_values(tmp_path / "both", cats, values, split_names=["half"], aggregate_names=names[1:])
    assert shown([cache.get_item(2, names[1])]) == shown([{name: values[name] for name in names[1:]}])
    cache.close()


def test_8_a_distribution_is_made_again_from_its_parameters(tmp_path: Path, cats: Path) -> None:
    """What fine-tuning a VAE caches can be sampled after it was read, and has the same mean and deviation."""
    vae = pytest.importorskip("diffusers.models.autoencoders.vae", reason="diffusers is not installed")
    made = vae.DiagonalGaussianDistribution(torch.randn(1, 8, 2, 2))
    cache = caches_values(tmp_path, cats, {"distribution": made})
    found = cache.get_item(0, "distribution")["distribution"]
    assert type(found) is vae.DiagonalGaussianDistribution
    assert torch.equal(found.mean, made.mean)
    assert torch.equal(found.std, made.std)
    assert found.sample().shape == made.sample().shape
    cache.close()


def test_8_tensors_come_back_on_the_pipelines_device(tmp_path: Path, cats: Path) -> None:
    """Whatever device the pipeline names gets the tensors, inside lists too."""
    values = {"layers": [torch.zeros(2)], "latent": torch.zeros(3)}
    cache = caches_values(tmp_path, cats, values, device="meta")
    found = cache.get_item(0, "latent")
    assert found["latent"].device.type == found["layers"][0].device.type == "meta"
    cache.close()


def test_9_picture_text_and_concept_of_an_item_belong_to_one_sample(tmp_path: Path, cats: Path, dogs: Path) -> None:
    """With balancing and variations that differ, no item mixes two samples, in any epoch."""
    made = [
        concept(cats, balancing=0.7, image_variations=2, text_variations=3, image={"strength": 0}),
        concept(dogs, balancing=5, balancing_strategy="SAMPLES", image={"strength": 0}),
    ]
    with Run(tmp_path, made) as run:
        for _ in range(4):
            for item in run.epoch():
                path = Path(item["image_path"])
                text = "".join(map(chr, item["tokens"].tolist()))
                assert item["concept_name"] == path.parent.name
                assert text in path.with_suffix(".txt").read_text().splitlines()
                assert item["latent_image"].tolist() == list(path.read_bytes())


@pytest.mark.parametrize("cache", [Theirs, DiskCache], ids=["theirs", "ours"])
def test_10_resolutions_are_tuples_that_batches_are_sorted_by(tmp_path: Path, cats: Path, cache: Any) -> None:
    """A module that sorts by resolution works behind the cache, and draws what it draws behind mgds' own."""
    orders = []
    for kind in (cache, Theirs):
        sorting = AspectBatchSorting(resolution_in_name="crop_resolution", names=["image_path"], batch_size=2)
        pictures(cats, 8)
        with Run(tmp_path / kind.__module__, [concept(cats)], target="64,128", cache=kind) as run:
            run.start()
            modules = run.data.loading_pipeline.modules
            sorting.init(run.data.loading_pipeline, 42, len(modules) - 1, run.state)
            sorting.current_variation = 0
            sorting.start(0)
            orders.append([sorting.get_item(at, "image_path")["image_path"] for at in range(sorting.length())])
    assert orders[0] == orders[1]
    assert len(orders[0]) >= 6


def test_a_value_of_none_is_refused_and_never_returned(tmp_path: Path, cats: Path) -> None:
    """A name without a value would make mgds read another sample: the sample and the name are reported instead."""
    with pytest.raises(precook.EncodeError, match=r"000\.png: mask has no value"):
        caches_values(tmp_path, cats, {"mask": None})


def test_numbers_that_are_not_numbers_are_refused(tmp_path: Path, cats: Path) -> None:
    """A latent with NaN in it, as a VAE in half precision makes them, is reported and not kept."""
    with pytest.raises(precook.EncodeError, match="latent holds numbers that are not numbers"):
        caches_values(tmp_path, cats, {"latent": torch.tensor([1.0, float("nan")])})


def test_without_variations_there_is_one_group_with_as_many_outputs_as_inputs(tmp_path: Path, cats: Path) -> None:
    """The plain form of the cache, with names only, keeps every input once."""
    cache = caches_values(tmp_path, cats, {"latent": torch.ones(2)})
    assert cache.length() == 4
    assert cache.get_item(3, "latent")["latent"].tolist() == [1, 1]
    cache.close()
