"""Models of the hub: found in huggingface_hub's own cache, downloaded into it, and known by their content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import dataset, picture, text_folder, vae_folder

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

CHILD = """
import json, sys
from contextlib import contextmanager
from pathlib import Path
import precook
from tests.support.projects import project

class Told:
    def __init__(self):
        self.tasks = {}
    @contextmanager
    def task(self, name, *, total, unit):
        self.tasks[name] = 0
        self.name = name
        yield self
    def advance(self, amount=1, *, nbytes=0, failed=0):
        self.tasks[self.name] += amount

def answer(encoder):
    told = Told()
    with project(base, encoders={"x": encoder}) as one:
        plan = one.plan(report=told)
        found = {"keys": sorted(entry.key.hex for entry in plan.missing)}
        found["downloaded"] = sum(count for name, count in told.tasks.items() if name.startswith("downloading"))
        if do == "build":
            found["encoded"] = plan.build().encoded["x"]
            entries = [one.store.get(entry.key, tensors="numpy") for entry in one.plan().ready]
            found["entries"] = [entry["input_ids"].tolist() for entry in entries]
        return found

base, encoders, do = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for encoder in encoders:
    try:
        print(json.dumps(answer(encoder)))
    except precook.PrecookError as error:
        print(json.dumps({"error": type(error).__name__, "message": error.message, "hint": error.hint}))
