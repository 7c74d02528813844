"""Buckets of each kind, for every test here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.ceph import ceph_server
from tests.support.buckets import KEY_ID, SECRET, Buckets, credentials, make_signed_bucket, s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server with a bucket: moto's, or with PRECOOK_S3_SERVER=ceph a real one."""
    if os.environ.get("PRECOOK_S3_SERVER") == "ceph":
        with ceph_server(tmp_path_factory.mktemp("ceph"), KEY_ID, SECRET) as endpoint:
            make_signed_bucket(endpoint, "bucket")
            yield endpoint
    else:
        with s3_server() as endpoint:
            yield endpoint


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: a courier takes a second to start."""
    return tmp_path_factory.mktemp("buckets")


@pytest.fixture(params=["memory", "file", "s3"])
def buckets(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    """Each kind of bucket."""
    return make_buckets(request, request.param, root, monkeypatch)


@pytest.fixture
def s3(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    """The server alone."""
    return make_buckets(request, "s3", root, monkeypatch)


@pytest.fixture
def folder(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    """Buckets that are folders, for tests that look at or change what lies there."""
    return make_buckets(request, "file", root, monkeypatch)


def make_buckets(request: pytest.FixtureRequest, kind: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    pytest.importorskip("obstore", reason="stores in buckets need precook[remote]")
    endpoint = ""
    if kind == "s3":
        endpoint = request.getfixturevalue("server")
        for name, value in credentials(endpoint).items():
            monkeypatch.setenv(name, value)
    return Buckets(kind, root, endpoint)
