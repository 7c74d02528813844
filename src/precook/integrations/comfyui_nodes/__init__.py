"""Nodes for ComfyUI: Make, Save and Load Training Dataset, kept in a store and streamed from it.

This folder is linked into ComfyUI's `custom_nodes`; ComfyUI imports it under a name of its own and asks it for its
nodes. They have the inputs and outputs of ComfyUI's own three nodes.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from precook.integrations.comfyui_nodes.nodes import NODES, old_class, schema_class

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "comfy_entrypoint"]


def _has_schemas() -> bool:
    """Whether this ComfyUI describes nodes by schemas."""
    try:
        return importlib.util.find_spec("comfy_api.latest") is not None
    except ModuleNotFoundError:  # no comfy_api at all
        return False


# A ComfyUI that knows both asks for the mappings first, and would not look at the schemas.
NODE_CLASS_MAPPINGS: dict[str, type] | None = None if _has_schemas() else {node.id: old_class(node) for node in NODES}
NODE_DISPLAY_NAME_MAPPINGS = {node.id: node.title for node in NODES}


async def comfy_entrypoint() -> Any:
    """What ComfyUI calls for the nodes of an extension."""
    api: Any = importlib.import_module("comfy_api.latest")
    classes = [schema_class(node, api.io) for node in NODES]

    class DatasetExtension(api.ComfyExtension):  # type: ignore[misc] # ComfyUI's, which is not installed here
        """Three nodes."""

        async def get_node_list(self) -> list[type]:
            return classes

    return DatasetExtension()
