"""What goes wrong between a machine and a bucket, and what is seen of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.store.remote.store import BucketStore
from precook.store.remote.url import RemoteOptions, courier_name, parse_url
from tests.remote.faulty import Proxy, proxy
from tests.remote.test_commands import encoded, write_config
from tests.support.buckets import SECRET, Buckets, fresh
from tests.support.commands import run
from tests.support.projects import picture

RECIPE = precook.Recipe("test", {"version": 1})
KEYS = [RECIPE.key(number) for number in range(40)]


def tree(number: int) -> np.ndarray:
    return np.full(3000, number, np.int32)


def fill(store: precook.Store, numbers: range, *, at_a_time: int = 5) -> None:
    """Put entries in several commits."""
    with store.writer() as writer:
        for number in numbers:
            writer.put(KEYS[number], tree(number), recipe=RECIPE)
            if number % at_a_time == at_a_time - 1:
                writer.flush()


def check(store: precook.Store, numbers: range) -> None:
    """All of them are there and right."""
    assert store.missing([KEYS[number] for number in numbers]) == []
    for number in numbers:
        np.testing.assert_array_equal(store.get(KEYS[number]), tree(number))


@pytest.fixture
def faulty(s3: Buckets, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The server, behind a proxy that does nothing yet."""
    with proxy(s3.endpoint) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
        yield made


@pytest.mark.parametrize("kind", ["refuse", "reset", "cut", "slow", "lose"])
def test_a_bad_network_costs_time_and_nothing_else(faulty: Proxy, s3: Buckets, tmp_path: Path, kind: str) -> None:
    """REMOTE A5: with one answer in five refused, reset, cut, slow or lost, nothing is wrong, lost or an error."""
    url = s3.url(fresh())
    faulty.rates[kind] = 0.2
    with precook.open(url, cache=tmp_path / "a") as store:
        fill(store, range(20))
    with precook.open(url, cache=tmp_path / "b", read_only=True) as store:
        check(store, range(20))
    assert kind in faulty.done


def test_bits_that_flip_on_the_way_are_fetched_again(faulty: Proxy, s3: Buckets, tmp_path: Path) -> None:
    """REMOTE A5: with one answer in five changed, every entry that is served is right."""
    url = s3.url(fresh())
    with precook.open(url, cache=tmp_path / "a") as store:
        fill(store, range(20))
    faulty.rates["flip"] = 0.2
    with precook.open(url, cache=tmp_path / "b", read_only=True) as store:
        check(store, range(20))
    assert "flip" in faulty.done


def test_a_row_that_was_changed_on_the_way_is_fetched_alone(faulty: Proxy, s3: Buckets, tmp_path: Path) -> None:
    """What comes near is checked before anybody reads it: of a pack with one wrong row, only that row comes again."""
    url = s3.url(fresh())
    with precook.open(url, cache=tmp_path / "a") as store:
        fill(store, range(20), at_a_time=20)
    with precook.open(url, cache=tmp_path / "b", read_only=True) as store:
        faulty.requests.clear()
        faulty.rates["flip"] = 1.0
        # The second request is for the pack itself; what comes after is as it should be.
        faulty.at = 3, lambda: faulty.rates.update(flip=0.0)
        check(store, range(20))
    assert [method for method, _ in faulty.requests[:3]] == ["HEAD", "GET", "GET"]
    assert "flip" in faulty.done
    assert len(faulty.requests) == 3
    (near,) = (tmp_path / "b").rglob("packs/*/*.safetensors")
    (first,) = (tmp_path / "a").rglob("packs/*/*.safetensors")
    assert near.read_bytes() == first.read_bytes()


def test_a_server_that_ignores_ranges_is_refused_by_name(faulty: Proxy, s3: Buckets, tmp_path: Path) -> None:
    """REMOTE A8: rows are read by range; a store on such a server is not opened."""
    url = s3.url(fresh())
    with precook.open(url, cache=tmp_path / "a") as store:
        store.put(KEYS[0], tree(0))
    faulty.rates["whole"] = 1.0
    with pytest.raises(precook.StoreError, match="ranges"):
        precook.open(url, cache=tmp_path / "b")


def test_a_server_that_is_away_for_a_while_is_waited_for(faulty: Proxy, s3: Buckets, tmp_path: Path) -> None:
    """REMOTE A6: a build goes on when the server is back."""
    with precook.open(s3.url(fresh()), cache=tmp_path / "a") as store:
        fill(store, range(5))
        seen = len(faulty.requests)
        faulty.stopped = True
        back = threading.Timer(1.0, lambda: setattr(faulty, "stopped", False))
        back.start()
        fill(store, range(5, 10))
        back.join()
        assert len(faulty.requests) > seen
        check(store, range(10))


