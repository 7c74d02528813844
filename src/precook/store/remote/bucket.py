"""The eight verbs of a bucket over obstore: get, ranges, put, create, list, head, delete, clock.

Only the courier uses this module: obstore's threads do not survive a fork. What goes wrong becomes a `BucketFault` that
names the object and what the server said in a word, and never a header, a signature or a key.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from precook.store.remote.url import RemoteOptions, StoreUrl, find_endpoint

FaultKind = Literal["missing", "bucket", "access", "away", "full", "refused"]
SINGLE = 64 << 20
"""Bytes up to which an object is put by one request."""
_PIECE = 16 << 20
"""Bytes of each part of a larger one."""
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_STATUS = re.compile(r"status code: ([0-9]{3})")
_ACCESS = frozenset(
    {
        "AccessDenied",
        "AuthenticationFailed",
        "AuthorizationPermissionMismatch",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "EntityTooLarge"})
_METADATA = ("169.254.169.254", 80)
"""Where a cloud's own machines ask who they are."""
_METADATA_SECONDS = 0.5
_REQUEST_SECONDS = 300.0
"""A time limit for a single request: some servers hang when they are full."""


class BucketFault(Exception):  # noqa: N818 - it travels to the client, which makes an error of it
    """Something that a bucket did not do."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.message = message


class TooLargeFault(BucketFault):
    """An object with more bytes than whoever asked wants to read."""

    def __init__(self, name: str, nbytes: int) -> None:
        super().__init__("refused", f"{name}: {nbytes} bytes are too many")
        self.nbytes = nbytes


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a bucket says about an object."""

    name: str
    nbytes: int
    modified: int
    """Nanoseconds since 1970, by the bucket's clock."""


