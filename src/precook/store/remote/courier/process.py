"""The courier's own side: one process for each cache and identity, which ends when nobody needs it any more.

It alone has obstore, the credentials and the connections. It is started as a program of its own by the first client,
holds the lock of its name for as long as it lives, and answers each client in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from precook.errors import DamagedPackError
from precook.fs.system import system
from precook.store.format.header import header_length
from precook.store.format.pack import MAX_HEAD, pack_id, parse_pack_header
from precook.store.packfile import Guard, PackFile
from precook.store.remote.bucket import Bucket, BucketFault, TooLargeFault
from precook.store.remote.courier.messages import receive, send
from precook.store.remote.url import RemoteOptions, near_name, parse_url

assert sys.platform != "win32"  # no sockets of this kind, and no forks

_ATTEMPTS = 3
"""How often something is fetched that is not what its name says: the wire is not trusted."""
_LOOK_EVERY = 0.2
"""Seconds after which it looks whether anybody still needs it."""
_PIECE = 8 << 20
"""Bytes of each range of a larger object."""
_LARGEST_LEAF = 64 << 20
"""Bytes of the largest leaf that is read: of a pack with a larger head, the head is read from the pack."""
_AT_ONCE = 8
"""Ranges and leaves that are on their way at a time, for each client that asks."""


class Fetcher:
    """Brings objects near, each once however many ask for it at the same time."""

    def __init__(self, bucket: Bucket, near: Path) -> None:
        self.bucket = bucket
        self._near = near
        self._lock = threading.Lock()
        self._under_way: dict[str, threading.Lock] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch")

    def fetch(self, name: str, pack: str, place: str, *, most: int | None, anew: bool) -> None:
        """Bring an object that is a pack to a place in the near folder, checked; with `anew` also one that is here.

        What is not what its name or a checksum says after several tries is so in the bucket: whoever reads it says so.
        Of an object with more than `most` bytes only so many are brought.
        """
        path = self._inside(place)
        with self._alone(place):
            if not anew and path.exists():
                return
            facts = self.bucket.head(name)
            nbytes = facts.nbytes if most is None else min(facts.nbytes, most)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, nbytes)
                for _ in range(_ATTEMPTS):
                    self._download(name, descriptor, nbytes)
                    with contextlib.suppress(DamagedPackError):
                        self._mend_rows(name, descriptor, PackFile(partial, pack, Guard()))
                        break
                os.utime(descriptor, ns=(facts.modified, facts.modified))
                # After a power cut a file that was renamed first may have its length and nothing but zeros.
                os.fsync(descriptor)
                partial.rename(path)
            finally:
                os.close(descriptor)
                partial.unlink(missing_ok=True)

    def heads(self, leaves: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
        """Bring the heads of packs near, by id, leaf and time of the leaf.

        `failed` has the ids of those that could not be had, `large` the names and sizes of leaves that were not read.
        """
        failed = []
        large: list[tuple[str, int]] = []
        for (pack, _, _), there in zip(
            leaves, self._pool.map(lambda leaf: self._head(leaf, large), leaves), strict=True
        ):
            if not there:
                failed.append(pack)
        return {"failed": failed, "large": large}

    def _head(self, leaf: tuple[str, str, int], large: list[tuple[str, int]]) -> bool:
        pack, name, modified = leaf
        path = self._inside(f"heads/{pack[:2]}/{pack}")
        content = self._verified(lambda: self._leaf(name, large), pack)
        if content is None:
            # A leaf is nothing but a copy: the pack has the same bytes.
            content = self._verified(lambda: self.read_head(pack), pack)
        if content is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{pack}.{secrets.token_hex(4)}.partial")
        partial.write_bytes(content)
        os.utime(partial, ns=(modified, modified))
        partial.rename(path)
        return True

    def _leaf(self, name: str, large: list[tuple[str, int]]) -> bytes:
        """A leaf's bytes, unless it has more than any leaf: it is all in memory before it can be checked."""
        try:
            return self.bucket.get(name, most=_LARGEST_LEAF)
        except TooLargeFault as fault:
            large.append((name, fault.nbytes))
            raise

    def read_head(self, pack: str) -> bytes:
        """The head of a pack, from the pack itself."""
        name = f"packs/{pack[:2]}/{pack}.safetensors"
        try:
            (first,) = self.bucket.ranges(name, [(0, 8)])
            (header,) = self.bucket.ranges(name, [(0, header_length(first))])
            length = len(header) + parse_pack_header(header).directory
        except ValueError as error:
            raise BucketFault("refused", f"{name}: not a pack") from error
        if length > MAX_HEAD:
            raise BucketFault("refused", f"{name}: its head is too large")
        (head,) = self.bucket.ranges(name, [(0, length)])
        return head

    def _verified(self, read: Callable[[], bytes], pack: str) -> bytes | None:
        """What a read gives, if it is the head of a pack; None where it is not, or is not there."""
        for _ in range(_ATTEMPTS):
            try:
                content = read()
            except BucketFault as fault:
                if fault.kind in ("missing", "refused"):
                    return None
                raise
            if pack_id(content) == pack:
                return content
        return None

    def _download(self, name: str, descriptor: int, nbytes: int) -> None:
        spans = [(start, min(start + _PIECE, nbytes)) for start in range(0, nbytes, _PIECE)]

        def piece(span: tuple[int, int]) -> None:
            _write_at(descriptor, self.bucket.ranges(name, [span])[0], span[0])

        _all_of([self._pool.submit(piece, span) for span in spans])

    def _mend_rows(self, name: str, descriptor: int, pack: PackFile) -> None:
        """Fetch rows once more that are not what their checksums say."""
        bad = [row.row for row in pack.damage()] if pack.whole else []
        for _ in range(_ATTEMPTS):
            for row in bad:
                table, number = pack.locate(row)
                for leaf in table.table.leaves:
                    begin, size = leaf.span(number)
                    if size:
                        _write_at(descriptor, self.bucket.ranges(name, [(begin, begin + size)])[0], begin)
            bad = [row.row for row in pack.damage(bad)]
            if not bad:
                break

    def _inside(self, place: str) -> Path:
        path = self._near / place
        if ".." in Path(place).parts or Path(place).is_absolute():
            raise BucketFault("refused", "a place outside of the cache")
        return path

    @contextlib.contextmanager
    def _alone(self, place: str) -> Iterator[None]:
        with self._lock:
            lock = self._under_way.setdefault(place, threading.Lock())
        with lock:
            yield


