"""What the tests of the config share."""

from __future__ import annotations

import pytest

from precook.config.check import read_config
from precook.config.schema import Settings
from precook.config.yaml import Origin
from tests.support.configs import Reader


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Reads a config with this content."""
    path = tmp_path_factory.mktemp("config") / "precook.yaml"

    def read(content: str | bytes) -> tuple[Settings, Origin]:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_config(path)

    return read
