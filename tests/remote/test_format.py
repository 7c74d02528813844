"""docs/reference/bucket.md, word for word: its vectors, and names that are none of ours."""

from __future__ import annotations

import re

import numpy as np
import pytest
from blake3 import blake3

import precook
from precook.store.format.build import build_pack, make_entry
from precook.store.remote import layout
from precook.store.remote.url import RemoteOptions, find_endpoint, parse_url
from precook.store.tree import take_apart
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "bucket.md"


def test_the_vectors_on_the_page_are_what_the_code_makes() -> None:
    """A pack, the names of its objects, and its leaf."""
    entry = make_entry(bytes([1]) * 32, take_apart({"x": np.arange(3, dtype=np.uint8)}))
    image = build_pack([entry], created=0, salt="0123456789abcdef")
    rows = dict(re.findall(r"^\| ([^|]+?) \| `?([^`|]+?)`? \|$", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {name: value for name, value in rows.items() if name not in ("what", "---")} == {
        "pack id": image.id,
        "pack": layout.pack_object(image.id),
        "leaf, written at second 0": layout.leaf_object(image.id, 0),
        "bytes of the leaf": str(len(image.head)),
        "BLAKE3 of the leaf": blake3(image.head).hexdigest(),
    }


@pytest.mark.parametrize(
    "name",
    [
        "packs/ab/../../x.safetensors",
        f"packs/aa/{'b' * 64}.safetensors",
        f"index/leaves/2026-{'a' * 64}",
        f"snapshots/../{'0' * 8}-{'a' * 64}.safetensors",
        f"snapshots/a/b/{'0' * 8}-{'a' * 64}.safetensors",
    ],
)
def test_a_name_that_is_none_of_ours_is_nothing(name: str) -> None:
    """Nothing that somebody else put there becomes a path."""
    assert layout.read_pack(name) is layout.read_leaf(name) is layout.read_snapshot_name(name) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://bucket/x",
        "s3://",
        "s3:///x",
        "s3://bucket/../x",
        "s3://u@bucket/x",
        "s3://b/x?y",
        "file://host/x",
        "s3://b/a//b",
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """By an error of usage."""
    with pytest.raises(precook.ConfigError):
        parse_url(url)


def test_without_obstore_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is started or made."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(precook.PrecookError, match=r"precook\[remote\]"):
        precook.open("s3://bucket/x")


def test_requests_to_other_machines_are_encrypted() -> None:
    """Plain http is for this machine, or for whoever asks for it."""
    for endpoint in ("http://127.0.0.1:9000", "http://localhost:9000", "https://host"):
        assert find_endpoint(parse_url("s3://b/x", RemoteOptions(endpoint=endpoint))) == endpoint
    with pytest.raises(precook.ConfigError, match="encrypted"):
        find_endpoint(parse_url("s3://b/x", RemoteOptions(endpoint="http://host")))
    allowed = RemoteOptions(endpoint="http://host", allow_http=True)
    assert find_endpoint(parse_url("s3://b/x", allowed)) == "http://host"