class Bucket:
    """One bucket and prefix; safe to use from several threads."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._begin = f"{url.prefix}/" if url.prefix and url.scheme != "file" else ""
        self._obstore = importlib.import_module("obstore")
        self._errors = importlib.import_module("obstore.exceptions")
        with self._explained("opening the bucket"):
            self._store: Any = _CONNECT[url.scheme](url)

    def get(self, name: str, *, most: int | None = None) -> bytes:
        """An object's bytes; `TooLargeFault` where there are more than `most`, before they are read."""
        with self._explained(f"reading {name}"):
            found = self._obstore.get(self._reading(name), self._begin + name)
            if most is not None and found.meta["size"] > most:
                raise TooLargeFault(name, found.meta["size"])
            return bytes(found.bytes())

    def ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Some parts of an object, each from one byte to another."""
        pieces = []
        for start, end in spans:
            with self._explained(f"reading {name}"):
                piece = self._obstore.get_range(self._reading(name), self._begin + name, start=start, end=end)
            data = bytes(piece)
            if len(data) != end - start:
                raise BucketFault("refused", f"{name}: {end - start} bytes were asked for and {len(data)} came")
            pieces.append(data)
        return pieces

    def put(self, name: str, content: bytes | Path) -> None:
        """Store an object; durable when it returns. Names are unique or digests, so the same again does no harm."""
        nbytes = content.stat().st_size if isinstance(content, Path) else len(content)
        with self._explained(f"writing {name}", changing=True):
            self._obstore.put(
                self._writing(),
                self._begin + name,
                content,
                use_multipart=nbytes > SINGLE,
                chunk_size=_PIECE,
                max_concurrency=4,
            )

    def create(self, name: str, content: bytes) -> bool:
        """Store an object unless there is one; False where there is, or may be: whoever asks reads it then."""
        there = (self._errors.AlreadyExistsError, self._errors.PreconditionError)
        unable = self._errors.NotSupportedError
        try:
            with self._explained(f"writing {name}", changing=True, passing=(*there, unable)):
                self._obstore.put(self._writing(), self._begin + name, content, mode="create", use_multipart=False)
        except there:
            return False
        except unable:
            # A server without conditional writes: whoever is last stays, and both read what that is.
            self.put(name, content)
        return True

    def list(self, prefix: str) -> list[ObjectFacts]:
        """Every object whose name begins so; `prefix` ends with a slash."""
        found = []
        with self._explained(f"listing {prefix}"):
            store = self._reading(None)
            for page in self._obstore.list(store, self._begin + prefix) if store is not None else ():
                for item in page:
                    name = item["path"].removeprefix(self._begin)
                    found.append(ObjectFacts(name, item["size"], _nanoseconds(item["last_modified"])))
        return found

    def head(self, name: str) -> ObjectFacts:
        """What the bucket says about an object."""
        with self._explained(f"looking for {name}"):
            item = self._obstore.head(self._reading(name), self._begin + name)
        return ObjectFacts(name, item["size"], _nanoseconds(item["last_modified"]))

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error."""
        with self._explained(f"deleting {len(names)} objects", changing=True):
            store = self._reading(None)
            for name in names if store is not None else ():
                try:
                    self._obstore.delete(store, self._begin + name)
                except FileNotFoundError:
                    continue

    def clock(self) -> int:
        """What time it is in the bucket, in nanoseconds since 1970: of an object that is written for it."""
        name = f"clock/{secrets.token_hex(8)}"
        self.put(name, b"precook\n")
        try:
            return self.head(name).modified
        except BucketFault as fault:
            if fault.kind != "missing":
                raise
            raise BucketFault("refused", f"{name} was written and is not there") from fault
        finally:
            self.delete([name])

    def _reading(self, name: str | None) -> Any:
        """What obstore reads from; of `file`, there is nothing to read before the folder is there."""
        if self._store is None and Path(self._url.prefix).is_dir():
            self._store = _local(self._url)
        if self._store is None and name is not None:
            raise BucketFault("missing", f"{name} is not there")
        return self._store

    def _writing(self) -> Any:
        if self._store is None:
            Path(self._url.prefix).mkdir(parents=True, exist_ok=True)
            self._store = _local(self._url)
        return self._store

    @contextmanager
    def _explained(
        self, doing: str, *, changing: bool = False, passing: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Turn what obstore says into our words, except for `passing`.

        Where something is `changing`, an object that is missing is not what was asked about: the server refused.
        """
        known: tuple[type[Exception], ...] = (BucketFault, *passing)
        try:
            yield
        except known:
            raise
        except (self._errors.BaseError, OSError, ValueError) as error:
            fault = self._fault(doing, error)
            if changing and fault.kind == "missing":
                fault = BucketFault("refused", fault.message)
            raise fault from error

    def _fault(self, doing: str, error: Exception) -> BucketFault:
        text = str(error)
        if "non-partial" in text.lower() or "not partial" in text.lower():
            # Rows are read by range: with such a server every read would be of a whole pack.
            return BucketFault("refused", f"{doing}: the server does not answer ranges")
        code = next(iter(_CODE.findall(text)), "")
        status = next(iter(_STATUS.findall(text)), "")
        said = f"{code} ({status})" if code and status else code or (f"status {status}" if status else "")
        if not said and isinstance(error, OSError) and error.strerror:
            said = error.strerror  # a disk's own word
        kind = self._kind(error, code, status)
        return BucketFault(kind, f"{doing}: {said or ('not allowed' if kind == 'access' else 'no answer')}")

    def _kind(self, error: Exception, code: str, status: str) -> FaultKind:
        errors = self._errors
        denied = isinstance(error, (PermissionError, errors.PermissionDeniedError, errors.UnauthenticatedError))
        missing = isinstance(error, (FileNotFoundError, errors.NotFoundError))
        against = isinstance(error, (errors.AlreadyExistsError, errors.PreconditionError, errors.NotSupportedError))
        kinds: list[tuple[bool, FaultKind]] = [
            (code in _NO_BUCKET, "bucket"),
            (code in _FULL or status == "507", "full"),
            (denied or code in _ACCESS or status in ("401", "403"), "access"),
            (missing, "missing"),
            (status == "404", "bucket"),
            (against or status.startswith("4") or isinstance(error, (OSError, ValueError)), "refused"),
        ]
        return next((kind for holds, kind in kinds if holds), "away")


def _nanoseconds(moment: Any) -> int:
    return int(moment.timestamp() * 1e9)


def _settings(options: RemoteOptions, endpoint: str | None) -> dict[str, Any]:
    """What obstore takes for every server."""
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=max(5.0, min(_REQUEST_SECONDS, options.patience))),
        "connect_timeout": timedelta(seconds=5),
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
    }
    if options.ca_file is not None:
        client["root_certificate"] = Path(options.ca_file).read_bytes()
    # By time and not by number: the server may be away for as long as we wait.
    backoff = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}
    retries = {"max_retries": 100_000, "retry_timeout": timedelta(seconds=options.patience), "backoff": backoff}
    return {"client_options": client, "retry_config": retries}


def _s3(url: StoreUrl) -> Any:
    store = importlib.import_module("obstore.store")
    endpoint = find_endpoint(url)
    config: dict[str, Any] = {}
    if endpoint is not None:
        config["endpoint"] = endpoint
    if url.options.region is not None:
        config["region"] = url.options.region
    if url.options.path_style is not None:
        config["virtual_hosted_style_request"] = not url.options.path_style
    provider = _s3_credentials()
    return store.S3Store(url.bucket, config=config, credential_provider=provider, **_settings(url.options, endpoint))


def _s3_credentials() -> Any:
    """What gives credentials that obstore does not find itself; None where it does. Refused where there are none."""
    known = (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SKIP_SIGNATURE",
    )
    if "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" not in os.environ:
        raise BucketFault("access", "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not")
    if any(name in os.environ for name in known):
        return None
    if "AWS_PROFILE" in os.environ or (Path.home() / ".aws").is_dir():
        try:
            return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()
        except ImportError:
            raise BucketFault("access", "profiles need boto3, which is not installed: set AWS_ACCESS_KEY_ID") from None
        except ValueError:
            raise BucketFault("access", "the profile has no credentials: set AWS_ACCESS_KEY_ID") from None
    try:
        # Asked once and shortly: obstore would ask again and again where there is nobody.
        socket.create_connection(_METADATA, _METADATA_SECONDS).close()
    except OSError:
        raise BucketFault("access", "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from None
    return None


def _gs(url: StoreUrl) -> Any:
    store = importlib.import_module("obstore.store")
    return store.GCSStore(url.bucket, **_settings(url.options, find_endpoint(url)))


def _az(url: StoreUrl) -> Any:
    store = importlib.import_module("obstore.store")
    if "AZURE_STORAGE_ACCOUNT_NAME" not in os.environ:
        raise BucketFault("access", "no account: set AZURE_STORAGE_ACCOUNT_NAME")
    endpoint = find_endpoint(url)
    config = {"endpoint": endpoint} if endpoint is not None else {}
    return store.AzureStore(url.bucket, config=config, **_settings(url.options, endpoint))


def _local(url: StoreUrl) -> Any:
    return importlib.import_module("obstore.store").LocalStore(url.prefix)


def _file(url: StoreUrl) -> Any:
    return _local(url) if Path(url.prefix).is_dir() else None


def _memory(_: StoreUrl) -> Any:
    return importlib.import_module("obstore.store").MemoryStore()


_CONNECT: dict[str, Callable[[StoreUrl], Any]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "file": _file,
    "memory": _memory,
}
