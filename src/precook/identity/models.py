"""Models: torch modules as their class, config and weights; model folders as their files.

A module is known by what it computes with, so where it lies (path, device), how it attends (attention implementation)
and whether it trains are left out. docs/concepts/identity.md gives the reasons, one by one.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blake3 import blake3

from precook.errors import IdentityError, SourceError, printable
from precook.identity.canonical import canonical
from precook.identity.digest import digest, digest_files, max_threads
from precook.identity.functions import class_identity
from precook.identity.patches import build_twin, find_patches
from precook.identity.plain import condensed, descends_from, named_values, plain
from precook.threads import starting
from precook.values import Digest

MAX_JSON_BYTES = 256 << 10
"""JSON files up to this size are read as configs; larger ones are content."""
MAX_ENTRIES = 20_000
"""Files and folders a model may have; more is a dataset, or links that multiply."""

_VOLATILE = frozenset({"_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "_diffusers_version"})
"""What saving writes into a config file about itself: no loader's result depends on it."""
_SAID_ELSEWHERE = frozenset({"architectures", "dtype", "torch_dtype", "attn_implementation"}) | _VOLATILE
"""What a live module's config repeats (`class` and the weights say it) or what does not decide its output."""
_NOTES = (".md", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp", ".avif", ".ico", ".tif", ".tiff")
"""Ends of files that are for people only."""


def is_module(obj: object) -> bool:
    """Whether `obj` is a torch module; where torch was never imported nothing is."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.nn.Module)


def is_tensor(obj: object) -> bool:
    """Whether `obj` is a torch tensor."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def identify_module(module: Any, *, where: str = "") -> dict[str, object]:
    """A torch module as its class, its config or its structure, its weights, and what was changed in it since."""
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps computes the same
    if descends_from(module, "peft", "PeftModel"):
        if any(config.is_prompt_learning for config in module.peft_config.values()):
            hint = "identify the folders of the model and of its adapters"
            raise IdentityError(where, "it learns prompts, which are not among its weights", hint=hint)
        module = module.get_base_model()  # with the layers of its adapters in it
    config = getattr(module, "config", None)
    twin = None if config is None else build_twin(module)
    nature: dict[str, object] = {} if config is None else {"config": _config(config, f"{where}.config")}
    if twin is None:
        # Each part's class and arguments: an activation or a stride has no weight to know it by.
        parts = {name: (type(part), part.extra_repr()) for name, part in module.named_modules()}
        structure = {name: f"{kind.__module__}.{kind.__qualname__}({text})" for name, (kind, text) in parts.items()}
        nature["structure"] = condensed(structure)
    patches = find_patches(
        module, twin, identify_tensor=lambda tensor, place: identify_tensor(tensor, where=place), where=where
    )
    if patches:
        nature["patches"] = condensed(patches)
    return {"kind": "torch-module", "class": class_identity(module), **nature, "weights": _weights(module, where)}


def _config(config: object, where: str) -> object:
    fields = named_values(config)
    if fields is None:
        return plain(config, where)
    return {
        # A part's config, known by its model_type, repeats the same things as the whole.
        name: (_config if isinstance(value, dict) and "model_type" in value else plain)(value, f"{where}[{name!r}]")
        for name, value in fields.items()
        if name not in _SAID_ELSEWHERE and not str(name).startswith("_")
    }


def _weights(module: Any, where: str) -> Digest:
    # The canonical form sorts by name; one tensor at a time is brought to the host.
    forms: dict[str, object] = {}
    for name, entry in module.state_dict().items():
        place = f"{where}.state_dict()[{name!r}]"
        forms[name] = identify_tensor(entry, where=place) if is_tensor(entry) else plain(entry, place)
    return digest(canonical(forms))


def identify_tensor(tensor: Any, *, where: str = "") -> dict[str, object]:
    """A tensor as its dtype, shape and bytes in row order, on whatever device it lies."""
    torch: Any = sys.modules["torch"]
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta or hasattr(tensor, "__tensor_flatten__"):
        hint = "load the weights in full, or identify the folder they come from, as a Path"
        raise IdentityError(where, f"a {type(tensor).__name__} on {tensor.device} has no bytes here", hint=hint)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        message = f"a {tensor.layout} {tensor.dtype} tensor cannot be identified"
        raise IdentityError(where, message, hint="make it dense")
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # A dimension of size one keeps any stride, and viewing as bytes wants it to be 1.
    flat = dense.as_strided((dense.numel(),), (1,))
    hasher = blake3(max_threads=max_threads())
    with starting("precook-digest"):
        hasher.update(memoryview(flat.view(torch.uint8).numpy()))
    return {
        "kind": "tensor",
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "content": Digest(hasher.digest()),
    }


def identify_path(
    path: Path,
    *,
    digest_of: Callable[[list[Path]], list[Digest]] = digest_files,
    counts: Callable[[str], bool] = lambda _: True,
    where: str = "",
) -> Digest | dict[str, object]:
    """A file as the digest of its content, a folder as its files; where either lies is no part of it.

    `digest_of` gives the digests of files: the place to remember them. `counts` says which names inside a folder do.
    """
    try:
        if not path.is_dir():
            return digest_of([path])[0]
        files = {name: file for name, file in _files(path, where).items() if counts(name)}
        configs = {name: config for name, file in files.items() if (config := _read_config(file)) is not None}
    except OSError as error:
        raise SourceError(Path(error.filename or path), error.strerror or str(error)) from error
    if not files:
        hint = "check the path; hidden files, notes, licences and pictures do not count"
        raise IdentityError(where, f"{printable(path)}: no file in there", hint=hint)
    rest = [name for name in files if name not in configs]
    contents = dict(zip(rest, digest_of([files[name] for name in rest]), strict=True))
    return {"kind": "model-folder", "files": {name: configs.get(name, contents.get(name)) for name in files}}


def _files(root: Path, where: str) -> dict[str, Path]:
    """Every file that counts, by its name inside the folder; links are followed, but never back up."""
    files: dict[str, Path] = {}
    entries = 0
    todo: list[tuple[Path, str, tuple[tuple[int, int], ...]]] = [(root, "", ())]
    while todo:
        folder, prefix, above = todo.pop()
        status = folder.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        for entry in folder.iterdir():
            entries += 1
            if entries > MAX_ENTRIES:
                message = f"{printable(root)}: more than {MAX_ENTRIES} files and folders"
                raise IdentityError(where, message, hint="give the folder of one model")
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            mode = entry.stat().st_mode
            if stat.S_ISDIR(mode):
                todo.append((entry, f"{prefix}{entry.name}/", (*above, here)))
            elif stat.S_ISREG(mode) and not entry.name.startswith("LICENSE") and entry.suffix.lower() not in _NOTES:
                files[prefix + entry.name] = entry
    return dict(sorted(files.items()))


def _read_config(file: Path) -> object:
    """What a small JSON file says; None where its bytes are what counts."""
    if file.suffix != ".json" or file.name == "tokenizer.json" or file.stat().st_size > MAX_JSON_BYTES:
        return None
    try:
        config = json.loads(file.read_bytes())
        return condensed(_without_volatile(config)) if isinstance(config, dict) else None
    except (ValueError, RecursionError, IdentityError):
        return None  # not a config, whatever its name says


def _without_volatile(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_volatile(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_volatile(item) for name, item in value.items() if name not in _VOLATILE}
    return value
