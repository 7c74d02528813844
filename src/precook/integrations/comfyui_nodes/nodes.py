"""The three nodes, described once: made into classes of either kind that ComfyUI knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precook.integrations.comfyui_nodes import datasets

_CATEGORY = "dataset"
_SCHEMA_TYPES = {
    "IMAGE": "Image",
    "VAE": "Vae",
    "CLIP": "Clip",
    "STRING": "String",
    "INT": "Int",
    "LATENT": "Latent",
    "CONDITIONING": "Conditioning",
}
"""ComfyUI's types, and what they are called in its schemas."""


@dataclass(frozen=True, slots=True)
class NodeInput:
    """One input of a node."""

    name: str
    type: str
    tooltip: str
    optional: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a ComfyUI workflow: what it takes, what it gives and what it does."""

    id: str
    title: str
    run: Callable[..., tuple[Any, ...]]
    inputs: Sequence[NodeInput]
    outputs: Sequence[tuple[str, str]] = ()
    """Name and type of each; all of them are lists."""
    takes_lists: bool = False
    is_output: bool = False
    state: Callable[..., str] | None = None
    """What tells whether it has to run again although its inputs are the same."""


_DATASET = (("latents", "LATENT"), ("conditioning", "CONDITIONING"))
_FOLDER = NodeInput(
    "folder_name",
    "STRING",
    "Folder of the dataset, inside the output directory.",
    options={"default": "training_dataset"},
)
NODES = (
    Node(
        id="PrecookMakeTrainingDataset",
        title="Make Training Dataset (precook)",
        run=datasets.make,
        takes_lists=True,
        inputs=(
            NodeInput("images", "IMAGE", "Pictures to encode."),
            NodeInput("vae", "VAE", "Makes latents of the pictures."),
            NodeInput("clip", "CLIP", "Makes conditionings of the texts."),
            NodeInput("texts", "STRING", "One text for each picture, one for all, or none.", optional=True),
        ),
        outputs=_DATASET,
    ),
    Node(
        id="PrecookSaveTrainingDataset",
        title="Save Training Dataset (precook)",
        run=datasets.save,
        takes_lists=True,
        is_output=True,
        inputs=(
            NodeInput("latents", "LATENT", "Latents, as Make Training Dataset or Resolution Bucket gives them."),
            NodeInput("conditioning", "CONDITIONING", "A conditioning for each latent."),
            _FOLDER,
            NodeInput(
                "shard_size",
                "INT",
                "Has no effect: samples are read one by one, whatever file they lie in.",
                options={"default": 1000, "min": 1, "max": 100000},
            ),
        ),
    ),
    Node(
        id="PrecookLoadTrainingDataset",
        title="Load Training Dataset (precook)",
        run=datasets.load,
        inputs=(_FOLDER,),
        outputs=_DATASET,
        state=datasets.state,
    ),
)


def schema_class(node: Node, io: Any) -> type:
    """The class of a node for a ComfyUI that describes nodes by schemas; `io` is that part of its interface."""

    def kind(name: str) -> Any:
        return getattr(io, _SCHEMA_TYPES[name])

    def define_schema(_: type) -> Any:
        return io.Schema(
            node_id=node.id,
            display_name=node.title,
            category=_CATEGORY,
            is_experimental=True,
            is_input_list=node.takes_lists,
            is_output_node=node.is_output,
            inputs=[
                kind(one.type).Input(one.name, optional=one.optional, tooltip=one.tooltip, **one.options)
                for one in node.inputs
            ],
            outputs=[kind(type_).Output(display_name=name, is_output_list=True) for name, type_ in node.outputs],
        )

    def execute(_: type, /, **inputs: Any) -> Any:
        return io.NodeOutput(*node.run(**inputs))

    members: dict[str, Any] = {"define_schema": classmethod(define_schema), "execute": classmethod(execute)}
    state = node.state
    if state is not None:
        members["fingerprint_inputs"] = classmethod(lambda _, **inputs: state(**inputs))
    return type(node.id, (io.ComfyNode,), members)


def old_class(node: Node) -> type:
    """The class of a node for a ComfyUI that goes by attributes of classes."""

    def input_types(_: type) -> dict[str, dict[str, Any]]:
        described: dict[str, dict[str, Any]] = {"required": {}, "optional": {}}
        for one in node.inputs:
            options = {**one.options, "tooltip": one.tooltip}
            described["optional" if one.optional else "required"][one.name] = (one.type, options)
        return described

    members: dict[str, Any] = {
        "INPUT_TYPES": classmethod(input_types),
        "INPUT_IS_LIST": node.takes_lists,
        "RETURN_TYPES": tuple(type_ for _, type_ in node.outputs),
        "RETURN_NAMES": tuple(name for name, _ in node.outputs),
        "OUTPUT_IS_LIST": (True,) * len(node.outputs),
        "OUTPUT_NODE": node.is_output,
        "CATEGORY": _CATEGORY,
        "EXPERIMENTAL": True,
        "FUNCTION": "execute",
        "execute": lambda _, **inputs: node.run(**inputs),
    }
    state = node.state
    if state is not None:
        members["IS_CHANGED"] = classmethod(lambda _, **inputs: state(**inputs))
    return type(node.id, (), members)
