"""What fuzzing started from and what it found, replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from precook.store.format.header import header_length
from precook.store.format.pack import parse_head, parse_pack_header
from tests.fuzz.fuzz_pack import FINDINGS, read_everything, seeds


def test_the_seeds_are_good_packs() -> None:
    """The fuzzer starts from packs that are accepted."""
    for seed in seeds():
        header = parse_pack_header(seed[: header_length(seed)])
        assert parse_head(header, seed[: header.length + header.directory]).file_bytes == len(seed)
        read_everything(b"f" + seed)


@pytest.mark.parametrize("finding", sorted(FINDINGS.glob("*")), ids=lambda file: file.name)
def test_a_past_finding_stays_mended(finding: Path) -> None:
    """Every input that once broke the reader is refused or read."""
    read_everything(finding.read_bytes())
