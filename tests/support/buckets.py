"""Buckets to test with: memory, a folder, and a server that speaks S3, which is moto's."""

from __future__ import annotations

import contextlib
import secrets
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import precook

KEY_ID, SECRET = "AKIDFORTESTS", "s3cret-for-tests-only"
"""Credentials of the test server; no test may find the second one anywhere."""


@dataclass
class Buckets:
    """Where stores of one kind are made."""

    kind: str
    root: Path
    """A folder for what is near, and for `file`."""
    endpoint: str = ""

    def url(self, name: str) -> str:
        """The URL of a store; the same for the same name."""
        if self.kind == "file":
            return f"file://{self.root}/far/{name}"
        return f"{self.kind}://bucket/{name}"

    @property
    def cache(self) -> Path:
        """What this machine keeps of all of them."""
        return self.root / "near"

    def open(self, name: str, *, cache: Path | None = None, **options: Any) -> precook.Store:
        """A store; with another `cache`, as another machine sees it."""
        return precook.open(self.url(name), cache=cache or self.cache, **options)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The address of an S3 server with a bucket named `bucket`."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        make_bucket(endpoint, "bucket")
        yield endpoint
    finally:
        server.stop()


def make_bucket(endpoint: str, name: str) -> None:
    """Make a bucket, as its owner would."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")):
        pass


def make_signed_bucket(endpoint: str, name: str) -> None:
    """The same on a server that asks who we are."""
    client = pytest.importorskip("boto3").client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=name)


def credentials(endpoint: str) -> dict[str, str]:
    """The environment of somebody who may use a server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }


def fresh() -> str:
    """A name that no other test has."""
    return secrets.token_hex(6)
