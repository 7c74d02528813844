"""The driver all tests of this directory share: it compiles the library and imports the store once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .driver import Driver
from .library import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .report import Report


def done(report: Report) -> Report:
    """The report of a task, or a skip that says why it could not be done here."""
    if report.skipped:
        pytest.skip(report.skipped)
    return report


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    """A driver process, or a skip that says why there is none."""
    try:
        started = Driver()
    except UnavailableError as error:
        pytest.skip(str(error))
    with started:
        yield started
