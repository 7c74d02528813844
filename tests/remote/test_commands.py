"""Commands over a store in a bucket: the same words, the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import precook
from tests.support.buckets import Buckets, fresh
from tests.support.commands import Ended, run
from tests.support.projects import picture

SECTIONS = {
    "dataset": "pets",
    "concepts": [{"name": "things", "path": "data"}],
    "image": {"resolutions": [64], "step": 16},
    "encoders": {"pixels": {"uses": "image"}},
}


@pytest.fixture
def config(buckets: Buckets, tmp_path: Path) -> Path:
    """A config whose store is in a bucket, with three pictures."""
    return write_config(tmp_path, buckets.url(fresh()), buckets)


def write_config(base: Path, store: str, buckets: Buckets) -> Path:
    for number in range(3):
        picture(base / "data" / f"{number}.png", seed=number)
        (base / "data" / f"{number}.txt").write_text(f"caption {number}\n")
    path = base / "precook.yaml"
    path.write_text(yaml.safe_dump({"store": store, "cache": {"path": str(buckets.cache)}, **SECTIONS}))
    return path


def encoded(ended: Ended) -> dict[str, int]:
    """What a build says at its end."""
    report: dict[str, int] = json.loads(ended.out.splitlines()[-1])["encoded"]
    return report


def test_a_project_is_built_into_a_bucket_and_a_second_build_encodes_nothing(config: Path) -> None:
    """REMOTE A2: plan, build, ls, show, verify, snapshots, explain and status work as over a folder."""
    at = ("--config", config)
    assert len(run("plan", *at, "--json").document["missing"]) == 3
    first = run("build", *at, "--json")
    assert (first.code, encoded(first)) == (0, {"pixels": 3}), first.err
    again = run("build", *at, "--json")
    assert (again.code, encoded(again)) == (0, {"pixels": 0})
    entries = run("ls", *at, "--json").document["entries"]
    assert len(entries) == 3
    assert run("show", entries[0]["key"], *at).code == 0
    verified = run("verify", *at, "--json").document
    assert (verified["clean"], verified["entries"], verified["snapshots"]) == (True, 3, 1)
    assert [file["dataset"] for file in run("snapshots", *at, "--json").document["snapshots"]] == ["pets"]
    assert run("explain", config.parent / "data" / "0.png", *at).code == 0
    status = run("status", *at, "--json")
    assert status.code == 0, status.err
    assert "://" in status.document["path"]
    assert status.document["entries"] == 3


def test_a_bucket_is_fed_from(config: Path) -> None:
    """Batches are those of the project, on this machine and, forked, in the workers of a loader."""
    torch = pytest.importorskip("torch")
    with precook.load(config) as project:
        project.build()
        with project.feed(batch_size=1, seed=0) as feed:
            one = [batch["sample"] for batch in feed.epoch(0)]
            loader = feed.loader(num_workers=2)
            other = list(loader)
        assert len(one) == len(other) == 3
        assert all(torch.is_tensor(batch["pixels"]) for batch in other)


def test_what_only_a_folder_can_do_is_refused_by_name(folder: Buckets, tmp_path: Path) -> None:
    """Removals from a bucket, imports and adoptions say that they are not for it, and change nothing."""
    config = write_config(tmp_path, folder.url(fresh()), folder)
    assert run("build", "--config", config).code == 0
    before = sorted(path.name for path in Path(folder.root / "far").rglob("*"))
    commands: list[tuple[object, ...]] = [
        ("gc",),
        ("evict", "--max-size", "1MiB"),
        ("prune", "--older-than", "1d"),
        ("clear", "--dataset", "pets"),
        ("compact",),
    ]
    for command in commands:
        ended = run(*command, "--config", config)
        assert ended.code != 0, command
        assert f"{command[0]} is not for a store in a bucket yet" in ended.err.replace("\n", " "), ended.err
    assert sorted(path.name for path in Path(folder.root / "far").rglob("*")) == before


def test_the_doctor_says_what_a_bucket_can_do(buckets: Buckets) -> None:
    """REMOTE A8: it writes, reads, lists, reads a range, creates in a race, and removes what it wrote."""
    url = buckets.url(fresh())
    ended = run("doctor", "--store", url, "--json")
    topics = {finding["topic"]: finding["level"] for finding in ended.document["findings"]}
    assert {topics[topic] for topic in ("write", "read", "range", "list", "delete")} == {"ok"}, ended.out
    assert topics["store"] == "note"
    assert "create" in topics
    assert ended.document["path"] == url


def test_a_url_with_credentials_is_refused_without_repeating_them(tmp_path: Path) -> None:
    """REMOTE A7: neither a user nor a query may stand in a URL, nor a secret in the config."""
    for url in ("s3://me:hunter2@bucket/x", "s3://bucket/x?token=hunter2"):
        ended = run("ls", "--store", url)
        assert ended.code == 2
        assert "hunter2" not in ended.out + ended.err
    path = tmp_path / "precook.yaml"
    path.write_text(yaml.safe_dump({**SECTIONS, "remote": {"secret_access_key": "hunter2"}}))
    ended = run("ls", "--config", path)
    assert ended.code == 2
    assert "AWS_SECRET_ACCESS_KEY" in ended.err
    assert "hunter2" not in ended.err
