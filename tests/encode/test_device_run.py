"""Device runs: what a batch gives, what it cost, and which of it is not finite, by the device itself on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precook.config.encoders import TransformersText
from precook.encode.encoder import Item
from precook.encode.text import TextEncoder
from precook.encode.torch_tools import DeviceRun

torch = pytest.importorskip("torch", reason="torch is not installed")
text_models = pytest.importorskip("tests.encode.test_text", reason="transformers is not installed")

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")


def run_on(device: str, values: Any) -> tuple[DeviceRun, Any]:
    run = DeviceRun(device)
    run.ordered([values.to(device)], torch.float16, [1])
    (fetched,) = run.fetch()
    return run, fetched


def test_on_a_cpu_nothing_is_measured() -> None:
    """There the host looks at the results, as for any encoder, and the clock on the wall says what they took."""
    values = torch.arange(6.0).reshape(2, 3)
    run, fetched = run_on("cpu", values)
    assert torch.equal(fetched, values.half())
    assert (run.cost, run.finite) == (None, None)


@GPU
def test_a_gpu_says_what_a_batch_cost_and_what_is_not_finite() -> None:
    """Values as they are, in the type that was asked for, and a flag for each row."""
    values = torch.arange(6.0).reshape(3, 2)
    values[1, 1] = torch.nan
    run, fetched = run_on("cuda", values)
    assert fetched.dtype == torch.float16
    assert torch.equal(fetched[[0, 2]], values[[0, 2]].half())
    assert run.finite is not None
    assert [flags.tolist() for flags in run.finite] == [[True, False, True]]
    assert run.cost is not None
    assert run.cost.seconds > 0
    assert run.cost.memory > 0
    assert run.cost.free > 0


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    """A small real text model."""
    text_models.save_model(tmp_path, text_models.FAMILIES["bert"].saved())
    section = TransformersText(uses="transformers-text", model="unused", max_length=text_models.LIMIT)
    encoder = TextEncoder(section, tmp_path, tmp_path)
    encoder.load("cpu")
    return encoder


def test_a_text_is_finite_where_what_is_kept_of_it_is(encoder: TextEncoder) -> None:
    """Whatever stands in the padding: no entry has it."""
    staged = encoder.stage([Item(text="a cat"), Item(text="two dogs asleep in the grass")])
    staged.launch()
    short, long = (len(tree["hidden"]) for tree in staged.land())
    assert staged.not_finite is None, "on a CPU nobody has looked"
    assert short < long
    model, rows = staged._model, staged._some
    flags = np.ones((2, long), bool)
    flags[0, short:] = False
    pooled = np.ones(2, bool)
    assert model.not_finite([flags, pooled], rows, long) == []
    flags[0, short - 1] = False
    assert model.not_finite([flags, pooled], rows, long) == [0]
    flags[0] = True
    pooled[1] = False
    assert model.not_finite([flags, pooled], rows, long) == [1]


@GPU
def test_a_gpu_finds_a_text_that_is_not_finite(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number in the batch, and not one whose padding alone is not."""
    encoder.load("cuda")
    staged = encoder.stage([Item(text="a cat"), Item(text="two dogs asleep in the grass")])
    ordered = DeviceRun.ordered

    def spoil(run: DeviceRun, tensors: Any, dtype: Any, parts: Any) -> None:
        tensors[0][0, -1] = torch.nan  # padding of the short one
        tensors[0][1, 0] = torch.nan
        ordered(run, tensors, dtype, parts)

    monkeypatch.setattr(DeviceRun, "ordered", spoil)
    staged.launch()
    staged.land()
    assert staged.not_finite == frozenset({1})
    assert staged.cost is not None