def test_a_server_that_stays_away_ends_with_its_own_exit_code(faulty: Proxy, s3: Buckets, tmp_path: Path) -> None:
    """REMOTE A6: exit code 14 when patience is spent; what was committed is there, and the next run makes the rest."""
    url = parse_url(s3.url(fresh()), RemoteOptions(patience=1.0))
    with precook.open(url, cache=tmp_path / "a") as store:
        fill(store, range(5))
        faulty.stopped = True
        with pytest.raises(precook.UnreachableError) as caught:
            fill(store, range(5, 10))
        assert caught.value.exit_code == 14
        faulty.stopped = False
    with precook.open(url, cache=tmp_path / "b") as store:
        assert store.missing(KEYS[:10]) == KEYS[5:10]
        fill(store, range(10))
        check(store, range(10))


def test_a_build_ends_with_its_exit_code_and_the_next_one_goes_on(faulty: Proxy, s3: Buckets, tmp_path: Path) -> None:
    """REMOTE A6: gone for longer than the patience of the config; when it is back, only the rest is encoded."""
    config = write_config(tmp_path, s3.url(fresh()), s3)
    config.write_text(config.read_text() + "remote: {patience: 2s}\n")
    assert run("build", "--config", config).code == 0
    picture(tmp_path / "data" / "new.png", seed=9)
    (tmp_path / "data" / "new.txt").write_text("another\n")
    faulty.stopped = True
    ended = run("build", "--config", config)
    assert ended.code == 14, ended.err
    assert "did not answer" in ended.err
    faulty.stopped = False
    again = run("build", "--config", config, "--json")
    assert (again.code, encoded(again)) == (0, {"pixels": 1})


WRITER = """
import sys, numpy, precook
url, cache = sys.argv[1:3]
recipe = precook.Recipe("test", {"version": 1})
store = precook.open(url, cache=cache)
print("ready", flush=True)
for number in range(40):
    store.put(recipe.key(number), numpy.full(3000, number, numpy.int32), recipe=recipe)
    print(number, flush=True)
"""


