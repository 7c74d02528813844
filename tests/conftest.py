"""What every test shares."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import precook
from tests.support.descriptors import descriptors, listed

# Whatever started the tests may ignore Ctrl-C, as a shell does for a job in the background; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 on the CPU ends there with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Neither how busy the machine is nor how many draws were of no use says anything about a property.
CHANCE = [HealthCheck.too_slow, HealthCheck.filter_too_much]
settings.register_profile("quick", deadline=None, suppress_health_check=CHANCE)
settings.register_profile("long", settings.get_profile("quick"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test that leaves a thread of ours or an open pack behind fails."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("precook"):
            thread.join(timeout=60)
            assert not thread.is_alive(), f"{thread.name} still runs"
    if Path("/proc/self/fd").is_dir() and any(map(is_ours, listed())):
        # Once more without garbage: when that goes is chance.
        assert not list(filter(is_ours, descriptors()))


@pytest.fixture(autouse=True)
def forgotten_accelerate() -> Iterator[None]:
    """What accelerate knows of ranks and loops, it knows for the whole process: the next test begins without it."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def is_ours(name: str) -> bool:
    """Whether an open file is a pack, whole or in the making."""
    return name.endswith((".safetensors", ".partial"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "cache"


@pytest.fixture
def store(path: Path) -> Iterator[precook.Store]:
    """An empty store."""
    with precook.open(path) as opened:
        yield opened


@pytest.fixture
def recipe() -> precook.Recipe:
    """Some recipe."""
    return precook.Recipe("test", {"version": 1})


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread: beside other tests, two that wait for each other are many times slower than one."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pipeline_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny pipeline, by its family; each is made once, and nobody writes to it."""
    from tests.support.pipelines import tiny_pipeline  # noqa: PLC0415 - skips where torch is not installed

    return cache(lambda family: tiny_pipeline(family, tmp_path_factory.mktemp("pipelines") / family))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few MiB, at a place with a space in its name."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place = tmp_path / "small disk"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(place), b"tmpfs", 0, b"size=6m") != 0:
        pytest.skip(f"no permission to mount here: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        libc.umount2(bytes(place), 2)
