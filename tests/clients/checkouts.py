"""Where the checkouts of the real projects are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def checkout(name: str, repository: str) -> Path:
    """The folder of a checkout; without one, every test of the module that asks is skipped, with the reason."""
    folder = Path(os.environ.get("PRECOOK_CLIENTS") or "no clients", name)
    if not folder.is_dir():
        reason = f"no checkout of {repository}: `make clients CLIENTS=folder` with one at folder/{name} runs this"
        pytest.skip(reason, allow_module_level=True)
    return folder
