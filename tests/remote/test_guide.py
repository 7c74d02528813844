"""docs/guides/bucket.md, typed in as a reader would, against an S3 server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import precook
from tests.support.buckets import Buckets
from tests.support.pages import ROOT, console_blocks
from tests.support.projects import picture

PAGE = ROOT / "docs" / "guides" / "bucket.md"
CONFIG = """\
dataset: pets
concepts: [{name: cats, path: data, captions: {text: a cat}}]
image: {resolutions: [64], step: 16}
encoders: {pixels: {uses: image}}
"""


def test_the_guide_does_what_it_shows(s3: Buckets, tmp_path: Path) -> None:
    """Every command, in the order of the page."""
    programs, reader = tmp_path / "programs", tmp_path / "reader"
    programs.mkdir()
    (programs / "precook").write_text(f'#!/bin/sh\nexec {sys.executable} -m precook "$@"\n')
    (programs / "precook").chmod(0o755)
    for number in range(3):
        picture(reader / "data" / f"{number}.png", number)
    (reader / "precook.yaml").write_text(CONFIG)
    with precook.load(reader / "precook.yaml") as project:
        project.build()
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PRECOOK_CACHE": str(tmp_path / "near"),
    }
    examples = [example for block in console_blocks(PAGE) for example in block]
    assert len(examples) > 4
    for example in examples:
        ended = subprocess.run(
            example.command,
            shell=True,
            cwd=reader,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout.decode()
        assert re.fullmatch(example.pattern, ended.stdout.decode()), ended.stdout.decode()