def _all_of(pieces: Sequence[Future[None]]) -> None:
    """Wait for all pieces, also where one fails: none may write to a descriptor that is another file's by then."""
    wait(pieces, return_when=FIRST_EXCEPTION)
    begun = [piece for piece in pieces if not piece.cancel()]
    wait(begun)
    for piece in begun:
        piece.result()


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


class Courier:
    """Answers clients, one verb after the other."""

    def __init__(self, options: RemoteOptions, cache: Path) -> None:
        self._options = options
        self._cache = cache
        self._lock = threading.Lock()
        self._fetchers: dict[str, Fetcher] = {}
        self.refused = threading.Event()
        """Set once credentials were refused: others may come with better ones, which are another process's."""

    def answer(self, form: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """What a client asked for."""
        try:
            answer: tuple[dict[str, Any], bytes] = _VERBS[form["verb"]](self._fetcher(form["url"]), form, body)
        except BucketFault as fault:
            if fault.kind == "access":
                self.refused.set()
            return {"fault": fault.kind, "message": fault.message}, b""
        except OSError as error:
            # This machine's own: a full disk, say.
            return {"errno": error.errno or errno.EIO, "message": error.strerror or "no reason given"}, b""
        except Exception as error:  # noqa: BLE001 - whatever it is, the client waits for an answer
            # The type alone: what a library says may hold a secret.
            return {"fault": "refused", "message": f"{form['verb']}: {type(error).__name__}"}, b""
        return answer

    def _fetcher(self, url: str) -> Fetcher:
        """What talks to one store."""
        with self._lock:
            if url not in self._fetchers:
                parsed = parse_url(url, self._options)
                self._fetchers[url] = Fetcher(Bucket(parsed), self._cache / near_name(parsed))
            return self._fetchers[url]


def _list(fetcher: Fetcher, form: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
    # As bytes: a list may be long.
    found = [[facts.name, facts.nbytes, facts.modified] for facts in fetcher.bucket.list(form["prefix"])]
    return {}, json.dumps(found).encode()


def _put(fetcher: Fetcher, form: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    fetcher.bucket.put(form["name"], Path(form["path"]) if "path" in form else body)
    return {}, b""


def _head(fetcher: Fetcher, form: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
    facts = fetcher.bucket.head(form["name"])
    return {"bytes": facts.nbytes, "modified": facts.modified}, b""


def _delete(fetcher: Fetcher, form: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
    fetcher.bucket.delete(form["names"])
    return {}, b""


def _fetch(fetcher: Fetcher, form: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
    fetcher.fetch(form["name"], form["pack"], form["place"], most=form["most"], anew=form["anew"])
    return {}, b""


_VERBS: dict[str, Callable[[Fetcher, dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = {
    "get": lambda fetcher, form, _: ({}, fetcher.bucket.get(form["name"])),
    "range": lambda fetcher, form, _: ({}, fetcher.bucket.ranges(form["name"], [form["span"]])[0]),
    "put": _put,
    "create": lambda fetcher, form, body: ({"created": fetcher.bucket.create(form["name"], body)}, b""),
    "list": _list,
    "head": _head,
    "delete": _delete,
    "clock": lambda fetcher, _, __: ({"now": fetcher.bucket.clock()}, b""),
    "fetch": _fetch,
    "heads": lambda fetcher, _, body: (fetcher.heads(json.loads(body)), b""),
    "pack_head": lambda fetcher, form, _: ({}, fetcher.read_head(form["pack"])),
}


class _Clients:
    """How many there are, and since when there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._since = time.monotonic()

    def add(self, number: int) -> None:
        with self._lock:
            self._count += number
            self._since = time.monotonic()

    def idle(self) -> float:
        """Seconds since the last of them went."""
        with self._lock:
            return 0.0 if self._count else time.monotonic() - self._since


def serve(listener: socket.socket, place: Path, config: dict[str, Any]) -> None:
    """Answer clients until nobody has come for a while, or until credentials were refused."""
    clients = _Clients()
    courier = Courier(RemoteOptions(**config["options"]), Path(config["cache"]))
    listener.settimeout(_LOOK_EVERY)
    while clients.idle() < config["idle"] and not courier.refused.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        clients.add(1)
        threading.Thread(target=_converse, args=(connection, courier, clients), daemon=True).start()
    # The name first: whoever finds it gone starts another, whoever is in the queue hears that we hung up.
    place.unlink(missing_ok=True)
    # Then the lock's name, for clients that are idle may stay for long, and another courier must not wait for them.
    _lock_of(place).unlink(missing_ok=True)
    listener.close()
    while clients.idle() == 0.0:
        time.sleep(_LOOK_EVERY)


def _converse(connection: socket.socket, courier: Courier, clients: _Clients) -> None:
    with connection, contextlib.suppress(OSError):
        try:
            while not courier.refused.is_set():
                form, body = receive(connection)
                if courier.refused.is_set():
                    break  # it asks again, and then another courier, with credentials that may be better
                send(connection, *courier.answer(form, body))
        finally:
            clients.add(-1)


def main(config: dict[str, Any]) -> None:
    """Become the courier of a name, unless there is one; the program that a client starts ends when it can be asked."""
    place = Path(config["socket"])
    lock = _hold(_lock_of(place))
    if lock is None:
        return  # there is one already, or another one is about to be
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.fspath(place))
    listener.listen(64)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # for people
    serve(listener, place, config)
    os._exit(0)


def _lock_of(place: Path) -> Path:
    """The lock that goes with a socket."""
    return Path(f"{place}.lock")


def _hold(path: Path) -> int | None:
    """The lock of a courier, held until this process ends; None where another one holds it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            system.lock(lock, shared=False, wait=False)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
        except BlockingIOError:
            os.close(lock)
            return None
        os.close(lock)
