"""Own classes of a config: what is run of them, by which command, and what `--no-code` shows without them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import precook
from precook.cli.main import COMMANDS
from tests.support.commands import change_config, environment, everything, run
from tests.support.projects import OWN_ENCODER, dataset

CONFIG = """\
store: cache
dataset: things
concepts:
  - {name: things, path: data}
image: {resolutions: [64], step: 16}
text: {empty_prompt: false}
encoders:
  pixels: {uses: image}
"""
HOSTILE = ("numpy", "torch", "yaml", "json", "sitecustomize", "usercustomize", "huggingface_hub", "transformers")
"""Modules that a stranger may put beside a config, under names that precook or Python imports."""
LOOKING = ("plan", "plan --no-write", "status", "explain data/p0.png", "explain --no-write data/p0.png")
SCRIPT = """\
import sys
from precook.cli.main import app
for words in sys.argv[1].split("; "):
    try:
        app(words.split(), prog_name="precook")
    except SystemExit as ending:
        assert not ending.code, words
"""
"""Stands for the installed command, which lies in a folder of its own and not in the user's."""
OTHER_COMMANDS = {
    "adopt": "adopt data",
    "clear": "clear --all",
    "export": "export things out.tar",
    "show": "show 00000000",
    "snapshots": "snapshots list",
    "leases": "leases list",
    "verify": "verify",
    "init": "init data",
    "import": "import nothing.tar",
    "evict": "evict --max-bytes 1GB",
    "prune": "prune --older-than 1d",
    "demo": "demo --help",
}
"""Words for commands that need some, and none for those that run as they are."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with three pictures and a config without own classes; the user is in it."""
    dataset(tmp_path / "data", 3)
    (tmp_path / "precook.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def name_own_class(place: Path, uses: str, fields: str = "") -> None:
    """Have the config name a class as its encoder `own`."""
    with (place / "precook.yaml").open("a") as config:
        config.write(f'  own: {{uses: "{uses}"{fields}}}\n')


def leave_trace(place: Path, module: str) -> Path:
    """Put a module beside the config, with an encoder in it; the file that appears when it is imported."""
    trace = place / f"{module}-was-imported"
    (place / f"{module}.py").write_text(f"open({str(trace)!r}, 'w').close()\n{OWN_ENCODER}")
    return trace


def traces(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("*-was-imported"))


class TestWhatAConfigNames:
    """What `uses` names is a class with an encoder's methods, or nothing of it is called."""

    @pytest.mark.parametrize("words", [*LOOKING, "build", "verify --sources", "verify --recompute 100%"])
    def test_a_program_of_the_system_is_not_started(self, place: Path, words: str) -> None:
        """`subprocess:Popen` is a class, but no encoder: it is refused before it is called."""
        started = place / "started"
        name_own_class(place, "subprocess:Popen", f', args: ["touch", "{started}"]')
        ended = run(*words.split())
        assert ended.code == 2
        assert not started.exists()
        assert "precook.yaml:9: encoders.own.uses: subprocess:Popen has no methods identity, load, encode" in ended.err
        assert "hint: name a class with input (image, text or mask), identity, load, encode and unload" in ended.err

    @pytest.mark.parametrize(
        ("uses", "reason"),
        [
            ("os:system", "os:system is a function, not a class"),
            ("shutil:rmtree", "shutil:rmtree is a function, not a class"),
            ("os:path", "os:path is a module, not a class"),
            ("unittest.mock:call", "unittest.mock:call is an object of the class _Call, not a class"),
            ("pathlib:Path", "pathlib:Path has no methods identity, load, encode, unload"),
            ("unittest.mock:MagicMock", "unittest.mock:MagicMock has no methods identity, load, encode, unload"),
            ("precook.encode.vae:VaeEncoder", "precook.encode.vae:VaeEncoder has no method identity"),
        ],
    )
    def test_what_is_no_class_of_encoders_is_refused(self, place: Path, uses: str, reason: str) -> None:
        """Functions, modules, objects, and classes without the methods: the message says which, with its line."""
        name_own_class(place, uses)
        ended = run("plan")
        assert ended.code == 2
        assert f"precook.yaml:9: encoders.own.uses: {reason}" in ended.err

    def test_a_function_is_not_called_to_see_what_it_returns(self, place: Path) -> None:
        """Also one beside the config that would return an encoder."""
        leave_trace(place, "makers")
        with (place / "makers.py").open("a") as module:
            module.write("def make():\n    open('made', 'w').close()\n    return Own()\n")
        name_own_class(place, "makers:make")
        assert "makers:make is a function, not a class" in run("plan").err
        assert not Path("made").exists()

    def test_a_class_of_encoders_is_taken(self, place: Path) -> None:
        """With its methods inherited, or made by decorators, and its input given by the constructor."""
        leave_trace(place, "own_base")
        (place / "own_child.py").write_text(
            "from own_base import Own\n"
            "class Child(Own):\n"
            "    load = staticmethod(lambda device: None)\n"
            "    unload = classmethod(lambda cls: None)\n"
            "    def __init__(self, takes): self.input = takes\n"
        )
        name_own_class(place, "own_child:Child", ", takes: text")
        assert run("build").code == 0

    @pytest.mark.parametrize(
        ("says", "message"),
        [
            ("input = 'Text'", "unknown input 'Text'; did you mean 'text'?"),
            ("inputs = ('image', 'image')", "it takes 'image' twice"),
            ("inputs = ('image')", "inputs is 'image', not a tuple of names"),
        ],
    )
    def test_an_unknown_input_is_refused(self, place: Path, says: str, message: str) -> None:
        """With the nearest name, before anything else is asked of the class."""
        leave_trace(place, "taking")
        text = (place / "taking.py").read_text()
        (place / "taking.py").write_text(text.replace("input = 'text'", says).replace("return 1", "raise RuntimeError"))
        name_own_class(place, "taking:Own")
        ended = run("plan")
        assert ended.code == 2
        assert f"precook.yaml:9: encoders.own.uses: taking:Own: {message}" in ended.err

    def test_a_module_that_ends_python_is_an_error(self, place: Path) -> None:
        """A config whose module calls sys.exit(0) does not look like a plan that went well."""
        (place / "ending.py").write_text("import sys\nsys.exit(0)\n")
        name_own_class(place, "ending:Own")
        ended = run("plan")
        assert ended.code == 2
        assert "ending cannot be imported: SystemExit: 0" in ended.err

    def test_the_path_of_imports_is_as_it_was(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The config's folder comes after everything installed, for this one import, and is gone afterwards.

        Also where the folder is on the path already, or the module changes the path itself.
        """
        (place / "json.py").write_text("raise RuntimeError('a stranger')\n")
        leave_trace(place, "own_path")
        text = (place / "own_path.py").read_text()
        (place / "own_path.py").write_text(f"import sys, json\nseen = list(sys.path)\nsys.path.insert(0, 'x')\n{text}")
        monkeypatch.setattr(sys, "path", [str(place), "/nowhere", *sys.path])
        before = list(sys.path)
        name_own_class(place, "own_path:Own")
        assert run("plan").code == 0
        assert sys.modules["own_path"].seen == [*before, str(place)]
        assert sys.path == ["x", *before]


class TestNoCode:
    """`--no-code`: a stranger's config is looked at, and nothing that it names is imported."""

    @pytest.mark.parametrize("words", [*LOOKING, "verify --sources", "verify --recompute 100%"])
    def test_nothing_of_it_is_imported(self, place: Path, words: str) -> None:
        """Neither a module beside the config nor an installed one."""
        leave_trace(place, "strange")
        name_own_class(place, "strange:Own")
        assert run("build", "--no-code", "--encoder", "pixels").code == 0
        path = list(sys.path)
        ended = run(*words.split(), "--no-code")
        assert (ended.code, ended.err) == (0, "")
        assert traces(place) == []
        assert "strange" not in sys.modules
        assert sys.path == path

    def test_people_see_what_was_not_loaded_and_the_rest_of_the_plan(self, place: Path) -> None:
        """The other encoders are planned as ever; the class stands there by its name."""
        leave_trace(place, "strange")
        name_own_class(place, "strange:Own")
        out = run("plan", "--no-code").out
        assert "\npixels       0        3       0\nown      own class, not loaded: strange:Own\n" in out
        assert "\nto build: 3 entries" in out
        assert "own class, not loaded: strange:Own\n" in run("status", "--no-code").out
        assert "\n  own: own class, not loaded: strange:Own\n" in run("explain", "data/p0.png", "--no-code").out

    def test_with_all_the_rest_built_it_does_not_say_that_nothing_is_left(self, place: Path) -> None:
        """Of an encoder that was not loaded nobody knows what is missing."""
        leave_trace(place, "strange")
        name_own_class(place, "strange:Own")
        assert run("build", "--no-code", "--encoder", "pixels").code == 0
        assert run("plan", "--no-code").out.endswith("\nto build: nothing, apart from what own would make\n")

    def test_programs_see_it_too(self, place: Path) -> None:
        """`not_loaded` names each with its class, in plan, status and explain."""
        leave_trace(place, "strange")
        name_own_class(place, "strange:Own")
        expected = [{"name": "own", "uses": "strange:Own"}]
        assert run("plan", "--no-code", "--json").document["not_loaded"] == expected
        assert run("status", "--no-code", "--json").document["dataset"]["not_loaded"] == expected
        assert run("explain", "data/p0.png", "--no-code", "--json").document["not_loaded"] == expected
        assert run("plan", "--json").document["not_loaded"] == []

    def test_a_build_refuses_before_anything_is_written(self, place: Path) -> None:
        """It names the class and its line, and says what to do; of the other encoders alone it builds."""
        leave_trace(place, "strange")
        name_own_class(place, "strange:Own")
        before = everything(place)
        ended = run("build", "--no-code")
        assert ended.code == 2
        assert "precook.yaml:9: encoders.own.uses: own class, not loaded: strange:Own" in ended.err
        assert "hint: read strange and leave out --no-code, or name the other encoders with --encoder" in ended.err
        assert everything(place) == before
        assert "encoders.own.uses: own class, not loaded" in run("build", "--no-code", "--encoder", "own").err
        assert "encoders.own.uses: own class, not loaded" in run("plan", "--no-code", "--encoder", "own").err
        assert run("build", "--no-code", "--encoder", "pixels", "--processes", "2").code == 0
        assert traces(place) == []

    def test_without_own_classes_it_changes_nothing(self, place: Path) -> None:
        """Such a config can be built with it."""
        assert run("build", "--no-code").code == 0
        assert run("plan", "--no-code").out.endswith("\nto build: nothing\n")

    def test_our_own_class_for_adopted_entries_is_loaded(self, place: Path) -> None:
        """A config names it like one of its own, and it is precook's."""
        fields = ", tool: sd-scripts, architecture: sdxl"
        name_own_class(place, "precook.integrations.adopted:Adopted", fields)
        ended = run("plan", "--no-code", "--json")
        assert [one["name"] for one in ended.document["encoders"]] == ["pixels", "own"]

    def test_python_says_it_with_code_false(self, place: Path) -> None:
        """`precook.load(..., code=False)` plans, and refuses to build and to feed."""
        leave_trace(place, "strange")
        name_own_class(place, "strange:Own")
        with precook.load("precook.yaml", code=False) as project:
            plan = project.plan()
            assert list(plan.encoders) == ["pixels"]
            assert plan.not_loaded == {"own": "strange:Own"}
            with pytest.raises(precook.IncompleteError, match="own"):
                plan.build()
            with pytest.raises(precook.ConfigError, match="own class, not loaded"):
                project.build()
            with pytest.raises(precook.ConfigError, match="own class, not loaded"):
                project.feed(batch_size=1)
        assert traces(place) == []


class TestConfigsWithoutOwnClasses:
    """They run no code, whatever lies beside them."""

    def test_modules_beside_them_are_not_imported(self, place: Path) -> None:
        """Under names that precook, its libraries or Python itself import, in the folder that the user is in."""
        for module in HOSTILE:
            leave_trace(place, module)
        with (place / "precook.yaml").open("a") as config:
            config.write("  mask: {uses: mask}\n")
        script = Path("bin", "precook")
        script.parent.mkdir()
        script.write_text(SCRIPT)
        for words in ("build --processes 2", "; ".join([*LOOKING, "build", "verify --sources", "gc", "doctor"])):
            ended = subprocess.run([sys.executable, script, words], env=environment(), check=False, capture_output=True)
            assert ended.returncode == 0, ended.stderr.decode()
        assert traces(place) == []

    def test_the_path_of_imports_is_never_changed(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not even for a moment."""

        class Watched(list[str]):
            def append(self, place: str) -> None:
                raise AssertionError(place)

            insert = extend = append  # type: ignore[assignment]

        monkeypatch.setattr(sys, "path", Watched(sys.path))
        assert run("build").code == 0
        assert run("status").code == 0


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("plan", "status", "explain", "build")])
def test_commands_that_only_ask_the_config_for_its_store_import_nothing(place: Path, name: str) -> None:
    """Of all commands only plan, status, explain, build and two options of verify load own classes."""
    assert run("build").code == 0
    leave_trace(place, "strange")
    name_own_class(place, "strange:Own")
    run(*OTHER_COMMANDS.get(name, name).split())
    assert traces(place) == []


def test_the_config_may_be_edited_afterwards(place: Path) -> None:
    """A plan without own classes leaves nothing behind that a plan with them would trip over."""
    trace = leave_trace(place, "own_later")
    name_own_class(place, "own_later:Own")
    assert run("plan", "--no-code").code == 0
    assert run("build").code == 0
    assert trace.exists()
    change_config("own_later:Own", "own_later:Other")
    assert "own_later has no Other" in run("plan").err
