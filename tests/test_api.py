"""The public face: names, start-up, and what the code never does."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import precook
from tests.support.projects import dataset, project

SOURCE = Path(precook.__file__).parent


def test_every_public_name_is_there() -> None:
    """`__all__` lists what can be had, `dir` shows it, and what is not there is an AttributeError."""
    for name in precook.__all__:
        assert getattr(precook, name) is not None
        assert name in dir(precook)
    with pytest.raises(AttributeError):
        precook.nonsense  # noqa: B018


def test_the_names_for_type_checkers_are_the_names_at_run_time() -> None:
    """The table and the imports in `__init__` cannot drift apart, neither in names nor in modules."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    names = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for node in block.body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            assert isinstance(node.value, ast.Name)
            names[target.id] = f"{names.pop(node.value.id)}:{node.value.id}"
    assert names == precook._PUBLIC
    assert set(names) == set(precook.__all__)


METHODS = {
    "Store": "put writer get get_many stack missing cached stats verify reindex close snapshot snapshots freeze lease",
    "Snapshot": "feed samples content file created",
    "Plan": "build freeze explain ready missing failed",
    "Project": "plan build feed store verify_sources recompute",
    "Feed": "epoch state_dict load_state_dict dataset batch_sampler as_hf_dataset close",
    "Writer": "put flush close",
}
"""What the pages of docs call on an object of each class."""


@pytest.mark.parametrize("name", METHODS)
def test_a_public_class_has_every_method_that_is_documented(name: str) -> None:
    """Also where the class is one of a lower layer with more on top: its public name stands for the whole of it."""
    public = getattr(precook, name)
    names = {*dir(public), *getattr(public, "__dataclass_fields__", {})}
    assert set(METHODS[name].split()) <= names


def test_what_calls_return_is_of_the_public_classes(tmp_path: Path) -> None:
    """So that `isinstance` and annotations mean what they say."""
    dataset(tmp_path / "data", 2)
    with project(tmp_path) as one:
        assert isinstance(one, precook.Project)
        plan = one.plan()
        assert isinstance(plan, precook.Plan)
        plan.build()
        assert isinstance(one.store, precook.Store)
        snapshot = one.store.snapshot("test")
        assert isinstance(snapshot, precook.Snapshot)
        assert isinstance(one.store.freeze("test", snapshot.content), precook.Snapshot)
        # Frozen by a plan, it is the store's own class.
        assert isinstance(one.plan().freeze(), precook.Snapshot)
        assert isinstance(one.store.writer(), precook.Writer)
        with snapshot.feed(batch_size=2, tensors="numpy") as feed:
            assert isinstance(feed, precook.Feed)
        with pickle.loads(pickle.dumps(one.store)) as again:
            assert isinstance(again, precook.Store)


def test_importing_is_quiet_and_without_torch() -> None:
    """`import precook` loads neither torch nor numpy, opens nothing and prints nothing."""
    code = "import precook, sys; assert not {'torch', 'numpy', 'rich', 'typer'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_using_a_store_of_numpy_trees_needs_no_torch(path: Path) -> None:
    """Putting, getting, verifying and hashing never import it."""
    code = """
import sys, numpy, precook
recipe = precook.Recipe("test", {})
with precook.open(sys.argv[1]) as store:
    store.put(recipe.key(1), {"x": numpy.zeros(3)})
    store.get(recipe.key(1)), store.get(recipe.key(1), lazy=True), store.verify(), store.stats()
    store.cached(lambda items: items, recipe)(["a"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_a_torch_entry_without_torch_is_a_clear_error(path: Path) -> None:
    """Where torch cannot be imported the entry is still readable as numpy, and the error says so."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    recipe = precook.Recipe("test", {})
    with precook.open(path) as store:
        store.put(recipe.key(1), torch.arange(3))
    code = """
import sys
sys.modules["torch"] = None  # what an interpreter without torch does: the import fails
import precook
key = precook.Recipe("test", {}).key(1)
with precook.open(sys.argv[1]) as store:
    assert store.get(key, tensors="numpy").tolist() == [0, 1, 2]
    try:
        store.get(key)
    except precook.MissingTorchError as error:
        assert 'tensors="numpy"' in str(error)
    else:
        raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_code_path_can_run_what_it_reads(file: Path) -> None:
    """No pickle, no torch.load, no numpy object loading, no unsafe YAML, no eval: anywhere."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & BANNED_MODULES
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in BANNED_MODULES
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                assert called.id not in BANNED_CALLS
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                assert (called.value.id, called.attr) not in {("np", "load"), ("yaml", "load"), ("torch", "load")}
        assert not (isinstance(node, ast.keyword) and node.arg == "allow_pickle")


def test_errors_of_ours_have_one_root_and_show_their_hint() -> None:
    """Every public error is a PrecookError, and the tree drawn in errors.py names them all."""
    import precook.errors as module  # noqa: PLC0415

    for name in dir(module):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.__name__:
            assert issubclass(value, precook.PrecookError)
            assert name in (module.__doc__ or "")
            assert name in precook.__all__
    error = precook.NoSpaceError(Path("x"), "full")
    assert str(error) == "x: full (free some space and try again)"
    assert precook.MissingEntryError(precook.Key(bytes(32))).args
    assert "'" not in str(precook.MissingEntryError(precook.Key(bytes(32))))


def test_messages_cannot_steer_a_terminal() -> None:
    """Escape sequences, newlines and bidi overrides in a path are shown, not sent."""
    error = precook.NoSpaceError(Path("a\x1b[31m\n\u202e\udc80b"), "full")
    assert str(error).startswith("a\\x1b[31m\\n\\u202e\\udc80b: full")
    str(error).encode("utf-8")
