"""What holds for every command: help, imports, exit codes, hostile text, and how commands end."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import precook
from precook import Recipe
from tests.support.commands import (
    VAE,
    cook,
    environment,
    everything,
    on_terminal,
    plain,
    read_only,
    read_terminal,
    run,
    spawn,
    steady,
)
from tests.support.projects import picture

EVIL = "\x1b]0;owned\x07[bold red]x[/]\n\u202egnp.exe"
COMMANDS = ["status", "ls", f"show {VAE.key(0).hex}", "verify", "doctor", "reindex"]
"""Every command that needs a store and no project, as it is used on the store of the fixture."""
NAMES = ["init", "plan", "build", "explain", "status", "ls", "show", "verify", "snapshots", "export", "import"]
NAMES += ["push", "pull", "adopt", "doctor", "reindex", "gc", "evict", "prune", "clear", "compact", "leases", "demo"]
"""Every command."""
ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


class TestManners:
    """What holds for every command."""

    def test_help_lists_the_commands_and_exit_codes(self) -> None:
        """Only what exists today, and every exit code there is."""
        out = run("--help").out
        commands = re.search(r"Commands:\n((?:  .*\n)+)", out)
        assert commands is not None
        names = [line.split()[0] for line in commands[1].splitlines()]
        assert names == NAMES
        assert "..." not in commands[1]  # each says what it does in its line
        codes = {int(code) for code in re.findall(r"^ +(\d+)  \w", out, re.MULTILINE)}
        errors = [value for value in map(precook.__getattr__, precook.__all__) if isinstance(value, type)]
        assert {error.exit_code for error in errors if issubclass(error, precook.PrecookError)} <= codes
        assert {0, 3, 130} <= codes

    @pytest.mark.parametrize("command", NAMES)
    def test_every_command_explains_itself(self, command: str) -> None:
        """Each has a help page with --json, with --store, and with --config; those that make one do without."""
        out = run(command, "--help").out
        assert "--json" in out
        assert ("--store DIR" in out) is (command != "demo")
        assert ("--config FILE" in out) is (command not in ("init", "demo"))
        assert out == run(command, "-h").out

    def test_the_version_is_told(self) -> None:
        """--version prints the package's."""
        assert run("--version").out == f"precook {precook.__version__}\n"

    def test_wrong_commands_are_usage_errors(self) -> None:
        """Exit code 2."""
        assert run("frobnicate").code == 2

    def test_the_module_is_the_command(self, store: Path) -> None:
        """`python -m precook` does what `precook` does."""
        with spawn("status", "--store", store, "--json", stdout=subprocess.PIPE) as process:
            assert process.communicate()[0].decode() == run("status", "--store", store, "--json").out

    def test_no_command_imports_torch(self, store: Path) -> None:
        """Importing torch takes seconds, and looking into a store needs none of it; help needs not even numpy."""
        commands = [[*command.split(), "--store", str(store)] for command in COMMANDS]
        script = f"""if True:
            import sys
            from precook.cli.main import app
            for help in [["--help"], *([name, "--help"] for name in {NAMES!r})]:
                app(help, standalone_mode=False)
                assert not {{"numpy", "sqlite3", "PIL", "yaml"}} & sys.modules.keys(), help
            for command in {commands!r}:
                assert not app(command, standalone_mode=False)
                assert "torch" not in sys.modules, command
        """
        subprocess.run([sys.executable, "-c", script], env=environment(), stdout=subprocess.DEVNULL, check=True)

    def test_a_command_does_not_wait_for_the_others(self, store: Path) -> None:
        """Of all the modules of commands only its own is imported."""
        script = f"""if True:
            import sys
            from precook.cli.main import app
            app(["reindex", "--store", {str(store)!r}], standalone_mode=False)
            assert {{name for name in {NAMES!r} if f"precook.cli.{{name}}" in sys.modules}} == {{"reindex"}}
        """
        subprocess.run([sys.executable, "-c", script], env=environment(), stdout=subprocess.DEVNULL, check=True)

    def test_reading_changes_nothing(self, store: Path) -> None:
        """No command that reads makes, changes or removes a file, with or without an index."""
        for _ in ("with an index", "without"):
            before = everything(store)
            for command in (("status",), ("ls",), ("show", VAE.key(0).hex)):
                assert run(*command, "--store", store).code == 0
            assert everything(store) == before
            (store / "index.sqlite").unlink(missing_ok=True)

    def test_a_read_only_store_can_be_read(self, store: Path) -> None:
        """Everything that only looks works where nothing can be written."""
        with read_only(store):
            for command in (("status",), ("ls",), ("show", VAE.key(0).hex), ("verify",), ("doctor",)):
                assert run(*command, "--store", store).code == 0

    def test_there_are_no_colours_off_a_terminal(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Data is plain text, whatever the environment asks for."""
        monkeypatch.setenv("FORCE_COLOR", "1")
        for command in COMMANDS:
            ended = run(*command.split(), "--store", store)
            assert "\x1b" not in ended.out + ended.err

    def test_a_damaged_index_is_a_warning(self, store: Path) -> None:
        """The library's warnings reach people on stderr, and stdout stays as it is."""
        before = run("ls", "--store", store, "-q")
        (store / "index.sqlite").write_bytes(b"nonsense" * 1000)
        after = run("ls", "--store", store, "-q")
        assert before.err == ""
        assert after.err.startswith("warning: making the index of")
        assert after.out == before.out

    def test_torch_tensors_are_shown_without_torch(self, store: Path) -> None:
        """What torch wrote, bfloat16 too, is measured from its bits."""
        torch = pytest.importorskip("torch")
        key = VAE.key("torch")
        with precook.open(store) as opened:
            opened.put(key, {"a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "b": torch.tensor([True, False])})
        out = run("show", key.hex, "--store", store).out
        assert "bfloat16 [2]  4 B  torch" in out
        assert "min -2  max 1.5  mean -0.25" in out
        assert "50.0% true" in out


class TestProjectManners:
    """What holds for every command of a project."""

    def test_none_of_them_imports_torch(self, pets: Path) -> None:
        """Planning needs no encoder; and what needs no config does not read one."""
        picture(pets / "more" / "1.png", 40)
        cook()
        commands = [["plan"], ["explain", "data/cats/p0.png"], ["status"], ["init", "more", "-o", "more.yaml"]]
        script = f"""if True:
            import sys
            from precook.cli.main import app
            assert not app(["verify", "--store", "cache"], standalone_mode=False)
            assert not [name for name in sys.modules if name.startswith(("precook.config", "yaml", "PIL"))]
            for command in {commands!r}:
                assert not app(command, standalone_mode=False)
            assert not {{"torch", "transformers", "diffusers"}} & sys.modules.keys()
        """
        subprocess.run([sys.executable, "-c", script], env=environment(), stdout=subprocess.DEVNULL, check=True)

    def test_a_narrow_terminal_is_kept_to(self, pets: Path) -> None:
        """Lines are broken between words and go on inside their paragraph; a key stays whole, to be copied."""
        (pets / "data/cats/p0.txt").write_bytes(b"\xff\xff")
        with (pets / "err").open("w") as err:
            seen = plain(on_terminal("plan", columns=40, stderr=err.fileno()))
            explained = plain(on_terminal("explain", "data/cats/p1.png", columns=40, stderr=err.fileno()))
        assert max(len(line) for line in seen.splitlines()) <= 40
        assert re.search(r"^  data/cats/p0.txt: .*\n    \w", seen, re.MULTILINE)
        assert steady(" ".join(seen.split())) == steady(" ".join(run("plan").out.split()))
        assert re.search(r"^ +[0-9a-f]{64}$", explained, re.MULTILINE)

    @pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["explain", "data/cats/p0.png"], ["status"]])
    def test_a_pipe_that_nobody_reads_is_quiet(self, pets: Path, command: list[str]) -> None:
        """`precook plan | head -0` ends without a word."""
        reader, writer = os.pipe()
        os.close(reader)
        with spawn(*command, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            assert process.communicate()[1] == b""
        assert process.returncode == 141


def all_on_terminal(*commands: list[str]) -> str:
    """What commands write to a terminal of 80 columns, one after the other."""
    script = f"from precook.cli.main import app\nfor command in {commands!r}: app(command, standalone_mode=False)"
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    with subprocess.Popen([sys.executable, "-c", script], env=environment(), **streams):
        os.close(slave)
        return read_terminal(master)


class TestHostileText:
    """Names, recipes, labels and values that try to be more than text."""

    @pytest.fixture
    def evil(self, tmp_path: Path) -> Path:
        """A store in a directory with an evil name, and evil text wherever there can be text."""
        path = tmp_path / f"evil{EVIL}"
        recipe = Recipe(EVIL, {EVIL: EVIL, "list": [EVIL], "bad": "\udcff", "bytes": b"\x1b"})
        with precook.open(path) as opened:
            opened.put(recipe.key(1), {EVIL: np.zeros(3), "b": EVIL, "c": [EVIL]}, recipe=recipe, labels={EVIL: EVIL})
        return path

    def test_nothing_steers_the_terminal(self, evil: Path) -> None:
        """On a terminal the only escape sequences are ours, and off it there are none; no line is forged."""
        key = run("ls", "--store", evil, "-q").out.strip()
        commands = [[*command.replace(VAE.key(0).hex, key).split(), "--store", str(evil)] for command in COMMANDS]
        for command in commands:
            ended = run(*command)
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^gnp", ended.out + ended.err, re.MULTILINE)
            if command[0] in ("status", "ls", "show"):
                assert r"\x1b]0;owned\x07[bold red]x[/]\n\u202egnp.exe" in ended.out
        written = all_on_terminal(*commands)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n").replace("\r", "")
        assert written != plain
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^gnp", plain, re.MULTILINE)
        assert plain.count("[bold red]x[/]") > 5

    def test_errors_are_escaped(self, evil: Path) -> None:
        """An error that quotes a name quotes it escaped."""
        ended = run("ls", "--store", evil, "--recipe", EVIL + "?")
        assert ended.code == 1
        assert len(ended.err.splitlines()) == 2
        (evil / "store.toml").write_text(f"{EVIL}")
        ended = run("status", "--store", evil)
        assert ended.code == 10
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", ended.err)

    def test_json_survives(self, evil: Path) -> None:
        """Evil text, lone surrogates too, comes through JSON as it is, in ASCII."""
        for command in ("status", "ls", "verify", "doctor", "reindex"):
            assert run(command, "--store", evil, "--json").out.isascii()
        found = run("status", "--store", evil, "--json").document
        assert found["recipes"][0]["kind"] == EVIL
        assert found["path"] == str(evil.resolve())
        (listed,) = run("ls", "--store", evil, "--json").document["entries"]
        shown = run("show", listed["key"], "--store", evil, "--json").document
        assert shown["labels"] == {EVIL: EVIL}
        assert shown["tree"]["items"][1]["value"] == EVIL

    def test_names_cannot_steer_the_terminal(self, here: Path) -> None:
        """Newlines, escape sequences and bytes in names are shown escaped, each on its one line, and whole in JSON."""
        names = ["new\nline.png", "esc\x1b[31m.png", "\u202egnp.png", "\udcff.png"]
        (here / "data").mkdir()
        for name in names:
            (here / "data" / name).touch()
        picture(here / "data" / "good\x1b]0;owned\x07.png", 1)
        assert run("init", "data").code == 0
        ended = run("plan")
        assert not ESCAPES.search(ended.out + ended.err)
        assert len(re.findall(r"^  data/.*: empty file$", ended.out, re.MULTILINE)) == 4
        document = run("plan", "--json")
        assert document.out.isascii()
        assert {Path(one["path"]).name for one in document.document["failed"]} == set(names)
        for name in names:
            explained = run("explain", here / "data" / name)
            assert explained.out.endswith(": left out: empty file\n")
            assert not ESCAPES.search(explained.out)
        seen = plain(on_terminal("plan")).replace("\r", "")
        assert not ESCAPES.search(seen)
        assert not ESCAPES.search(run("explain", "data/good\x1b]0;owned\x07.png").out)


class TestEndings:
    """How a command ends when it is not allowed to finish."""

    @pytest.fixture
    def long(self, tmp_path: Path) -> Path:
        """A store whose list of entries is longer than a pipe holds."""
        path = tmp_path / "long"
        with precook.open(path) as opened, opened.writer() as writer:
            for number in range(5000):
                writer.put(VAE.key(number), number)
        return path

    def test_an_interrupt_is_exit_code_130(self, long: Path) -> None:
        """Ctrl-C ends a command without a traceback."""
        with spawn("ls", "--store", long, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(10)  # it is at work now, and blocks because nobody reads on
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
        assert process.returncode == 130
        assert err == b"interrupted\n"

    def test_a_broken_pipe_is_quiet(self, long: Path) -> None:
        """`precook ls | head -1` prints one line and nothing else."""
        with spawn("ls", "--store", long, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait() == 141

    @pytest.mark.parametrize("command", [["status"], ["ls", "-q"], ["status", "--json"]])
    def test_a_pipe_that_nobody_reads_is_quiet(self, store: Path, command: list[str]) -> None:
        """Output that never leaves our buffer is dropped without a word, too."""
        reader, writer = os.pipe()
        os.close(reader)
        with spawn(*command, "--store", store, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            assert process.communicate()[1] == b""
        assert process.returncode == 141

    @pytest.mark.parametrize("command", [["status"], ["ls", "-q"]])
    def test_a_full_disk_under_stdout_is_an_error(self, store: Path, command: list[str]) -> None:
        """No traceback, and the exit code says that it failed."""
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        with (
            Path("/dev/full").open("wb") as full,
            spawn(*command, "--store", store, stdout=full, stderr=subprocess.PIPE) as process,
        ):
            _, err = process.communicate()
        assert process.returncode == 1
        assert re.fullmatch(rb"error: .*No space left on device\n", err)

    def test_any_encoding_will_do(self, store: Path) -> None:
        """Where stdout cannot hold a character it is escaped."""
        process = subprocess.run(
            [sys.executable, "-m", "precook", "show", VAE.key(0).hex, "--store", str(store)],
            env={**environment(), "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=True,
        )
        assert rb"[4 \xd7 8 \xd7 8]" in process.stdout
