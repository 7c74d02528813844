"""ComfyUI's own `main.py` where torchvision's compiled half is missing: `comfyui_server.py CHECKOUT OPTIONS`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    sys.argv[:2] = [str(folder / "main.py")]
    runpy.run_path(sys.argv[0], run_name="__main__")
