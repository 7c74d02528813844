"""The benchmarks run with whatever peers are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark reads to torch tensors, and torch is not installed")

ROOT = Path(__file__).resolve().parents[2]


def test_quick_run_prints_ratios_and_goals(tmp_path: Path) -> None:
    """A smoke run of some sections names the missing peers and compares precook with those that are there."""
    command = [sys.executable, "bench/store.py", "--quick", "--only", "import,batch,read"]
    command += ["--dir", str(tmp_path), "--png", str(tmp_path / "store.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "not installed:" in done.stdout
    ratio = re.compile(r"precook against one \.pt per sample: \d+\.\dx \(goal: at least 30\.0x\): (not )?met")
    assert len(ratio.findall(done.stdout)) == 2
    assert re.search(r"share of memcpy: \d+\.\d\d \(goal: at least 0\.95\)", done.stdout)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"


def test_quick_build_run_compares_with_a_raw_write_and_loops_by_hand(tmp_path: Path) -> None:
    """A smoke run of the build benchmark prints shares of a raw write and of loops by hand, and what threads do."""
    pytest.importorskip("diffusers", reason="the benchmark encodes with a VAE, and diffusers is not installed")
    command = [sys.executable, "bench/build.py", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    share = re.compile(r"entries of (\d+) KiB, share of raw write \+ fsync: \d+\.\d\d \(goal: at least 0\.70\)")
    assert share.findall(done.stdout) == ["128", "512"]
    goal = r"precook, compile: off / batched by hand, eager: \d+\.\d\dx \(goal: at least 0\.95x\)"
    assert len(re.findall(goal, done.stdout)) == 2
    assert len(re.findall(r"^\| precook-encode-cpu +\| +1 \|", done.stdout, re.MULTILINE)) == 2
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"


def test_quick_run_of_the_feed_compares_it_with_a_copy_and_with_loaders(tmp_path: Path) -> None:
    """A smoke run says which share of memcpy a feed reaches, how it stands beside loaders, and what growth costs."""
    command = [sys.executable, "bench/feed.py", "--quick", "--only", "assembly,warm,growth", "--samples", "32"]
    command += ["--small-samples", "64", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"feed, one thread, verify_reads=False, share of memcpy: \d+\.\d\d \(goal: at least", done.stdout)
    ratio = re.compile(r"warm, (large|small), feed\.epoch against the best peer \(.*\): \d+\.\d\dx \(goal: at least")
    assert ratio.findall(done.stdout) == ["large", "small"]
    assert re.search(r"^\| 500 +\|", done.stdout, re.MULTILINE)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"


def test_tiny_run_trains_from_all_three_sources(tmp_path: Path) -> None:
    """On a processor, a tiny denoiser steps from resident tensors, from the feed and from live encoders."""
    for library in ("diffusers", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    command = [sys.executable, "bench/gpu_feed.py", "--device", "cpu", "--quick", "--dir", str(tmp_path)]
    # One thread: tiny models on a busy machine wait for threads more than they compute.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    alone, _, step = done.stdout.partition("### A training step")
    rows = re.findall(
        r"^\| (floor|tensors on the GPU|precook, feed\.\w+|one \.pt per sample).* \| +[\d,]+ ", alone, re.MULTILINE
    )
    assert rows == [
        "floor",
        "tensors on the GPU",
        *["precook, feed.epoch"] * 4,
        "precook, feed.loader",
        "one .pt per sample",
    ]
    rows = re.findall(r"^\| (tensors on the GPU|precook, feed\.epoch|encoding live) +\| +\d", step, re.MULTILINE)
    assert rows == ["tensors on the GPU", "precook, feed.epoch", "encoding live"]
    assert re.search(r"cached step / resident step: \d+\.\d{3}x \(goal: at most 1\.020x\)", done.stdout)


def test_quick_run_of_a_gpu_build_compares_with_the_loop_by_hand(tmp_path: Path) -> None:
    """On a processor, texts are encoded by hand and by a build that may compile, and the ratio has its goal."""
    pytest.importorskip("diffusers", reason="the benchmark imports it, and diffusers is not installed")
    command = [sys.executable, "bench/gpu_build.py", "--quick", "--runs", "1", "--only", "few-text"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    goal = r"precook, compile: auto / batched by hand, eager: \d+\.\d\dx \(goal: at least 0\.90x\)"
    assert len(re.findall(goal, done.stdout)) == 1
    assert re.search(r"compile: auto compiled in [01] of 1 runs", done.stdout)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"


def test_quick_run_of_what_may_hold_an_index_finds_every_key(tmp_path: Path) -> None:
    """A smoke run asks each index that can be had here, and names those that cannot."""
    command = [sys.executable, "bench/index_candidates.py", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\| (columns|sqlite) +\|", done.stdout, re.MULTILINE) == ["columns", "sqlite"]
    assert re.search(r"^\| slatedb |slatedb: left out", done.stdout, re.MULTILINE)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"
