"""The process everything is injected from: the library preloaded, the store imported once, one fork per point.

`Driver` starts such a process and hands it tasks; `python -m tests.crash.driver WORKSPACE` is that process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import calls, injector, power
from .full import fill_up as fill
from .library import FAULTS, Library, UnavailableError, compile_library
from .meanwhile import meanwhile as run_beside
from .report import Report
from .users import TwoUsers

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .aftermath import Scenario


_SHARED = "two users, "


class DriverError(Exception):
    """The harness itself broke; the message is the traceback."""


def make_workspace() -> Path:
    """A directory for stores, in memory where there is such a place: a sync there costs nothing."""
    memory = Path("/dev/shm")
    inside = memory if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK) else None
    return Path(tempfile.mkdtemp(prefix="precook-faults-", dir=inside)).resolve()


class Driver:
    """A driver process. A context manager; needs a C compiler, and says so with `UnavailableError`."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            # Not in the workspace: /dev/shm is often mounted so that no code can be loaded from it.
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="precook-inject-")))
            library = compile_library(place)
            self.workspace = make_workspace()
            stack.callback(shutil.rmtree, self.workspace, ignore_errors=True)
            preload = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
            environment = {
                **os.environ,
                "LD_PRELOAD": preload,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                # Threads do not survive a fork; numpy's must not be there in the first place.
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.driver", str(self.workspace)],
                cwd=Path(__file__).parents[(__package__ or "").count(".") + 1],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(self._stop)
            self._answer()
            self._stack = stack.pop_all()

    def run(self, task: str, **arguments: Any) -> Report:
        """Let the driver do `task` and wait for its report."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([task, arguments]) + "\n")
        self._process.stdin.flush()
        return Report(**self._answer())

    def abort(self) -> None:
        """End the process in the middle of a task; whoever waits for that gets a `DriverError`. From any thread."""
        self._process.terminate()

    def close(self) -> None:
        """End the process and remove its workspace."""
        self._stack.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            message = f"the driver died with status {self._process.wait()}"
            raise DriverError(message)
        answer: dict[str, Any] = json.loads(line)
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        if "broken" in answer:
            raise DriverError(answer["broken"])
        return answer

    def _stop(self) -> None:
        # End of input ends the driver, once it is done with its task.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _scenario(name: str) -> Scenario:
    if name.startswith("toy"):
        from .toy import ToyScenario  # noqa: PLC0415 - the toy is there for the harness's own tests

        return ToyScenario(name.removeprefix("toy").strip())
    if name.startswith(_SHARED):
        return TwoUsers(_scenario(name.removeprefix(_SHARED)))
    from .scenarios import SCENARIOS  # noqa: PLC0415 - imports the store, which the toy's tests do without
    from .sharing import SHARING  # noqa: PLC0415
    from .upkeep import UPKEEP  # noqa: PLC0415

    return {**SCENARIOS, **SHARING, **UPKEEP}[name]


def _tasks(library: Library, workspace: Path) -> dict[str, Callable[..., Report]]:
    def sweep(scenario: str, fault: str, **options: Any) -> Report:
        return injector.sweep(_scenario(scenario), FAULTS[fault], library, workspace, **options)

    def cut_everywhere(scenario: str, **options: Any) -> Report:
        return power.cut_everywhere(_scenario(scenario), library, workspace, **options)

    def cut_after_fault(scenario: str, fault: str, **options: Any) -> Report:
        return power.cut_after_fault(_scenario(scenario), FAULTS[fault], library, workspace, **options)

    def meanwhile(scenario: str, fault: str, **options: Any) -> Report:
        return run_beside(_scenario(scenario), FAULTS[fault], library, workspace, **options)

    def fill_up(scenario: str, **options: Any) -> Report:
        return fill(_scenario(scenario), library, workspace, **options)

    def replay_every_call() -> Report:
        return calls.replay_every_call(library, workspace)

    def refuse_every_read() -> Report:
        return calls.refuse_every_read(library, workspace)

    def kill_loop(**options: Any) -> Report:
        from .kill_loop import kill_loop as loop  # noqa: PLC0415

        return loop(workspace, **options)

    def overlap(**options: Any) -> Report:
        from .overlap import overlap as write  # noqa: PLC0415

        return write(workspace, **options)

    known = (
        sweep,
        cut_everywhere,
        cut_after_fault,
        meanwhile,
        fill_up,
        replay_every_call,
        refuse_every_read,
        kill_loop,
        overlap,
    )
    return {task.__name__: task for task in known}


def _cpu() -> float:
    """Seconds of CPU that this process and its children have taken."""
    return sum(os.times()[:4])


def serve(workspace: Path) -> None:
    """Do tasks from standard input until it ends; what anybody prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        library = Library()
    except UnavailableError as error:
        answer({"unavailable": str(error)})
        return
    os.environ.pop("LD_PRELOAD", None)
    logging.disable()  # a store that recovers says so; here it does so thousands of times
    tasks = _tasks(library, workspace)
    answer({"ready": True})
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            before = _cpu()
            report = tasks[name](**arguments)
            report.cpu = _cpu() - before
            answer(report.as_data())
        except UnavailableError as error:
            answer(Report(" / ".join(map(str, arguments.values())), skipped=str(error)).as_data())
        except Exception:  # noqa: BLE001 - whatever it was, whoever asked has to hear of it
            answer({"broken": traceback.format_exc()})


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
