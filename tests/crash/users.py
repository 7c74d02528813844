"""Two users of one group over one store: what the one leaves, the other carries on with.

The directory is the group's (mode 2775) and both have the umask 002, as people do who share a disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .aftermath import Rerun, Scenario
from .library import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from .children import Journal
    from .trace import Operation

# Numbers that no account of a machine is likely to have: nothing but the tests' own files is theirs.
USERS = (61_301, 61_302)
GROUP = 61_300


def check_two_users() -> None:
    """Raise `UnavailableError` where we cannot be two users."""
    if os.geteuid() != 0:
        message = "two users need root, to be both of them"
        raise UnavailableError(message)
    try:
        with acting_as(USERS[0]):
            pass
    except OSError as error:
        message = f"two users cannot be had here: {error.strerror}"
        raise UnavailableError(message) from error


@contextlib.contextmanager
def acting_as(user: int) -> Iterator[None]:
    """Be one of the two, with the group among one's groups; the whole process is, so only a child that is ours may."""
    groups, group, mask = os.getgroups(), os.getgid(), os.umask(0o002)
    try:
        os.setgroups([GROUP])
        os.setresgid(user, user, user)
        # Root stays the saved one, to come back as. The real one counts too: `access` goes by it.
        os.setresuid(user, user, 0)
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(group, group, group)
        os.setgroups(groups)
        os.umask(mask)


def become(user: int) -> None:
    """Be one of the two, and nobody else from now on."""
    os.setgroups([GROUP])
    os.setgid(user)
    os.setuid(user)
    os.umask(0o002)


def share(folder: Path) -> None:
    """Make a directory the group's, and one that both may get to."""
    os.chown(folder, USERS[0], GROUP)
    folder.chmod(0o2775)


def copy_owned(start: Path, area: Path) -> None:
    """Copy a tree with its owners, where we may give files away."""
    shutil.copytree(start, area, symlinks=True)
    if os.geteuid() == 0:
        for path in (start, *start.rglob("*")):
            status, copy = path.lstat(), area / path.relative_to(start)
            if status.st_uid or status.st_gid:
                os.chown(copy, status.st_uid, status.st_gid, follow_symlinks=False)


class TwoUsers(Scenario):
    """A scenario that one user prepares, another runs, and the first carries on with, each in turn."""

    def __init__(self, scenario: Scenario) -> None:
        check_two_users()
        self._scenario = scenario
        self.name = f"two users, {scenario.name}"
        self.numbers = scenario.numbers
        self.kept = scenario.kept
        self.tolerated = scenario.tolerated
        self.too_vague = scenario.too_vague
        self.names = scenario.names  # type: ignore[misc] - that of the scenario at hand

    def prepare(self, area: Path) -> None:
        """The first user prepares."""
        area.parent.chmod(0o711)
        share(area)
        with acting_as(USERS[0]):
            self._scenario.prepare(area)

    def run(self, area: Path, journal: Journal) -> None:
        """The second user runs it, and where that was cut off, the first runs it again."""
        with acting_as(USERS[0] if isinstance(journal, Rerun) else USERS[1]):
            self._scenario.run(area, journal)

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """The first user looks, and the second in the end."""
        with acting_as(USERS[1] if verify else USERS[0]):
            return self._scenario.check(area, acked, lenient=lenient, verify=verify)

    def forbids(self, operation: Operation) -> str:
        """As for one user."""
        return self._scenario.forbids(operation)

    def files(self) -> ModuleType:
        """As for one user."""
        return self._scenario.files()
