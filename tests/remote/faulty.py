"""A proxy before an S3 server that does what networks and servers do: refuse, reset, cut, delay, lose and flip.

`lose` forwards a request and keeps the answer to itself: the server has done the work, and nobody hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

KINDS = ("refuse", "reset", "cut", "slow", "lose", "flip", "whole")


class Proxy:
    """One proxy: how often it does what, by kind, and the requests that it saw."""

    def __init__(self, endpoint: str, *, seed: int = 0) -> None:
        parts = urlsplit(endpoint)
        self._server = parts.hostname, parts.port
        self.rates: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        self.requests: list[tuple[str, str]] = []
        self.done: list[str] = []
        """The faults that were made."""
        self.endpoint = ""
        self.answered: list[tuple[str, str]] = []
        """Those whose answers were handed on."""
        self.denied: tuple[str, str, str] | None = None
        """A method, a status and a code that such requests are answered with."""
        self.at: tuple[int, Callable[[], None]] | None = None
        """What is called before a request of this number is looked at."""
        self.stopped = False
        """Whether nobody answers."""
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if not self.stopped:
                await self._answer(reader, writer)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, its answer, and the end of the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, *_ = head.decode("latin-1").split(" ", 2)
        self.requests.append((method, path))
        self._look()
        body = await reader.readexactly(_length(head))
        kind = next((kind for kind in KINDS if self._random.random() < self.rates[kind]), "")
        self.done += [kind] if kind else []
        if self.denied is not None and method == self.denied[0]:
            content = f"<?xml version='1.0'?><Error><Code>{self.denied[2]}</Code></Error>"
            writer.write(f"HTTP/1.1 {self.denied[1]} No\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode())
        elif kind == "refuse":
            writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif kind != "reset":
            top, _, content = (await self._forward(head, body)).partition(b"\r\n\r\n")
            if kind == "whole":
                top = re.sub(rb"(?i)(?<=HTTP/1.1 )206 partial content|\r\ncontent-range:[^\r]*", _as_whole, top)
            if kind == "slow":
                await asyncio.sleep(0.1)
            if kind == "flip" and method == "GET" and content and b"xml" not in top.lower():
                place = self._random.randrange(len(content))
                content = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            if kind == "cut":
                content = content[: len(content) // 2]
            if kind != "lose":
                writer.write(top + b"\r\n\r\n" + content)
                self.answered.append((method, path))
        await writer.drain()
        if kind in ("", "slow", "flip", "refuse", "whole"):
            writer.close()
            await writer.wait_closed()

    def _look(self) -> None:
        if self.at is not None and len(self.requests) == self.at[0]:
            self.at[1]()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        lines.insert(1, b"Connection: close")
        reader, writer = await asyncio.open_connection(*self._server)
        writer.write(b"\r\n".join(lines) + body)
        answer = await reader.read(-1)
        writer.close()
        return answer

    def run(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.close()

    def stop(self) -> None:
        """Serve no more."""
        self._loop.call_soon_threadsafe(self._loop.stop)


def _as_whole(found: re.Match[bytes]) -> bytes:
    """A range as a server answers that knows none."""
    return b"200 OK" if found[0].startswith(b"206") else b""


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@contextlib.contextmanager
def proxy(endpoint: str, *, seed: int = 0) -> Iterator[Proxy]:
    """A proxy before a server, for as long as the block runs."""
    made, ready = Proxy(endpoint, seed=seed), threading.Event()
    thread = threading.Thread(target=made.run, args=(ready,), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        made.stop()
        thread.join()
