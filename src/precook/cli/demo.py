"""`precook demo`: the main job on real files, from an empty folder to batches for training, and what changes cost."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from precook.cli import output
from precook.cli.options import JsonOption, usage_error
from precook.cli.output import Span
from precook.errors import PrecookError, printable
from precook.units import format_duration

_NEEDED = ("torch", "diffusers", "transformers")
_COLOURS = ("red", "orange", "green", "blue", "purple", "brown")
_SHAPES = {"circle": 0, "triangle": 3, "square": 4, "star": 5}
"""Shapes and their corners."""
_SIZES = ((160, 128), (128, 128), (128, 160))
_PAPER = 245
"""Brightness of the background that shapes are drawn on."""
_EDITED = "a red circle, freshly painted"
_TOKENS = {"pad_token": "[pad]", "unk_token": "[unknown]", "bos_token": "[begin]", "eos_token": "[end]"}
"""The tokenizer's special tokens, in the order of their ids."""
_CONFIG = """\
store: cache
dataset: shapes
concepts:
  - {name: shapes, path: pictures, masks: "{stem}-masklabel.png"}
image: {resolutions: [128], step: 32}
encoders:
  latent: {uses: diffusers-vae, model: models/vae}
  prompt: {uses: transformers-text, model: models/text, max_length: 32}
  mask: {uses: mask, factor: 8}
"""
_BATCHES = """\
import precook

with precook.open("cache") as store, store.snapshot("shapes").feed(batch_size=4) as feed:
    print(len(feed), "batches an epoch")
    for _, batch in zip(range(3), feed.epoch(0)):
        shapes = {"latent": batch["latent"], "prompt": batch["prompt"]["hidden"], "mask": batch["mask"]}
        print({name: tuple(tensor.shape) for name, tensor in shapes.items()}, "of size", batch["size"])
"""
_END = """\
A trainer goes on from here: `for batch in feed.epoch(e, device="cuda")`, or `feed.loader()` where a DataLoader goes."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the demo: what it shows, and the commands that a user would type."""

    title: str
    commands: tuple[str, ...]


_STEPS = (
    Step("The config", ("cat precook.yaml",)),
    Step("What would a build do?", ("precook plan",)),
    Step("The first build encodes everything", ("precook build",)),
    Step("Again: nothing to do, and no model is loaded", ("precook build",)),
    Step(
        "One caption is edited: one text is encoded",
        (f"echo '{_EDITED}' > pictures/red-circle.txt", "precook build"),
    ),
    Step(
        "One picture is added: one picture and one text are encoded",
        ("mv new/gold-star.png new/gold-star.txt pictures/", "precook build"),
    ),
    Step(
        "Other weights in the VAE's folder: no old latent is served",
        ("mv models/vae models/vae-1 && mv models/vae-2 models/vae", "precook plan", "precook build"),
    ),
    Step(
        "The first weights again: everything is still there",
        ("mv models/vae models/vae-2 && mv models/vae-1 models/vae", "precook build"),
    ),
    Step("Batches for training, from the store alone", ("cat batches.py", "python batches.py")),
    Step("What the store holds now", ("precook status",)),
)


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.", show_default="precook-demo")
    ] = Path("precook-demo"),
    *,
    as_json: JsonOption = False,
) -> None:
    """Show the main job on pictures and models made on the spot.

    Every step shows the commands and what they print. Needs diffusers and transformers.
    """
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise usage_error(f"{printable(folder)} exists already", "name a new folder: `precook demo DIR`")
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        names = " and ".join([", ".join(absent[:-1]), absent[-1]] if absent[1:] else absent)
        hint = "pip install 'precook[diffusers,transformers]'"
        raise PrecookError(f"the demo runs real models and needs {names}, not installed here", hint=hint)
    start = time.monotonic()
    if not as_json:
        output.line(f"drawing pictures and making two small VAEs and a text encoder in {folder} …")
    _make_pictures(folder)
    captions = [path.read_text("utf-8") for path in sorted(folder.glob("*/*.txt"))]
    _make_models(folder / "models", [*captions, _EDITED])
    (folder / "precook.yaml").write_text(_CONFIG, "utf-8")
    (folder / "batches.py").write_text(_BATCHES, "utf-8")
    steps = [_show(step, number, folder, as_json=as_json) for number, step in enumerate(_STEPS, 1)]
    if as_json:
        output.document({"folder": str(folder), "seconds": round(time.monotonic() - start, 3), "steps": steps})
        return
    output.line()
    output.text(_END)
    output.line(f"done in {format_duration(time.monotonic() - start)}; everything is in {folder}")


