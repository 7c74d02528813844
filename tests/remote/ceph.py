"""A real S3 server for tests: Ceph's gateway from Debian packages, as processes of this user in a temporary folder.

It needs radosgw, ceph-mon, ceph-osd, ceph-mgr and ceph-common, without a service; `make remote` runs the tests of this
folder over it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

CONFIG = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{ports[0]}/0,v1:127.0.0.1:{ports[1]}/0]
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = {root}/mon.a
osd data = {root}/osd.0
mgr data = {root}/mgr.a
keyring = {root}/keyring
run dir = {root}/run
log file = {root}/log/$name.log
admin socket = {root}/run/$name.asok
osd objectstore = bluestore
bluestore block size = 10737418240
osd memory target = 1073741824
rgw gc obj min wait = 5
rgw gc processor period = 5
rgw gc processor max time = 5
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:{ports[2]} tcp_nodelay=1
"""
_USERS = ("mon.", "client.admin", "osd.0", "mgr.a", "client.rgw.a")


@contextlib.contextmanager
def ceph_server(root: Path, key_id: str, secret: str) -> Iterator[str]:
    """The address of a gateway, with one user."""
    for name in ("mon.a", "osd.0", "mgr.a", "run", "log"):
        (root / name).mkdir(parents=True)
    ports = _free_ports(3)
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    config = root / "ceph.conf"
    config.write_text(CONFIG.format(fsid=fsid, ports=ports, root=root))
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: object) -> bytes:
        done = subprocess.run([str(part) for part in command], capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, (command, done.stderr.decode())
        return done.stdout

    def start(*command: object) -> None:
        with (root / "log" / f"{command[0]}.out").open("wb") as log:
            started.append(subprocess.Popen([*map(str, command), "-c", str(config), "-f"], stdout=log, stderr=log))

    try:
        keyring, monmap = root / "keyring", root / "monmap"
        for number, user in enumerate(_USERS):
            caps = [part for kind in ("mon", "osd", "mgr") for part in ("--cap", kind, "allow *")]
            create = ["--create-keyring"] if not number else []
            run("ceph-authtool", keyring, *create, "--gen-key", "-n", user, *caps)
        address = f"[v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]"
        run("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, monmap)
        run("ceph-mon", "-c", config, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        start("ceph-mon", "-i", "a")
        ceph = ("ceph", "-c", config, "-n", "client.admin", "--connect-timeout", "60")
        run(*ceph, "osd", "new", osd, "0")
        run("ceph-osd", "-c", config, "-i", "0", "--mkfs", "--osd-uuid", osd)
        run(*ceph, "auth", "import", "-i", keyring)
        start("ceph-osd", "-i", "0")
        start("ceph-mgr", "-i", "a")
        start("radosgw", "-n", "client.rgw.a")
        endpoint = f"http://127.0.0.1:{ports[2]}"
        _wait(endpoint)
        user = ("--uid=test", "--display-name=test", f"--access-key={key_id}", f"--secret-key={secret}")
        run("radosgw-admin", "-c", config, "-n", "client.rgw.a", "user", "create", *user)
        yield endpoint
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait(endpoint: str) -> None:
    """Until the gateway answers anything at all."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(endpoint, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the gateway does not answer; os: {os.uname().release}")
