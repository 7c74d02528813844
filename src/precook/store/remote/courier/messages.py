"""What passes between a client and its courier: a form and some bytes each way.

A message is two lengths of four bytes, a form as JSON, and bytes. Large objects pass through files, never through here.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct(">II")
_MOST = 1 << 30


class HungUpError(ConnectionError):
    """The other side is gone."""


def send(connection: socket.socket, form: dict[str, Any], body: bytes = b"") -> None:
    """Send a message."""
    head = json.dumps(form).encode()
    connection.sendall(_LENGTHS.pack(len(head), len(body)) + head)
    if body:
        connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next message; `HungUpError` where there will be none."""
    head, body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    if max(head, body) > _MOST:
        raise HungUpError("a message that is too long")
    form = json.loads(_exactly(connection, head))
    return form, _exactly(connection, body)


def _exactly(connection: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = connection.recv(min(size, 1 << 20))
        if not piece:
            raise HungUpError("the other side hung up")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