def kill_at(faulty: Proxy, number: int, arguments: list[str], url: str, cache: Path) -> str:
    """Run a program and kill it, and its courier, when the server sees this request; what it had said."""
    name = courier_name(parse_url(url), cache, precook.__version__)
    program = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)

    def kill() -> None:
        program.send_signal(signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            lock = Path(tempfile.gettempdir(), f"precook-{os.getuid()}", f"{name}.sock.lock")
            os.kill(int(lock.read_text()), signal.SIGKILL)

    faulty.at = len(faulty.requests) + number, kill
    with program:
        assert program.stdout is not None
        said = program.stdout.read()
    faulty.at = None
    return said


@pytest.mark.parametrize("number", [3, 6, 8, 9, 10, 11, 12, 15, 18])
def test_a_writer_that_is_killed_loses_nothing_that_was_reported(
    faulty: Proxy, s3: Buckets, tmp_path: Path, number: int
) -> None:
    """REMOTE A4: killed at a request, with its courier: what `put` returned for is there for another machine."""
    url = s3.url(fresh())
    said = kill_at(faulty, number, ["-c", WRITER, url, str(tmp_path / "a")], url, tmp_path / "a")
    reported = len(said.split()) - 1
    assert reported < 40, "it was not killed"
    with precook.open(url, cache=tmp_path / "b") as store:
        check(store, range(max(reported, 0)))
        if store.exists:
            assert store.reindex() >= reported
            assert store.verify().clean


def packs_put(requests: list[tuple[str, str]]) -> set[str]:
    """The packs that some requests bring."""
    return {path for method, path in requests if method == "PUT" and "/packs/" in path}


PUSHER = """
import sys, precook
with precook.open(sys.argv[1]) as store:
    store.push(sys.argv[2], cache=sys.argv[3])
"""


@pytest.mark.parametrize("number", [4, 9, 12, 13, 14, 17, 20, 23])
def test_a_push_that_is_killed_goes_on_and_sends_nothing_twice(
    faulty: Proxy, s3: Buckets, tmp_path: Path, number: int
) -> None:
    """REMOTE A3: what the server had taken when it was killed is not sent again."""
    url = s3.url(fresh())
    with precook.open(tmp_path / "here") as store:
        for key in range(8):
            store.put(KEYS[key], tree(key), recipe=RECIPE)
        kill_at(faulty, number, ["-c", PUSHER, str(tmp_path / "here"), url, str(tmp_path / "a")], url, tmp_path / "a")
        begun, taken = packs_put(faulty.requests), packs_put(faulty.answered)
        faulty.requests.clear()
        store.push(url, cache=tmp_path / "b")
        assert not taken & packs_put(faulty.requests)
        assert len(begun | packs_put(faulty.requests)) == 8
    with precook.open(url, cache=tmp_path / "c") as store:
        check(store, range(8))


@pytest.mark.parametrize(
    ("method", "status", "code"),
    [
        ("GET", "403", "SignatureDoesNotMatch"),
        ("GET", "403", "InvalidAccessKeyId"),
        ("GET", "400", "ExpiredToken"),
        ("PUT", "403", "AccessDenied"),
    ],
)
def test_credentials_that_are_refused_are_told_at_once(
    faulty: Proxy, s3: Buckets, tmp_path: Path, method: str, status: str, code: str
) -> None:
    """REMOTE A7: a wrong secret, an unknown key, an old token, no right to write: exit code 13, and the code."""
    faulty.denied = method, status, code
    with (
        pytest.raises(precook.AccessError, match=code) as caught,
        precook.open(s3.url(fresh()), cache=tmp_path / "a") as store,
    ):
        store.put(KEYS[0], tree(0))
    assert caught.value.exit_code == 13
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint
    assert SECRET not in str(caught.value)


def test_a_pack_without_a_leaf_is_adopted_by_reindex(folder: Buckets, tmp_path: Path) -> None:
    """REMOTE A4: a writer died between the two; its entries are missing, and then there."""
    name = fresh()
    with folder.open(name) as store:
        fill(store, range(10))
    leaves = sorted((folder.root / "far" / name / "index" / "leaves").iterdir())
    leaves[0].unlink()
    with folder.open(name, cache=tmp_path / "b") as store:
        assert store.missing(KEYS[:10])
        assert store.reindex() == 10
        check(store, range(10))
    with folder.open(name, cache=tmp_path / "c") as store:
        check(store, range(10))


def test_two_writers_of_the_same_keys_do_no_harm(folder: Buckets, tmp_path: Path) -> None:
    """REMOTE A9: every key is there and every read is right, whoever came first."""
    name = fresh()

    def write(cache: str) -> None:
        with folder.open(name, cache=tmp_path / cache) as store:
            fill(store, range(40))

    threads = [threading.Thread(target=write, args=(cache,)) for cache in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with folder.open(name, cache=tmp_path / "c") as store:
        check(store, range(40))
        assert len(store) == 40
        assert store.verify().clean


def test_a_changed_pack_is_damage_and_a_changed_leaf_is_not_used(folder: Buckets, tmp_path: Path) -> None:
    """What the bucket itself has lost is named; what only its leaf has lost is read from the pack."""
    name = fresh()
    with folder.open(name) as store:
        fill(store, range(10))
    far = folder.root / "far" / name
    first, second = sorted((far / "packs").rglob("*.safetensors"))
    for file in (first, *(leaf for leaf in (far / "index" / "leaves").iterdir() if leaf.name.endswith(second.stem))):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with folder.open(name, cache=tmp_path / "b") as store:
        lost = [key for key in KEYS[:10] if store.get(key, None) is None]
        assert len(lost) == 1
        with pytest.raises(precook.DamagedEntryError):
            store.locate(lost[0])
        assert not store.verify().clean
        store.put(lost[0], tree(KEYS.index(lost[0])), recipe=RECIPE)
        check(store, range(10))


def test_a_pack_whose_head_has_changed_is_read_by_its_leaf(folder: Buckets, tmp_path: Path) -> None:
    """Its rows are what they were, and `verify` says what is wrong with it."""
    name = fresh()
    with folder.open(name) as store:
        fill(store, range(5))
    (pack,) = (folder.root / "far" / name / "packs").rglob("*.safetensors")
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.write_bytes(data + b"more")
    with folder.open(name, cache=tmp_path / "b") as store:
        check(store, range(5))
        assert [damage.key for damage in store.verify().damage] == [None]


def test_an_entry_larger_than_a_request_comes_back(s3: Buckets, tmp_path: Path) -> None:
    """A pack of more than 64 MiB goes in parts, and comes in ranges."""
    url, large = s3.url(fresh()), np.arange(70 << 17, dtype=np.int64)
    with precook.open(url, cache=tmp_path / "a") as store:
        store.put(KEYS[0], large)
    with precook.open(url, cache=tmp_path / "b", read_only=True) as store:
        np.testing.assert_array_equal(store.get(KEYS[0]), large)


def test_a_copy_that_was_damaged_here_is_fetched_again(folder: Buckets, tmp_path: Path) -> None:
    """What lies near can be lost or changed at any time."""
    name, cache = fresh(), tmp_path / "b"
    with folder.open(name) as store:
        fill(store, range(10), at_a_time=10)
    with folder.open(name, cache=cache) as store:
        check(store, range(10))
    (pack,) = cache.rglob("packs/*/*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-5:] = b"wrong"
    pack.write_bytes(data)
    with folder.open(name, cache=cache) as store:
        check(store, range(10))
    pack.unlink()
    with folder.open(name, cache=cache) as store:
        check(store, range(10))


def test_a_pack_that_is_gone_from_the_bucket_is_a_miss(folder: Buckets, tmp_path: Path) -> None:
    """Somebody has deleted it: its entries are missing, and nobody waits for ever."""
    name = fresh()
    with folder.open(name) as store:
        fill(store, range(10))
    next(iter((folder.root / "far" / name / "packs").rglob("*.safetensors"))).unlink()
    with folder.open(name, cache=tmp_path / "b") as store:
        assert sum(store.get(key, None) is None for key in KEYS[:10]) == 5
        assert len(store.missing(KEYS[:10])) == 5


def test_a_courier_that_is_killed_is_replaced(folder: Buckets, tmp_path: Path) -> None:
    """Whoever notices starts another, and goes on."""
    name = fresh()
    with folder.open(name, cache=tmp_path / "a") as store:
        fill(store, range(5))
        assert isinstance(store, BucketStore)
        os.kill(int(Path(f"{store._courier._socket}.lock").read_text()), signal.SIGKILL)
        fill(store, range(5, 10))
        check(store, range(10))


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, 13, "AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": None}, 13, "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_missing_credentials_are_named(
    s3: Buckets, monkeypatch: pytest.MonkeyPatch, changes: dict[str, None], code: int, told: str, tmp_path: Path
) -> None:
    """REMOTE A7: exit code 13 and the variable, not a long wait."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRECOOK_CACHE", str(tmp_path / "near"))
    for name in changes:
        monkeypatch.delenv(name)
    ended = run("ls", "--store", s3.url(fresh()))
    assert (ended.code, told in ended.err) == (code, True), ended.err


@pytest.mark.skipif(os.environ.get("PRECOOK_S3_SERVER") != "ceph", reason="moto believes every secret: make remote")
def test_a_real_server_refuses_a_wrong_secret(s3: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """REMOTE A7: exit code 13, and with the right secret it works at once."""
    url = s3.url(fresh())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(precook.AccessError, match="SignatureDoesNotMatch"):
        precook.open(url, cache=tmp_path / "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with precook.open(url, cache=tmp_path / "a") as store:
        store.put(KEYS[0], tree(0))


def test_no_bucket_and_no_store_are_told_apart(s3: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """REMOTE A7: exit code 10 for both, and the reason."""
    monkeypatch.setenv("PRECOOK_CACHE", str(tmp_path / "near"))
    ended = run("ls", "--store", "s3://nobody-has-made-this/x")
    assert (ended.code, "no such bucket" in ended.err) == (10, True), ended.err
    ended = run("ls", "--store", s3.url(fresh()))
    assert (ended.code, "no store there" in ended.err) == (10, True), ended.err


def test_no_secret_is_found_anywhere(s3: Buckets, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """REMOTE A7: not in a pickle, a file of the cache, an object or the log."""
    url = s3.url(fresh())
    with precook.open(url, cache=tmp_path / "near") as store:
        fill(store, range(5))
        told = [pickle.dumps(store), repr(store).encode(), str(store.stats()).encode(), caplog.text.encode()]
        assert isinstance(store, BucketStore)
        objects = [item.name for item in store._courier.list("")]
        assert "store.toml" in objects
        told += [store._courier.get(name) for name in objects]
        again = pickle.loads(told[0])
        check(again, range(5))
        again.close()
    told += [path.read_bytes() for path in (tmp_path / "near").rglob("*") if path.is_file()]
    told += [path.read_bytes() for path in tmp_path.rglob("*.safetensors")]
    assert len(told) > 8
    assert not [text for text in told if SECRET.encode() in text]


def test_a_fork_goes_on_with_a_connection_of_its_own(folder: Buckets) -> None:
    """A worker that was forked after its parent has read reads and writes, too, and so does the parent meanwhile."""
    name = fresh()
    with folder.open(name) as store:
        fill(store, range(10))
        ready, go = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                os.read(ready, 1)
                check(store, range(10))
                fill(store, range(10, 20), at_a_time=1)
                code = 0
            finally:
                os._exit(code)
        os.write(go, b"!")
        fill(store, range(20, 30), at_a_time=1)
        assert os.waitpid(child, 0)[1] == 0
        check(store, range(30))
        os.close(ready)
        os.close(go)


def test_a_folder_store_needs_nothing_of_a_bucket() -> None:
    """Neither obstore nor a courier: opening and using a folder imports and starts none of it."""
    program = (
        "import sys, tempfile, precook\n"
        "with precook.open(tempfile.mkdtemp() + '/x') as store:\n"
        "    store.put(precook.Recipe('a', {}).key(1), 1)\n"
        "assert not [name for name in sys.modules if 'obstore' in name or 'courier.process' in name]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
