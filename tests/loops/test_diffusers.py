"""The loops of diffusers' LoRA scripts, on tiny random models: they train on what `feed.epoch` says."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import precook
from tests.loops.ranks import EPOCHS, Job, Kill, expected, train
from tests.support.projects import picture

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("accelerate", "diffusers", "transformers", "peft"):
    pytest.importorskip(library, reason=f"{library} is not installed")
pytest.importorskip("bench.loops", reason="the benchmarks are not here")

from bench.loops import Flux, StableDiffusion, StableDiffusionXL  # noqa: E402

from tests.loops.plain import EVERY  # noqa: E402
from tests.loops.with_diffusers import SIDE, diffused  # noqa: E402

SEED = os.environ.get("PRECOOK_LOOPS_SEED", "0")
"""Decides where loops are killed."""
COUNT = 7
"""Pictures: neither one rank nor two make full batches of them."""


@pytest.fixture(scope="module", params=[StableDiffusion, StableDiffusionXL, Flux], ids=lambda kind: kind.family)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pipeline_of: Callable[[str], Path]
) -> Job:
    """A loop of this family, with its pipeline and a build."""
    family, folder = request.param.family, tmp_path_factory.mktemp(request.param.family)
    for number in range(COUNT):
        path = picture(folder / "data" / f"{number}.png", number, (80 + 7 * number, 120 - 3 * number))
        path.with_suffix(".txt").write_text("a cat on the mat, " * (number % 4) + f"number {number}")
    (folder / "model").symlink_to(pipeline_of(family))
    vae = {"uses": "diffusers-vae", "model": "model", "subfolder": "vae", "posterior": "moments", "scaled": True}
    with precook.Project(
        base=folder,
        dataset="test",
        concepts=[{"name": "pets", "path": "data"}],
        image={"resolutions": [f"{SIDE}x{SIDE}"]},
        encoders={"latent": vae, "prompt": {"uses": "diffusers-prompt", "model": "model", **request.param.prompt}},
    ) as project:
        assert not project.build().failed
        options = {"family": family, "model": str(pipeline_of(family))}
        return Job(Path(project.store_path), folder / "out", options=options)


def test_a_killed_script_goes_on_with_the_batches_that_are_left(job: Job) -> None:
    """Up to a random step and from its last checkpoint on, all batches of three epochs are those of the feed."""
    (whole,) = expected(job)
    draws = random.Random(f"{SEED} {job.options['family']}")
    kill = Kill(0, draws.randrange(EVERY + 1, len(whole)))
    assert train(diffused, replace(job, kill=kill)).seen == [whole[: kill.batches]]
    ended = train(diffused, job)
    assert ended.resumed == (kill.batches - 1) // EVERY * EVERY
    assert ended.seen == [whole[ended.resumed :]]


def test_two_ranks_share_the_batches_of_each_epoch(job: Job) -> None:
    """Each rank sees what the feed has for it: every picture once in each epoch, and each epoch in another order."""
    both = replace(job, folder=job.folder.with_name("both"), ranks=2)
    ended = train(diffused, both)
    assert ended.seen == expected(both)
    shown = [
        [name for seen in ended.seen for number, names, _ in seen if number == epoch for name in names]
        for epoch in range(EPOCHS)
    ]
    assert [len(set(names)) for names in shown] == [len(names) for names in shown] == [COUNT] * EPOCHS
    assert shown[0] != shown[1] != shown[2] != shown[0]
