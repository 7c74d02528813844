"""mgds and OneTrainer: a `DiskCache` with our store underneath, to be used in place of theirs.

`build.py` has the cache that makes what it misses, and `sourceless.py` the one that trains without sources; `cache.py`
has what both share. `groups.py` says which sample an output shows. `upstream.py`, `sources.py` and `keys.py` say what
decides an entry, `entries.py` what is in it, and `packs.py` whether it is sound.

mgds is imported when `DiskCache` is first asked for: its classes have to be the bases of ours.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from precook.errors import StoppedError
from precook.integrations.mgds.build import BuildingCache
from precook.integrations.mgds.cache import Cache, CacheOptions, MgdsPipeline
from precook.integrations.mgds.gc import collect, gc_clean, gc_preview, plan_collection
from precook.integrations.mgds.groups import GroupNames
from precook.integrations.mgds.sourceless import PROMPTS, SourcelessCache
from precook.integrations.mgds.upstream import COLLECT_PATHS, inspect_modules, qualified_name
from precook.maintain.gc import GRACE
from precook.maintain.remove import Removal, RemovalPlan
from precook.report import SILENT, Reporter, Task
from precook.store.store import Store

__all__ = ["IMPLIED", "CachingStoppedException", "DiskCache", "SmartDiskCache", "gc_clean", "gc_preview"]

DiskCache: Any
"""The class; see `_disk_cache` for what it takes."""
SmartDiskCache: Any
"""The same class, under the name that some imports have."""
CachingStoppedException = StoppedError
"""What `SmartDiskCache` raises when it is stopped, under the name that is caught."""

IMPLIED = {
    "modeltype": "every key holds what the encoders are",
    "trust_cache": "files are known by their stamps, and entries are checked once",
    "tolerate_missing_source": "that a file is not there is a fact like any other",
    "resolution_from_upstream": "all values of a sample are drawn together",
    "bucket_method_provider": "entries of several resolutions stay beside each other",
    "rebucket_provider": "entries of several resolutions stay beside each other",
    "aspect_bucketing": "the pipeline itself draws the resolution of each sample",
}
"""Arguments of `SmartDiskCache` that say what holds anyway, and why."""

_log = logging.getLogger("precook")


def __getattr__(name: str) -> Any:
    if name == "SmartDiskCache":
        return __getattr__("DiskCache") if "DiskCache" not in globals() else globals()["DiskCache"]
    if name != "DiskCache":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    made = globals()["DiskCache"] = _disk_cache()
    return made


def _disk_cache() -> Any:  # noqa: C901 - a whole class, made here because its base is the host's
    """The class, made from the mgds that is installed here.

    The name of this function is part of the class's own name, and that is part of the keys of a cache which reads
    through another one: renamed, it would lose their entries.
    """
    try:
        module = importlib.import_module("mgds.PipelineModule").PipelineModule
        kind = importlib.import_module("mgds.pipelineModuleTypes.SingleVariationRandomAccessPipelineModule")
    except ModuleNotFoundError as error:
        message = "precook.integrations.mgds needs mgds: install it from its repository, as OneTrainer does"
        raise ImportError(message, name=error.name) from error

    class DiskCache(module, kind.SingleVariationRandomAccessPipelineModule):  # type: ignore[misc, name-defined, valid-type]
        """Keeps what the modules before it make of a training set; takes the place of mgds' `DiskCache`.

        The first nine arguments are those of mgds. Of the others:

        - `store`: the folder of a store, or an open one, which caches may share; by default `precook` in `cache_dir`
        - `source_path_in_name`, `extra_watched_paths_in_names`: names of paths of which only the file's content counts
        - `content_key_in_name`: the name of the text that decides everything that is cached
        - `stop_callback`: asked between items; once it is true, `start` keeps what is made and raises `StoppedError`
        - `sourceless`: train on what was built, without the sources
        - `model_identity`: stands for the weights of all encoders, which are then not looked at
        - `snapshot`: a name for what a run needs: a collection keeps what the latest run of each name needs
        - `identities`: stands for single attributes of modules, such as `{"MapData.map_fn": 1}`
        - `skip_failed`: a sample that cannot be encoded is left out of the whole pipeline, with a warning
        - `build_max_workers`: so many threads build at a time, rather than those of the pipeline's pool
        - `report`: shows progress; by default tqdm does

        The arguments of mgds' `SmartDiskCache` are taken as well: `stop_check_fun` is `stop_callback`, and the others
        say what holds anyway (`IMPLIED`).
        """

        is_precook_cache = True

        def __init__(  # noqa: PLR0913, PLR0917 - the host's own signature
            self,
            cache_dir: str,
            split_names: list[str] | None = None,
            aggregate_names: list[str] | None = None,
            variations_in_name: str | None = None,
            balancing_in_name: str | None = None,
            balancing_strategy_in_name: str | None = None,
            variations_group_in_name: str | list[str] | None = None,
            group_enabled_in_name: str | None = None,
            before_cache_fun: Callable[[], None] | None = None,
            *,
            store: str | os.PathLike[str] | Store | None = None,
            source_path_in_name: str | None = None,
            extra_watched_paths_in_names: Sequence[str] = (),
            content_key_in_name: str | None = None,
            stop_callback: Callable[[], bool] | None = None,
            sourceless: bool = False,
            model_identity: object = None,
            snapshot: str | None = None,
            identities: Mapping[str, object] | None = None,
            skip_failed: bool = False,
            build_max_workers: int | None = None,
            report: Reporter | None = None,
            stop_check_fun: Callable[[], bool] | None = None,
            modeltype: str = "",
            trust_cache: bool = False,
            tolerate_missing_source: bool = False,
            resolution_from_upstream: bool = False,
            bucket_method_provider: Callable[[], str] | None = None,
            rebucket_provider: Callable[[float], list[str]] | None = None,
            aspect_bucketing: object = None,
        ) -> None:
            super().__init__()
            implied = {
                "modeltype": modeltype,
                "trust_cache": trust_cache,
                "tolerate_missing_source": tolerate_missing_source,
                "resolution_from_upstream": resolution_from_upstream,
                "bucket_method_provider": bucket_method_provider,
                "rebucket_provider": rebucket_provider,
                "aspect_bucketing": aspect_bucketing,
            }
            for name in [name for name, value in implied.items() if value]:
                _log.info("%s of the cache in %s is not needed: %s", name, cache_dir, IMPLIED[name])
            group = variations_group_in_name or []
            self._options = CacheOptions(
                cache_dir=os.fspath(cache_dir),
                split=tuple(split_names or ()),
                aggregate=tuple(aggregate_names or ()),
                groups=GroupNames(
                    variations=variations_in_name,
                    balancing=balancing_in_name,
                    strategy=balancing_strategy_in_name,
                    group=(group,) if isinstance(group, str) else tuple(group),
                    enabled=group_enabled_in_name,
                ),
                before_cache=before_cache_fun,
                store=store,
                sources=(*([source_path_in_name] if source_path_in_name else []), *extra_watched_paths_in_names),
                content=content_key_in_name,
                stop=stop_callback or stop_check_fun,
                sourceless=sourceless,
                model=model_identity,
                snapshot=snapshot,
                identities=identities or {},
                skip_failed=skip_failed,
                workers=build_max_workers,
                report=report or _bars(),
            )
            self._cache: Cache | None = None

        def init(self, pipeline: Any, base_seed: int, module_index: int, state: Any) -> None:
            super().init(pipeline, base_seed, module_index, state)
            before, behind = pipeline.modules[:module_index], pipeline.modules[module_index + 1 :]
            if self._options.sourceless:
                _pass_by_sorting(behind)
            asking = _past_caches(pipeline.modules, module_index)

            lists = _lists(pipeline.modules, module_index)

            def get_previous(variation: int, name: str, index: int) -> Any:
                if name in lists:
                    return lists[name].get_item(variation, index, name)[name]
                return asking(name)._get_previous_item(variation, name, index)  # noqa: SLF001 - mgds' own way

            def length(name: str) -> int | None:
                return asking(name)._get_previous_length(name)  # type: ignore[no-any-return]  # noqa: SLF001

            given = MgdsPipeline(
                # Now, before any module has started: what they find out in a run is no setting of theirs.
                modules=inspect_modules([] if self._options.sourceless else before),
                get_previous=get_previous,
                length=length,
                seed=base_seed,
                executor=state.executor,
                device=pipeline.device,
                prepare_threads=_prepare_threads,
                next_caches=lambda: _caches_behind(pipeline.modules, module_index),
                leave_out=lambda indices, epoch: _leave_out(pipeline.modules, module_index, indices, epoch),
            )
            self._cache = (SourcelessCache if self._options.sourceless else BuildingCache)(self._options, given)

        def get_inputs(self) -> list[str]:
            return [*self._options.names, *self._options.groups.all]

        def get_outputs(self) -> list[str]:
            names, concept = list(self._options.names), self._options.concept
            if not self._options.sourceless:
                return names
            return [*names, *PROMPTS, *([concept] if concept is not None else [])]

        def length(self) -> int:
            return len(self.cache)

        def start(self, variation: int) -> None:
            self.cache.start(variation)

        def get_item(self, index: int, requested_name: str | None = None) -> dict[str, Any]:
            return self.cache.item(self.current_variation, index, requested_name)

        @property
        def cache(self) -> Cache:
            """What it does its work with, once it stands in a pipeline."""
            if self._cache is None:
                raise RuntimeError("this cache is in no pipeline yet")
            return self._cache

        def gc_preview(self, *, grace: float = GRACE) -> RemovalPlan:
            """What a collection of the store would remove: entries of files that are gone, and what nobody needs."""
            return plan_collection(self.cache.store, grace=grace)

        def gc_clean(self, *, grace: float = GRACE) -> Removal:
            """Remove that; what was written or used less than `grace` seconds ago stays."""
            return collect(self.cache.store, grace=grace, report=self._options.report)

        def close(self) -> None:
            """Let go of the store; the end of the process does so too."""
            if self._cache is not None:
                self._cache.close()

    return DiskCache


def _past_caches(modules: Sequence[Any], position: int) -> Callable[[str], Any]:
    """For each name, the module that a cache at a position has to ask from: the one right behind the name's maker.

    Asked from the cache itself, a name that another cache before it has as well would come from that one, which numbers
    its outputs and not the samples, and knows no variation but the epoch's.
    """
    known: dict[str, Any] = {}

    def asking(name: str) -> Any:
        root = name.partition(".")[0]
        if root not in known:
            makers = [
                number
                for number, module in enumerate(modules[:position])
                if root in module.get_outputs() and not getattr(type(module), "is_precook_cache", False)
            ]
            known[root] = modules[makers[-1] + 1 if makers else position]
        return known[root]

    return asking


def _lists(modules: Sequence[Any], position: int) -> dict[str, Any]:
    """The module that lists files, by its outputs as far as no later module makes them anew.

    It is asked directly: for thousands of samples the walk through a pipeline takes longer than all else at a start.
    """
    made: dict[str, Any] = {}
    for module in modules[:position]:
        if not getattr(type(module), "is_precook_cache", False):
            made.update(dict.fromkeys(module.get_outputs(), module))
    return {name: module for name, module in made.items() if qualified_name(module) == COLLECT_PATHS}


def _pass_by_sorting(modules: Sequence[Any]) -> None:
    """Take `VariationSorting` out of a pipeline without sources.

    It finds the sample behind an output, for names that are not cached. A cache without sources has those names too, in
    the order of its outputs, and a balancing would be applied to them a second time.
    """
    for module in modules:
        if (
            f"{type(module).__module__}.{type(module).__name__}"
            == "mgds.pipelineModules.VariationSorting.VariationSorting"
        ):
            module.get_outputs = list
            module.start = lambda _: None


def _leave_out(modules: Sequence[Any], position: int, indices: Sequence[int], epoch: int) -> bool:
    """Take samples out of the list that every module of a pipeline goes by; whether that can be done.

    Everything behind the list counts anew then, and the caches that have started already start once more.
    """
    lists = [module for module in modules[:position] if qualified_name(module) == COLLECT_PATHS]
    if len(lists) != 1:
        return False
    for index in sorted(indices, reverse=True):
        del lists[0].paths[index]
        del lists[0].concepts[index]
    for module in modules:
        module.clear_item_cache()
    caches = [(at, module) for at, module in enumerate(modules) if getattr(type(module), "is_precook_cache", False)]
    for _, module in caches:
        module.cache.forget()
    for _, module in caches[: [at for at, _ in caches].index(position)]:
        module.cache.start(epoch)
    return True


def _caches_behind(modules: Sequence[Any], position: int) -> list[Cache]:
    """The caches that stand right behind one, without another module between them."""
    behind = itertools.takewhile(
        lambda module: getattr(type(module), "is_precook_cache", False), modules[position + 1 :]
    )
    return [module.cache for module in behind]


def _prepare_threads() -> Callable[[Callable[[], None]], None]:
    """What runs a function in a thread of mgds' pool on the device that is chosen here, and without gradients."""
    torch = importlib.import_module("torch")
    # Threads of the pool do not inherit the device.
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run(function: Callable[[], None]) -> None:
        if device is not None:
            torch.cuda.set_device(device)
        with torch.no_grad():
            function()

    return run


class _TqdmBars:
    """Shows tasks as mgds does."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm

    @contextlib.contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Task]:
        with self._tqdm(total=total, desc=name, unit=f" {unit}", smoothing=0.1) as bar:
            yield _TqdmBar(bar)


class _TqdmBar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:  # noqa: ARG002
        self._bar.update(amount)


def _bars() -> Reporter:
    try:
        return _TqdmBars(importlib.import_module("tqdm").tqdm)
    except ModuleNotFoundError:
        return SILENT  # mgds itself needs it; a stand-in may not