"""


class Hub(ThreadingHTTPServer):
    """What the client asks of the hub: which commit a revision is, which files it has, and those."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.commits: dict[str, dict[str, bytes]] = {}
        self.revisions: dict[str, str] = {}
        self.asked: list[str] = []

    def push(self, folder: Path, revision: str, note: str = "") -> str:
        """A new commit with the files of a folder, which a branch or tag then means."""
        commit = hashlib.sha1(f"{len(self.commits)} {note}".encode()).hexdigest()
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.commits[commit] = {**files, "README.md": note.encode(), "pytorch_model.bin": b"never wanted"}
        self.revisions[revision] = commit
        return commit


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        api, files = "/api/models/owner/name/", "/owner/name/resolve/"
        commits = self.server.commits
        if path.startswith(f"{api}revision/") and (commit := self._commit(path.removeprefix(f"{api}revision/"))):
            self._send(json.dumps({"id": "owner/name", "sha": commit, "siblings": []}).encode(), body, {})
        elif path.startswith(f"{api}tree/") and (commit := self._commit(path.removeprefix(f"{api}tree/"))):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in commits[commit].items()
            ]
            self._send(json.dumps(tree).encode(), body, {})
        elif path.startswith(files) and (commit := self._commit(path.removeprefix(files).partition("/")[0])):
            content = commits[commit][path.removeprefix(files).partition("/")[2]]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            self._send(content, body, {"ETag": etag, "X-Repo-Commit": commit})
        else:
            code = "RevisionNotFound" if "/owner/name/" in path else "RepoNotFound"
            self._send(b"{}", body, {"X-Error-Code": code}, status=404)

    def _commit(self, revision: str) -> str | None:
        return revision if revision in self.server.commits else self.server.revisions.get(revision)

    def _send(self, content: bytes, body: bool, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub on this machine, with the model owner/name."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of a project with two pictures."""
    dataset(tmp_path / "project" / "data", 2)
    return tmp_path / "project"


def environment(base: Path, hub: Hub | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    kept |= {"HF_HOME": str(base.parent / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", "no_proxy": "*"}
    # Nothing listens on port 9 of this machine: a hub that cannot be reached.
    address = "http://127.0.0.1:9" if hub is None else f"http://127.0.0.1:{hub.server_port}"
    return {**kept, "HF_ENDPOINT": address}


def run_all(
    base: Path, hub: Hub | None, encoders: list[dict[str, Any]], do: str = "plan", **extra: str
) -> list[dict[str, Any]]:
    """Plan, or build, with each of these in a process of their own: the library reads its environment at its import."""
    command = [sys.executable, "-c", CHILD, str(base), json.dumps(encoders), do]
    done = subprocess.run(
        command, env={**environment(base, hub), **extra}, check=True, capture_output=True, text=True, timeout=300
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(base: Path, hub: Hub | None, encoder: dict[str, Any], do: str = "plan", **extra: str) -> dict[str, Any]:
    (answer,) = run_all(base, hub, [encoder], do, **extra)
    return answer


VAE = {"uses": "diffusers-vae", "model": "owner/name", "revision": "main"}


def test_a_model_is_downloaded_once_and_known_by_its_content(base: Path, hub: Hub) -> None:
    """The first plan downloads what the encoder uses; later ones need no hub, and a copy of it has the same keys."""
    hub.push(vae_folder(base.parent / "vae"), "main")
    first = run(base, hub, VAE)
    assert first["downloaded"] == 3  # the config, the weights, the notes
    assert not [path for path in hub.asked if path.endswith(".bin")]
    hub.asked.clear()
    shutil.copytree(base.parent / "vae", base / "copy")
    again, copied = run_all(base, hub, [VAE, {"uses": "diffusers-vae", "model": "copy"}])
    assert again == copied == {**first, "downloaded": 0}
    assert not hub.asked
    assert run(base, None, VAE, HF_HUB_OFFLINE="1")["keys"] == first["keys"]


def test_of_a_pipeline_only_what_makes_prompts_is_downloaded(base: Path, hub: Hub) -> None:
    """Its index, its text encoder and its tokenizer, and none of the rest, which is many times larger."""
    pipeline = base.parent / "pipeline"
    text_folder(pipeline / "text_encoder")
    text_folder(pipeline / "tokenizer")
    vae_folder(pipeline / "unet")
    parts = {"text_encoder": "CLIPTextModel", "tokenizer": "CLIPTokenizer", "unet": "UNet2DConditionModel"}
    index = {"_class_name": "StableDiffusionPipeline", **{name: ["transformers", kind] for name, kind in parts.items()}}
    (pipeline / "model_index.json").write_text(json.dumps(index))
    hub.push(pipeline, "main")
    prompt = {"uses": "diffusers-prompt", "model": "owner/name", "revision": "main"}
    first = run(base, hub, prompt)
    assert "keys" in first
    assert not [path for path in hub.asked if "/unet/" in path]
    assert [path for path in hub.asked if "/text_encoder/" in path]
    hub.asked.clear()
    shutil.copytree(pipeline, base / "copy")
    again, copied = run_all(base, hub, [prompt, {"uses": "diffusers-prompt", "model": "copy"}])
    assert again["keys"] == copied["keys"] == first["keys"]
    assert not hub.asked


def test_a_revision_is_no_part_of_a_key(base: Path, hub: Hub) -> None:
    """Commits, tags and branches with the same files give the same keys; other weights give others."""
    old = hub.push(vae_folder(base.parent / "vae"), "v1", "first")
    hub.push(base.parent / "vae", "main", "another readme")
    new = hub.push(vae_folder(base.parent / "other", seed=1), "next")
    answers = run_all(base, hub, [{**VAE, "revision": revision} for revision in ("v1", old, "main", new)])
    tag, commit, branch, other = (answer["keys"] for answer in answers)
    assert tag == commit == branch
    assert not set(branch) & set(other)


def test_a_folder_of_that_name_wins(base: Path, hub: Hub) -> None:
    """What lies beside the config file is used, and the hub is not asked."""
    hub.push(vae_folder(base.parent / "vae"), "main")
    vae_folder(base / "owner" / "name", seed=1)
    named, plain = run_all(base, hub, [VAE, {**VAE, "revision": None}])
    assert not hub.asked
    assert named == plain
    assert len(named["keys"]) == 2


def test_without_a_revision_the_hub_is_not_asked(base: Path, hub: Hub) -> None:
    """A misspelt folder is an error here, whatever the hub has under that name, and the hint tells of `revision`."""
    hub.push(vae_folder(base.parent / "vae"), "main")
    answer = run(base, hub, {"uses": "diffusers-vae", "model": "owner/name"})
    assert answer["error"] == "ConfigError"
    assert answer["message"].endswith("owner/name")
    assert "revision" in answer["hint"]
    assert not hub.asked


@pytest.mark.parametrize("offline", ["", "1"])
def test_what_cannot_be_downloaded_names_the_command(base: Path, offline: str) -> None:
    """Without a network the error names the encoder's field, why, and what to run where there is one."""
    answer = run(base, None, {**VAE, "subfolder": "vae"}, HF_HUB_OFFLINE=offline)
    assert answer["error"] == "ConfigError"
    assert answer["message"].startswith(
        "encoders.x.model: owner/name, revision main: it is not in the hub's cache here"
    )
    assert ("HF_HUB_OFFLINE" in answer["message"]) == bool(offline)
    assert "`hf download owner/name --revision main --include 'vae/*'`" in answer["hint"]


def test_what_the_hub_does_not_have_is_told(base: Path, hub: Hub) -> None:
    """An unknown revision, an unknown model and a name that can be none each have a reason of their own."""
    hub.push(vae_folder(base.parent / "vae"), "main")
    changes: list[dict[str, Any]] = [{"revision": "gone"}, {"model": "owner/gone"}, {"model": "a/b/c"}]
    answers = run_all(base, hub, [{**VAE, **change} for change in changes])
    assert [answer["message"] for answer in answers] == [
        "encoders.x.model: owner/name, revision gone: the hub has no such revision",
        "encoders.x.model: owner/gone, revision main: the hub has no such model, or does not show it to you",
        "encoders.x.model: no such folder, and no name of a model on the hub: a/b/c",
    ]


def test_parts_of_a_model_are_downloaded_alone(base: Path, hub: Hub) -> None:
    """Of a pipeline only the folders that the encoder names are taken: its own, and that of its tokenizer."""
    whole = base.parent / "pipeline"
    text_folder(whole / "text_encoder")
    shutil.move(whole / "text_encoder" / "tokenizer.json", picture(whole / "tokenizer" / "logo.png", 0).parent)
    vae_folder(whole / "vae")
    hub.push(whole, "main")
    encoder = {"uses": "transformers-text", "model": "owner/name", "revision": "main", "subfolder": "text_encoder"}
    local = {**encoder, "revision": None, "model": str(whole), "tokenizer": str(whole / "tokenizer")}
    first, copied = run_all(base, hub, [{**encoder, "tokenizer": "tokenizer"}, local])
    assert len(first["keys"]) == 3
    assert copied["keys"] == first["keys"]
    assert not [path for path in hub.asked if "/vae/" in path]
    # The cache has the model now, but not this part of it.
    assert run(base, hub, {**VAE, "subfolder": "vae"})["downloaded"] > 0


def test_the_tokenizer_beside_a_text_encoder_is_downloaded_too(base: Path, hub: Hub) -> None:
    """Of a pipeline on the hub, without a word about its tokenizer: with the keys of the same folders here."""
    whole = base.parent / "pipeline"
    text_folder(whole / "text_encoder_2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (whole / "tokenizer_2").mkdir(exist_ok=True)
        shutil.move(whole / "text_encoder_2" / name, whole / "tokenizer_2")
    hub.push(whole, "main")
    encoder = {"uses": "transformers-text", "model": "owner/name", "revision": "main", "subfolder": "text_encoder_2"}
    local = {**encoder, "revision": None, "model": str(whole)}
    named = {**encoder, "tokenizer": "tokenizer_2"}
    first, copied, written = run_all(base, hub, [encoder, local, named])
    assert len(first["keys"]) == 3
    assert first["keys"] == copied["keys"] == written["keys"]
    hub.asked.clear()
    assert run(base, hub, encoder) == {**first, "downloaded": 0}
    assert not hub.asked


def test_what_a_cache_lacks_of_a_folder_is_downloaded(base: Path, hub: Hub) -> None:
    """Somebody has looked at the config alone: the weights still come, and the keys are those of the whole model."""
    whole = vae_folder(base.parent / "vae")
    hub.push(whole, "main")
    look = "import huggingface_hub; huggingface_hub.hf_hub_download('owner/name', 'config.json')"
    subprocess.run([sys.executable, "-c", look], env=environment(base, hub), check=True, timeout=300)
    found, local = run_all(base, hub, [VAE, {**VAE, "revision": None, "model": str(whole)}])
    assert found["downloaded"] > 0
    assert found["keys"] == local["keys"]


def test_a_model_of_the_hub_is_built_with(base: Path, hub: Hub) -> None:
    """What a build stores was made with the files of the snapshot."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["[UNK]", "picture", "0", "1", ",", "line"]
    folder = text_folder(base.parent / "text", {word: number for number, word in enumerate(words)})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").unlink()
    hub.push(folder, "main")
    encoder = {"uses": "transformers-tokens", "model": "owner/name", "revision": "main"}
    answer = run(base, hub, encoder, "build")
    assert answer["encoded"] == 3
    assert sorted(answer["entries"]) == [[], [1, 2, 4, 5, 2], [1, 3, 4, 5, 2]]


MOVED = """
import sys
from pathlib import Path
from huggingface_hub.constants import HF_HUB_CACHE
from precook.encode.hub import HubSnapshots
from precook.report import SILENT

other = sys.argv[1]
snapshots = HubSnapshots()
planned = snapshots.find("owner/name", "main", [], SILENT)
snapshots.find("owner/name", other, [], SILENT)
Path(HF_HUB_CACHE, "models--owner--name", "refs", "main").write_text(other)
print(snapshots.planned("owner/name", "main", []) == planned)
print(snapshots.find("owner/name", "main", [], SILENT).name == other)
print(snapshots.planned("owner/name", "main", []).name == other)
"""


def test_a_branch_that_moves_after_the_plan_changes_nothing_in_the_build(base: Path, hub: Hub) -> None:
    """The files that the keys were made of are loaded, though somebody moved the branch; the next plan sees that."""
    hub.push(vae_folder(base.parent / "vae"), "main")
    other = hub.push(vae_folder(base.parent / "other", seed=1), "next")
    command = [sys.executable, "-c", MOVED, other]
    done = subprocess.run(command, env=environment(base, hub), check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True"] * 3