def _show(step: Step, number: int, folder: Path, *, as_json: bool) -> dict[str, Any]:
    """Run a step's commands and show, or return, what they print."""
    if not as_json:
        output.line()
        output.line(Span(f"{number}. {step.title}", "bold"))
    commands = []
    for command in step.commands:
        if not as_json:
            output.line(Span(f"$ {command}", "cyan"), whole=True)
            sys.stdout.flush()
        commands.append({"command": command, "output": _output_of(command, folder, kept=as_json)})
    return {"title": step.title, "commands": commands}


def _output_of(command: str, folder: Path, *, kept: bool) -> str:
    """What a command prints, if that is to be kept; otherwise it goes to the terminal at once."""
    program, *words = shlex.split(command)
    # Run by this very Python: another one may not have what the demo needs.
    own = {"precook": [sys.executable, "-m", "precook", *words], "python": [sys.executable, *words]}
    arguments = own.get(program, ["sh", "-c", command])
    # The commands run in another folder, with this very package: paths on the way to it are made absolute.
    paths = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # noqa: PTH100
    environment = {**os.environ, "PYTHONPATH": paths}
    pipe = subprocess.PIPE if kept else None
    ended = subprocess.run(arguments, cwd=folder, env=environment, stdout=pipe, check=False)  # noqa: S603 - ours
    if ended.returncode:
        raise PrecookError(f"`{command}` ended with exit code {ended.returncode}", hint=f"look into {folder}")
    return ended.stdout.decode(errors="backslashreplace") if kept else ""


def _make_pictures(folder: Path) -> None:
    """Two dozen shapes with captions, two of them with masks, and one that is added later."""
    from PIL import Image

    (folder / "pictures").mkdir(parents=True)
    (folder / "new").mkdir()
    for number, (colour, shape) in enumerate((colour, shape) for colour in _COLOURS for shape in _SHAPES):
        _draw(folder / "pictures" / f"{colour}-{shape}.png", colour, shape, _SIZES[number % len(_SIZES)])
    _draw(folder / "new" / "gold-star.png", "gold", "star", _SIZES[0])
    for name in ("red-circle", "blue-square"):
        with Image.open(folder / "pictures" / f"{name}.png") as picture:
            mask = picture.convert("L").point(lambda value: 0 if value == _PAPER else 255)
            mask.save(folder / "pictures" / f"{name}-masklabel.png")


def _draw(path: Path, colour: str, shape: str, size: tuple[int, int]) -> None:
    """A shape in the middle of a picture, and its caption beside it."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", size, (_PAPER,) * 3)
    pen = ImageDraw.Draw(picture)
    middle, radius = (size[0] / 2, size[1] / 2), min(size) * 0.4
    corners = _SHAPES[shape]
    if not corners:
        pen.ellipse([part - radius for part in middle] + [part + radius for part in middle], fill=colour)
    else:
        points = 2 * corners if shape == "star" else corners
        pen.polygon([_corner(number, points, middle, radius, shape) for number in range(points)], fill=colour)
    picture.save(path)
    path.with_suffix(".txt").write_text(f"a {colour} {shape} on white paper\n", "utf-8")


def _corner(number: int, points: int, middle: tuple[float, float], radius: float, shape: str) -> tuple[float, float]:
    angle = 2 * math.pi * number / points - math.pi / 2
    reach = radius * (0.4 if shape == "star" and number % 2 else 1)
    return middle[0] + reach * math.cos(angle), middle[1] + reach * math.sin(angle)


def _make_models(folder: Path, captions: list[str]) -> None:
    """Two VAEs that differ in their weights alone, and a text encoder whose tokenizer is trained on the captions."""
    torch, diffusers, transformers = (importlib.import_module(name) for name in _NEEDED)
    importlib.import_module("transformers.utils.logging").disable_progress_bar()
    for number, name in enumerate(("vae", "vae-2")):
        torch.manual_seed(number)
        diffusers.AutoencoderKL(
            block_out_channels=(32, 32, 64, 64),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            sample_size=128,
        ).save_pretrained(folder / name)
    tokenizer = _train_tokenizer(captions)
    tokenizer.save_pretrained(folder / "text")
    torch.manual_seed(0)
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.CLIPTextModel(config).save_pretrained(folder / "text")


def _train_tokenizer(captions: list[str]) -> Any:
    """A tokenizer of whole words."""
    tokenizers = importlib.import_module("tokenizers")
    pad, unknown, begin, end = _TOKENS.values()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token=unknown))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=[pad, unknown, begin, end], show_progress=False)
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    )
    kind = importlib.import_module("transformers").PreTrainedTokenizerFast
    return kind(tokenizer_object=tokenizer, model_max_length=32, **_TOKENS)
