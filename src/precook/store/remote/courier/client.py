"""A client's side of the courier: asks, waits, and turns what a bucket did not do into our errors.

Nothing of obstore is here, so a process may fork as it likes: a child asks through a connection of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from precook.errors import (
    AccessError,
    NoSpaceError,
    NoStoreError,
    PrecookError,
    StoreError,
    StoreReadError,
    UnreachableError,
    printable,
)
from precook.identity.versions import OURS, library_versions
from precook.store import files
from precook.store.remote.courier.messages import HungUpError, receive, send
from precook.store.remote.url import StoreUrl, as_form, courier_name
from precook.units import format_duration

_log = logging.getLogger("precook")

_START_SECONDS = 60.0
"""Seconds that a courier has to start; on a busy machine Python alone takes some."""
_TOLD = 10.0
"""Seconds without an answer after which that is told, once."""
_ATTEMPTS = 4
"""How often a courier is replaced that died, or had just decided to end, before that is an error."""
_IDLE = 30.0
_LONGEST_SOCKET = 100
"""Bytes that the path of a socket may have: macOS takes 103, Linux 107."""
_PROGRAM = (
    "import json, sys; config = json.load(sys.stdin); sys.path[:] = config['path'];"
    "from precook.store.remote.courier.process import main; main(config)"
)


class NoObjectError(Exception):
    """There is no such object."""


class Listed(NamedTuple):
    """An object that was listed."""

    name: str
    nbytes: int
    modified: int
    """Nanoseconds since 1970, by the bucket's clock."""


