"""The courier itself: how it is started, found and replaced, and what it answers when something fails."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import precook
from precook.store.remote.bucket import Bucket, BucketFault, ObjectFacts
from precook.store.remote.courier import client
from precook.store.remote.courier.client import CourierClient
from precook.store.remote.url import RemoteOptions, parse_url
from tests.remote.faulty import proxy
from tests.support.buckets import Buckets, fresh

if sys.platform == "win32":
    pytest.skip("there are no couriers on Windows", allow_module_level=True)

from precook.store.remote.courier import process

pytest.importorskip("obstore", reason="stores in buckets need precook[remote]")

PACK = "ab" * 32


class Pieces:
    """A bucket of one object, of which the first range fails while the second is on its way."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.returned = threading.Event()
        self.overtaken: list[bool] = []

    def ranges(self, _: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        if spans[0][0] == 0:
            self.begun.wait()
            raise BucketFault("away", "no answer")
        self.begun.set()
        self.overtaken.append(self.returned.wait(0.5))
        return [b"late"]


class Zeros:
    """A bucket whose objects are nothing but zeros."""

    def head(self, name: str) -> ObjectFacts:
        return ObjectFacts(name, 100, 1)

    def ranges(self, _: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(end - start) for start, end in spans]


def fetcher(bucket: Any, near: Path) -> process.Fetcher:
    return process.Fetcher(bucket, near)


def test_nothing_of_the_working_folder_runs(folder: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A json.py beside somebody's data is not ours to run."""
    (tmp_path / "json.py").write_text("open(__file__ + '.ran', 'w').close()\nfrom nothing import load\n")
    monkeypatch.chdir(tmp_path)
    with folder.open(fresh(), cache=tmp_path / "near"):
        pass
    assert not (tmp_path / "json.py.ran").exists()


def test_a_failed_piece_waits_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or they would write to a descriptor that has become another file's."""
    monkeypatch.setattr(process, "_PIECE", 4)
    bucket = Pieces()
    with (tmp_path / "file").open("wb") as file, pytest.raises(BucketFault, match="no answer"):
        fetcher(bucket, tmp_path)._download("name", file.fileno(), 8)
    bucket.returned.set()
    assert bucket.overtaken == [False]


def test_what_nobody_expected_is_answered_without_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's own error is no reason to hang up, and what it says may hold a secret."""

    def fail(*_: object) -> None:
        raise RuntimeError("s3cret")

    monkeypatch.setitem(process._VERBS, "get", fail)
    courier = process.Courier(RemoteOptions(), tmp_path)
    answer, _ = courier.answer({"verb": "get", "url": "memory://bucket/x"}, b"")
    assert answer == {"fault": "refused", "message": "get: RuntimeError"}


@pytest.mark.parametrize("error", ["AlreadyExistsError", "PreconditionError", "NotSupportedError", "NotFoundError"])
def test_a_write_that_is_not_done_is_refused(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an error that no client knows nor an object that is not there."""
    bucket = Bucket(parse_url("memory://bucket/x"))

    def fail(*_: object, **__: object) -> None:
        raise getattr(bucket._errors, error)("no")

    monkeypatch.setattr(bucket, "_obstore", SimpleNamespace(put=fail, delete=fail))
    with pytest.raises(BucketFault) as caught:
        bucket.put("name", b"content")
    assert caught.value.kind == "refused"
    if error in ("AlreadyExistsError", "PreconditionError"):
        assert bucket.create("name", b"content") is False
    else:
        with pytest.raises(BucketFault) as caught:
            bucket.create("name", b"content")
        assert caught.value.kind == "refused"


def test_a_clock_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written just before: no client asked for that object."""
    bucket = Bucket(parse_url("memory://bucket/x"))
    monkeypatch.setattr(bucket, "put", lambda *_: None)
    with pytest.raises(BucketFault) as caught:
        bucket.clock()
    assert caught.value.kind == "refused"


def test_what_was_fetched_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut there is no file with the right length and nothing in it."""
    place, named = tmp_path / "packs" / PACK, []
    monkeypatch.setattr(process.os, "fsync", lambda _: named.append(place.exists()))
    fetcher(Zeros(), tmp_path).fetch("name", PACK, f"packs/{PACK}", most=None, anew=False)
    assert named == [False]
    assert place.exists()


def test_a_leaf_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest could only be looked at with all of it in memory."""
    monkeypatch.setattr(process, "_LARGEST_LEAF", 10)
    bucket = Bucket(parse_url("memory://bucket/x"))
    bucket.put("leaf", bytes(11))
    assert fetcher(bucket, tmp_path).heads([(PACK, "leaf", 0)]) == {"failed": [PACK], "large": [("leaf", 11)]}


def test_a_leaf_that_is_too_large_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the client: nobody sees what a courier logs."""
    asking = CourierClient(parse_url("memory://bucket/x"), tmp_path)
    monkeypatch.setattr(asking, "_ask", lambda *_: ({"failed": [PACK], "large": [["leaf", 11]]}, b""))
    with caplog.at_level(logging.WARNING, "precook"):
        assert asking.heads([(PACK, "leaf", 0)]) == {PACK}
    assert "leaf has 11 bytes" in caplog.text


def test_a_refusal_is_no_end_for_others(s3: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A courier that was refused is replaced at once, although a client of it is idle, and that one is served too."""
    with proxy(s3.endpoint) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        url = parse_url(s3.url(fresh()))
        clients = [CourierClient(url, tmp_path) for _ in range(3)]
        with contextlib.ExitStack() as stack:
            for each in clients:
                stack.callback(each.close)
            idle, refused, new = clients
            assert idle.list("") == []
            server.denied = ("GET", "403", "AccessDenied")
            with pytest.raises(precook.errors.AccessError):
                refused.list("")
            server.denied = None
            assert new.list("") == []
            assert idle.list("") == []


def test_a_long_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes no socket with a path as long."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(long))
    asking = CourierClient(parse_url("memory://bucket/x"), tmp_path / "near")
    assert asking.list("") == []
    asking.close()
    assert list(long.iterdir()) == []


def test_a_courier_that_hangs_at_its_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it without end."""
    monkeypatch.setattr(client, "_PROGRAM", "import threading; threading.Event().wait()")
    monkeypatch.setattr(client, "_START_SECONDS", 0.5)
    with pytest.raises(precook.PrecookError, match="does not start"):
        CourierClient(parse_url("memory://bucket/x"), tmp_path).list("")


def test_an_endpoint_for_google_is_refused(tmp_path: Path) -> None:
    """Requests would go elsewhere than where somebody said."""
    url = parse_url("gs://bucket/x", RemoteOptions(endpoint="http://127.0.0.1:1"))
    with pytest.raises(precook.PrecookError, match="endpoint"):
        CourierClient(url, tmp_path)
