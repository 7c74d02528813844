"""Adopted entries: the recipe that marks them, and the encoder that names them in a config.

    encoders:
      latent: {uses: "precook.integrations.adopted:Adopted", tool: sd-scripts, architecture: sdxl}

A plan then wants these entries like any other's, and finds those that were adopted for the cuts it makes. The name of
this module and class stands in configs, and in the keys of what was adopted for them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from precook.errors import EncodeError, PrecookError
from precook.plan.wanted import Input

STATUS = "adopted, encoder not verified"


def recipe_data(tool: str, architecture: str, part: str) -> dict[str, str]:
    """All that is known about how adopted entries were made, and that the rest is not."""
    return {"status": STATUS, "tool": tool, "architecture": architecture, "part": part}


class Adopted:
    """An encoder that names entries which another tool made, and cannot make any."""

    def __init__(self, tool: str, architecture: str, part: str = "latent") -> None:
        if part not in ("latent", "prompt"):
            raise PrecookError(f"part is latent or prompt, not {part!r}")
        self.input: Input = "image" if part == "latent" else "text"
        self._data = recipe_data(tool, architecture, part)

    def identity(self) -> object:
        """What is known about the entries, and that their encoder is not."""
        return self._data

    def load(self, device: str) -> None:  # noqa: ARG002 - there is nothing to put on a device
        """Refuse: nobody knows which model this would be."""
        self._refuse()

    def encode(self, batch: list[Any]) -> list[Any]:  # noqa: ARG002 - likewise
        """Refuse."""
        self._refuse()

    def unload(self) -> None:
        """Nothing was loaded."""

    def _refuse(self) -> NoReturn:
        hint = "let the tool cache what is missing and run `precook adopt` again, or use an encoder of your own"
        raise EncodeError(f"adopted entries of {self._data['tool']} cannot be made here", hint=hint)