class CourierClient:
    """Asks the courier of one store; safe to use from several threads and after a fork."""

    def __init__(self, url: StoreUrl, cache: Path) -> None:
        check_installed()
        _check_endpoint(url)
        self._url = url
        self._cache = cache.absolute()
        version = library_versions(())[OURS]
        self._socket = _socket_place(f"{courier_name(url, self._cache, version)}.sock")
        self._lock = threading.Lock()
        self._free: list[socket.socket] = []
        """Connections that nobody uses just now, of the process that `_pid` says."""
        self._pid = os.getpid()
        self._told = False

    def get(self, name: str) -> bytes:
        """An object's bytes; `NoObjectError` where there is none."""
        return self._ask({"verb": "get", "name": name})[1]

    def range(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of an object; `NoObjectError` where there is none."""
        return self._ask({"verb": "range", "name": name, "span": (start, end)})[1]

    def put(self, name: str, content: bytes | Path) -> None:
        """Store an object, from bytes or from a file: durable when it returns."""
        if isinstance(content, Path):
            self._ask({"verb": "put", "name": name, "path": os.fspath(content.absolute())})
        else:
            self._ask({"verb": "put", "name": name}, content)

    def create(self, name: str, content: bytes) -> bool:
        """Store an object unless there is one, as far as the server can tell."""
        return bool(self._ask({"verb": "create", "name": name}, content)[0]["created"])

    def list(self, prefix: str) -> list[Listed]:
        """Every object whose name begins so."""
        return [Listed(*item) for item in json.loads(self._ask({"verb": "list", "prefix": prefix})[1])]

    def head(self, name: str) -> Listed:
        """What the bucket says about an object; `NoObjectError` where there is none."""
        form = self._ask({"verb": "head", "name": name})[0]
        return Listed(name, form["bytes"], form["modified"])

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects."""
        self._ask({"verb": "delete", "names": list(names)})

    def clock(self) -> int:
        """What time it is in the bucket, in nanoseconds since 1970."""
        return int(self._ask({"verb": "clock"})[0]["now"])

    def fetch(self, name: str, pack: str, place: str, *, most: int | None = None, anew: bool = False) -> None:
        """Bring an object that is a pack to a place in the near folder, `most` bytes of it at most.

        `NoObjectError` where there is none.
        """
        self._ask({"verb": "fetch", "name": name, "pack": pack, "place": place, "most": most, "anew": anew})

    def heads(self, leaves: Sequence[tuple[str, str, int]]) -> set[str]:
        """Bring the heads of packs near, by id, leaf and time; the ids of those that could not be had."""
        answer = self._ask({"verb": "heads"}, json.dumps(leaves).encode())[0]
        url = printable(self._url)
        for name, nbytes in answer["large"]:
            _log.warning("%s: %s has %d bytes, too many for a leaf: not read", url, printable(name), nbytes)
        return set(answer["failed"])

    def pack_head(self, pack: str) -> bytes:
        """The head of a pack, from the pack itself; not checked."""
        return self._ask({"verb": "pack_head", "pack": pack})[1]

    def close(self) -> None:
        """Hang up; the next question calls again."""
        with self._lock:
            free, self._free = self._free, []
        if self._pid == os.getpid():
            for connection in free:
                connection.close()

    def after_fork_in_child(self) -> None:
        """Leave the parent's connections to it."""
        self._lock = threading.Lock()
        free, self._free, self._pid = self._free, [], os.getpid()
        for connection in free:
            connection.close()  # this process's descriptor: the parent's stays

    def _ask(self, form: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        form["url"] = str(self._url)
        for left in reversed(range(_ATTEMPTS)):
            connection = self._take()
            try:
                send(connection, form, body)
                answer, content = self._wait(connection)
            except (OSError, HungUpError) as error:
                # It died, or had decided to end: every verb can be asked again.
                connection.close()
                self.close()
                if not left:
                    raise StoreReadError(str(self._url), f"the courier does not answer: {error}") from error
                continue
            except BaseException:
                connection.close()  # an answer that nobody waits for must not be the next one's
                raise
            with self._lock:
                self._free.append(connection)
            if "fault" in answer:
                raise self._error(answer["fault"], answer["message"])
            if "errno" in answer:
                raise files.explain(self._cache, OSError(answer["errno"], answer["message"]))
            return answer, content
        raise AssertionError  # the loop ends by itself

    def _wait(self, connection: socket.socket) -> tuple[dict[str, Any], bytes]:
        connection.settimeout(_TOLD if not self._told else None)
        try:
            connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            self._told = True
            patience = format_duration(self._url.options.patience)
            _log.warning("%s: no answer yet; waiting for up to %s", printable(self._url), patience)
        connection.settimeout(None)
        return receive(connection)

    def _error(self, kind: str, message: str) -> Exception:
        """Our error for what a bucket did not do."""
        url = str(self._url)
        if kind == "missing":
            return NoObjectError(message)
        if kind == "bucket":
            return NoStoreError(url, f"no such bucket: {message}", hint="make the bucket first, or check the URL")
        if kind == "access":
            return AccessError(url, f"the bucket refused: {message}", hint=_variables(self._url.scheme))
        if kind == "full":
            return NoSpaceError(url, f"the bucket takes no more: {message}")
        if kind == "away":
            waited = format_duration(self._url.options.patience)
            return UnreachableError(url, f"the server did not answer for {waited}: {message}")
        return StoreError(url, message, hint="look at the server's own log for this request")

    def _take(self) -> socket.socket:
        """A connection to the courier, which is started if there is none."""
        with self._lock:
            if self._free:
                return self._free.pop()
        if sys.platform == "win32":
            raise AssertionError  # `check_installed` has refused it
        deadline = time.monotonic() + _START_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(os.fspath(self._socket))
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection
            if time.monotonic() > deadline:
                raise StoreReadError(str(self._url), "the courier does not start")
            self._start()
            # It may be that another one is about to be one, or about to end.
            time.sleep(0.02)

    def _start(self) -> None:
        config = {
            "options": as_form(self._url.options),
            "cache": os.fspath(self._cache),
            "socket": os.fspath(self._socket),
            "idle": _IDLE,
            "path": sys.path,
        }
        # Without -P the working folder comes first in its path, and a json.py that lies there would run.
        command = [sys.executable, "-P", "-c", _PROGRAM]
        given = json.dumps(config).encode()
        try:
            done = subprocess.run(  # noqa: S603 - this very Python, with a program of our own
                command, input=given, capture_output=True, check=False, timeout=_START_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            waited = format_duration(_START_SECONDS)
            raise StoreReadError(str(self._url), f"the courier does not start: nothing for {waited}") from error
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise StoreReadError(str(self._url), f"the courier does not start: {printable(lines[-1] if lines else '')}")


def check_installed() -> None:
    """Say what is missing where a store in a bucket cannot be used at all."""
    if sys.platform == "win32":
        raise PrecookError("stores in buckets are for Linux and macOS", hint="use a store in a folder")
    if importlib.util.find_spec("obstore") is None:
        needs = "" if sys.version_info >= (3, 11) else ", with Python 3.11 or newer"
        raise PrecookError("a store in a bucket needs obstore", hint=f"pip install 'precook[remote]'{needs}")


def _check_endpoint(url: StoreUrl) -> None:
    """Refuse what would be ignored: requests would go to another server than the one that was named."""
    if url.scheme == "gs" and url.options.endpoint is not None:
        hint = "leave `endpoint` out, or use the server's S3 interface with an s3:// URL"
        raise PrecookError("the option `endpoint` is not for gs:// URLs", hint=hint)


def _socket_place(name: str) -> Path:
    """Where a courier can be called: of a long TMPDIR nothing, for the system takes no long paths of sockets."""
    if sys.platform == "win32":
        raise AssertionError  # `check_installed` has refused it
    folder = f"precook-{os.getuid()}"
    place = Path(tempfile.gettempdir()) / folder / name
    if len(os.fsencode(place)) > _LONGEST_SOCKET:
        place = Path("/tmp") / folder / name  # noqa: S108 - `_own_folder` looks whose it is
    _own_folder(place.parent)
    return place


def _own_folder(folder: Path) -> None:
    """Make a folder that nobody else can look into, or refuse the one that is there."""
    if sys.platform == "win32":
        raise AssertionError  # `check_installed` has refused it
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        hint = f"remove it: {printable(folder)}, or set TMPDIR to a folder of your own"
        raise StoreError(folder, "this folder is open to others, and nothing is said there", hint=hint)


def _variables(scheme: str) -> str:
    names = {
        "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    }
    if scheme not in names:
        return "look at the rights of the folder"
    return f"look at {names[scheme]}, and whether they may get, list and put objects there"
