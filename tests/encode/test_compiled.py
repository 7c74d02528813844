"""Compiled code: as exact as the library's, in any batch, and given up where it fails or is wrong.

Most tests leave out the compiler itself, which takes seconds for each function, and run what torch has traced; those
of `TestExactness` compile, on a GPU too where there is one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from precook.config.encoders import DiffusersPrompt, DiffusersVae, TransformersText
from precook.encode.compiled import repeated_layers
from precook.encode.encoder import BaseEncoder, Item
from precook.encode.pool import DevicePool
from precook.encode.prepare import Job
from precook.encode.prompt import PromptEncoder
from precook.encode.registry import EncoderSpec
from precook.encode.text import TextEncoder
from precook.encode.vae import VaeEncoder

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
projects = pytest.importorskip("tests.support.projects")
pipelines = pytest.importorskip("tests.support.pipelines")
text_models = pytest.importorskip("tests.encode.test_text")
FAMILIES, LIMIT, save_model = text_models.FAMILIES, text_models.LIMIT, text_models.save_model

GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
)
TEXTS = ["a cat", "two dogs asleep in the grass", "seven red balloons over the old harbour", "the sea", "a cat at dawn"]

Backend = Callable[[Any, list[Any]], Callable[..., Any]]
"""What makes code of a graph, for `torch.compile`."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    """Small models gain nothing from threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend], None]:
    """Let another function make the code."""
    compile_ = torch.compile

    def use(made_by: Backend) -> None:
        torch._dynamo.reset()
        monkeypatch.setattr(torch, "compile", lambda *args, **options: compile_(*args, **options, backend=made_by))

    return use


def as_traced(graph: Any, _: list[Any]) -> Callable[..., Any]:
    """The operations that torch has traced, one by one."""
    run: Callable[..., Any] = graph.forward
    return run


def text_encoder(folder: Path, device: str = "cpu", **options: Any) -> TextEncoder:
    section = TransformersText(uses="transformers-text", model="unused", **{"max_length": LIMIT, **options})
    encoder = TextEncoder(section, folder, folder)
    encoder.load(device)
    return encoder


def vae_folder(folder: Path, channels: tuple[int, ...] = (8,), *, attention: bool = False) -> Path:
    """A VAE as SD has it, of few channels."""
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        block_out_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        layers_per_block=1,
        norm_num_groups=4,
        mid_block_add_attention=attention,
        latent_channels=4,
    )
    for name, parameter in vae.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.5)
    vae.save_pretrained(folder)
    return folder


def vae_encoder(folder: Path, device: str = "cpu", **fields: Any) -> VaeEncoder:
    encoder = VaeEncoder(DiffusersVae(uses="diffusers-vae", model="unused", **fields), folder)
    encoder.load(device)
    return encoder


def pictures(count: int, height: int = 24, width: int = 40) -> list[Item]:
    """Bright pictures with little contrast, of which a sum of squares says little."""
    drawn = np.random.default_rng(3).integers(200, 256, (count, height, width, 3), np.uint8)
    return [Item(image=picture) for picture in drawn]


def texts(*some: str) -> list[Item]:
    return [Item(text=text) for text in some]


def leaves(trees: list[Any]) -> list[Any]:
    """The tensors of trees that are one, or dicts of them."""
    return [leaf for tree in trees for leaf in (tree.values() if isinstance(tree, dict) else [tree])]


def close(found: list[Any], wanted: list[Any], tolerance: float = 1e-4) -> None:
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def distance(found: list[Any], exact: list[Any]) -> float:
    """The root of the mean square of all differences."""
    squares = [(one.double().cpu() - other.double()).square() for one, other in zip(found, exact, strict=True)]
    return float(torch.cat([square.flatten() for square in squares]).mean().sqrt())


def codes() -> int:
    """How many functions torch has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("device", ["cpu", GPU])
class TestExactness:
    """Against the same weights in double precision: not farther from that than the library's code is.

    In the type that is usual on the device. It is no part of a key because of this.
    """

    def check(self, encoder: BaseEncoder, batch: list[Item], exact: list[Any]) -> None:
        eager = encoder.encode(batch)
        encoder.compile()
        assert encoder.compiled
        compiled = encoder.encode(batch)
        assert distance(leaves(compiled), exact) <= 1.1 * distance(leaves(eager), exact)
        apart = max(distance(leaves([one]), leaves([other])) for one, other in zip(compiled, eager, strict=True))
        alone = [encoder.encode([item])[0] for item in batch[:4]]
        mixed = max(distance(leaves([one]), leaves([other])) for one, other in zip(compiled, alone, strict=False))
        assert max(apart, mixed) <= 3 * distance(leaves(eager), exact)

    def test_texts(self, tmp_path: Path, device: str) -> None:
        """Hidden states of a text, whatever texts stand beside it in its batch."""
        dtype = "float32" if device == "cpu" else "bfloat16"
        some = [" and ".join(TEXTS[(start + step) % 5] for step in range(1 + start % 3)) for start in range(40)]
        # It needs no mask, so that there is one form of its layers to compile.
        config = transformers.CLIPTextConfig(**{**text_models.SIZES, "hidden_size": 64})
        save_model(tmp_path, transformers.CLIPTextModel(config), **FAMILIES["clip"].tokenizer)
        exact = transformers.CLIPTextModel.from_pretrained(tmp_path, torch_dtype=getattr(torch, dtype)).double().eval()
        encoder = text_encoder(tmp_path, device, dtype=dtype, pooled=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        with torch.inference_mode():
            tokens = [tokenizer(text, return_tensors="pt", truncation=True, max_length=LIMIT) for text in some]
            answers = [exact(**columns).last_hidden_state[0] for columns in tokens]
        self.check(encoder, texts(*some), answers)

    def test_pictures(self, tmp_path: Path, device: str) -> None:
        """Latents of a picture, whatever pictures stand beside it in its batch."""
        dtype = "float32" if device == "cpu" else "bfloat16"
        encoder = vae_encoder(vae_folder(tmp_path), device, dtype=dtype)
        exact = diffusers.AutoencoderKL.from_pretrained(tmp_path, torch_dtype=getattr(torch, dtype)).double().eval()
        batch = pictures(16)
        pixels = torch.stack([torch.from_numpy(item.image) for item in batch]).permute(0, 3, 1, 2).double()
        with torch.inference_mode():
            rounded = (pixels / 255 * 2 - 1).to(getattr(torch, dtype)).double()
            answers = list(exact.encode(rounded).latent_dist.mean)
        self.check(encoder, batch, answers)


class TestWhatIsCompiled:
    """The layers that a model repeats, wherever it has them."""

    @pytest.mark.parametrize("name", sorted(FAMILIES))
    def test_a_text_model_has_all_its_layers(self, name: str) -> None:
        """None of them twice, and none inside of another."""
        model = FAMILIES[name].saved()
        layers = repeated_layers(model)
        assert len({type(layer) for layer in layers}) == 1
        assert len({id(layer) for layer in layers}) == len(layers) >= 2
        inside = [module for layer in layers for module in layer.modules() if module is not layer]
        assert not {id(layer) for layer in layers} & {id(module) for module in inside}

    def test_a_model_that_is_moved_about_is_left_alone(self, tmp_path: Path) -> None:
        """Parts that somebody else has put code around, such as to bring weights from elsewhere, are not compiled."""
        encoder = text_encoder(save_model(tmp_path, FAMILIES["bert"].saved()))
        assert encoder.can_compile
        model = FAMILIES["bert"].saved()
        model.encoder.layer[0].forward = lambda *args, **_: args
        assert repeated_layers(model) == []

    def test_an_encoder_of_other_blocks_is_left_alone(self, tmp_path: Path) -> None:
        """A VAE whose encoder has none of the blocks that are known says that it cannot be compiled."""
        diffusers.AutoencoderTiny(
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            num_encoder_blocks=(1, 1),
            num_decoder_blocks=(1, 1),
        ).save_pretrained(tmp_path)
        encoder = vae_encoder(tmp_path)
        assert not encoder.can_compile
        encoder.compile()
        assert not encoder.compiled


class TestTexts:
    """Text models on compiled code."""

    @pytest.mark.parametrize(
        ("name", "layers"),
        [("bert", (-2, 0)), ("clip", (-2,)), ("qwen3", (-1,)), ("qwen3", (-2, 0)), ("t5", (-1,))],
    )
    def test_every_family_gives_the_same(
        self, tmp_path: Path, backend: Callable[[Backend], None], name: str, layers: tuple[int, ...]
    ) -> None:
        """The last layer and those that are taken out on the way, together and alone, of one token too."""
        backend(as_traced)
        encoder = text_encoder(save_model(tmp_path, FAMILIES[name].saved(), **FAMILIES[name].tokenizer), layers=layers)
        calls = [texts(*TEXTS), texts(""), texts("a cat"), texts("", "")]
        before = [tree for call in calls for tree in encoder.encode(call)]
        encoder.compile()
        assert encoder.compiled
        made = codes()
        close([tree for call in calls for tree in encoder.encode(call)], before)
        assert encoder.compiled
        assert codes() == made, "no batch needs code of its own"


class TestPictures:
    """VAEs on compiled code."""

    @pytest.mark.parametrize("posterior", ["sample", "moments"])
    def test_every_posterior_is_the_same(
        self, tmp_path: Path, backend: Callable[[Backend], None], posterior: str
    ) -> None:
        """For pictures of other sizes than those that were compiled for, and a single one among them."""
        backend(as_traced)
        encoder = vae_encoder(vae_folder(tmp_path, (8, 16), attention=True), posterior=posterior, scaled=True)
        calls = [pictures(3), pictures(2, 32, 16), pictures(1), pictures(5, 16, 16)]
        before = [tree for call in calls for tree in encoder.encode(call)]
        encoder.compile()
        assert encoder.compiled
        made = codes()
        after = [tree for call in calls for tree in encoder.encode(call)]
        close(after, before)
        assert all(leaf.is_contiguous() for leaf in leaves(after))
        assert codes() == made, "no batch needs code of its own"

    def test_one_size_has_code_of_its_own_and_all_others_share_one(
        self, tmp_path: Path, backend: Callable[[Backend], None]
    ) -> None:
        """However many pictures are in a batch."""
        backend(as_traced)
        encoder = vae_encoder(vae_folder(tmp_path))
        usual = [pictures(count, 32, 48) for count in (2, 5, 3)]
        others = [pictures(2, 24, 24), pictures(3, 48, 32), pictures(7, 16, 24)]
        before = [tree for call in usual + others for tree in encoder.encode(call)]
        encoder.compile(usual[0])
        assert encoder.compiled
        made = codes()
        after = [tree for call in usual for tree in encoder.encode(call)]
        assert codes() == made, "batches of any number share the code of their size"
        after += encoder.encode(others[0])
        assert codes() > made
        made = codes()
        after += [tree for call in others[1:] for tree in encoder.encode(call)]
        assert codes() == made, "all other sizes share theirs"
        after += encoder.encode(usual[1])
        close(after[:-5], before)
        close(after[-5:], before[2:7])

    def test_a_large_picture_alone_is_encoded_once(self, tmp_path: Path, backend: Callable[[Backend], None]) -> None:
        """Two of them may be more than the device has memory for: code for a single one is made instead."""
        backend(as_traced)
        encoder = vae_encoder(vae_folder(tmp_path))
        (item,) = pictures(1, 96, 80)
        (before,) = encoder.encode([item])
        encoder.compile()
        made = codes()
        close(encoder.encode([item]), [before])
        assert codes() > made


def test_a_pipeline_s_prompts_are_the_same(tmp_path: Path, backend: Callable[[Backend], None]) -> None:
    """All its text encoders run on compiled code."""
    backend(as_traced)
    encoder = PromptEncoder(
        DiffusersPrompt(uses="diffusers-prompt", model="unused"), pipelines.tiny_pipeline("sdxl", tmp_path)
    )
    encoder.load("cpu")
    calls = [texts(*TEXTS), texts("a cat")]
    before = [tree for call in calls for tree in encoder.encode(call)]
    encoder.compile()
    assert encoder.compiled
    close([tree for call in calls for tree in encoder.encode(call)], before)


class TestBuilds:
    """What a build records of compiled code."""

    def test_entries_say_that_compiled_code_made_them(
        self, tmp_path: Path, backend: Callable[[Backend], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        """And are ready all the same where nothing is compiled: their keys are the same, and no plan tells of it."""
        backend(as_traced)
        projects.dataset(tmp_path / "data", 2)
        save_model(tmp_path / "text", FAMILIES["bert"].saved())
        made = {}
        for mode, store in (("on", "cache"), ("off", "cache"), ("off", "other")):
            section = {"uses": "transformers-text", "model": "text", "max_length": LIMIT, "compile": mode}
            with projects.project(tmp_path, store=store, encoders={"prompt": section}) as opened:
                opened.build()
                plan = opened.plan()
                assert not len(plan.missing)
                assert not plan.version_differences
                made[mode, store] = {
                    entry.key: opened.store.locate(entry.key).made.get("compiled") for entry in plan.ready
                }
        assert set(made["on", "cache"].values()) == {"inductor"}
        assert made["off", "cache"] == made["on", "cache"], "nothing was made anew"
        assert made["off", "other"] == dict.fromkeys(made["on", "cache"]), "the same keys, not compiled"

    @pytest.mark.parametrize("device", ["cpu", "cuda:5"])
    def test_a_batch_that_code_was_given_up_for_counts_as_not_compiled(self, device: str) -> None:
        """Whether it was run or launched, and whatever was compiled before it."""

        class Failing(BaseEncoder):
            can_stage = can_compile = True

            def compile(self, batch: Sequence[Item] = ()) -> None:
                self.compiled = len(batch) == 1

            def encode(self, batch: list[Item]) -> list[Any]:
                if batch[0].text == "3":
                    self.compiled = self.can_compile = False
                return [np.zeros(1) for _ in batch]

            def stage(self, batch: list[Item]) -> Any:
                trees: list[Any] = []
                return SimpleNamespace(launch=lambda: trees.extend(self.encode(batch)), land=lambda: trees)

        stored: dict[str, bool] = {}

        class Sink:
            def store(self, results: Any, *, compiled: bool) -> None:
                stored.update({job.item.text: compiled for job, _ in results})

            def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
                raise AssertionError(reason)

            def batch_done(self, seconds: float) -> None:
                pass

        entry: Any = SimpleNamespace(path="somewhere")
        spec = EncoderSpec("x", cast("Any", Failing()), devices=(device,), batch_size=1, compile="on")
        with DevicePool(spec, Sink(), threading.Event()) as pool:
            pool.give([Job(entry, Item(text=text)) for text in "54321"])
        assert stored == {"5": True, "4": True, "3": False, "2": False, "1": False}


def failing(_: Any, __: list[Any]) -> Callable[..., Any]:
    raise RuntimeError("no compiler here")


def wrong(graph: Any, _: list[Any]) -> Callable[..., Any]:
    """Code that gives one and a half times what it should."""
    return lambda *args: tuple(1.5 * part for part in graph.forward(*args))


class TestGivingUp:
    """Where compiled code does not work, everything goes on as before, and the log says it once."""

    @pytest.mark.parametrize(("made_by", "reason"), [(failing, "no compiler here"), (wrong, "would be others")])
    @pytest.mark.parametrize("kind", ["text", "pictures"])
    def test_what_cannot_be_compiled_or_is_wrong_is_not_used(
        self,
        tmp_path: Path,
        backend: Callable[[Backend], None],
        caplog: pytest.LogCaptureFixture,
        kind: str,
        made_by: Backend,
        reason: str,
    ) -> None:
        """One line names the model and the reason; results are those of before, to the last bit."""
        backend(made_by)
        encoder, batch = self.made(tmp_path, kind)
        before = encoder.encode(batch)
        with caplog.at_level(logging.WARNING, "precook"):
            encoder.compile()
            encoder.compile()
        assert not encoder.compiled
        assert not encoder.can_compile
        (line,) = [record.getMessage() for record in caplog.records if record.name == "precook"]
        assert "runs without compiled code" in line
        assert reason in line
        assert "\n" not in line
        close(encoder.encode(batch), before, tolerance=0)

    @pytest.mark.parametrize("kind", ["text", "pictures"])
    def test_code_that_fails_later_is_given_up(
        self, tmp_path: Path, backend: Callable[[Backend], None], caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        """The batch that it fails with is encoded all the same, and it counts as not compiled."""
        broken: list[bool] = []

        def breaking(graph: Any, _: list[Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                if broken:
                    raise RuntimeError("it broke")
                return graph.forward(*args)

            return run

        backend(breaking)
        encoder, batch = self.made(tmp_path, kind)
        before = encoder.encode(batch)
        encoder.compile()
        assert encoder.compiled
        broken.append(True)
        with caplog.at_level(logging.WARNING, "precook"):
            after = encoder.encode(batch)
        close(after, before, tolerance=0)
        assert not encoder.compiled
        assert not encoder.can_compile
        assert [record.getMessage() for record in caplog.records if "it broke" in record.getMessage()]

    def test_memory_that_is_short_is_not_the_code_s_fault(
        self, tmp_path: Path, backend: Callable[[Backend], None]
    ) -> None:
        """Whoever encodes makes the batch smaller, and the code stays."""
        short: list[bool] = []

        def filling(graph: Any, _: list[Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                if short:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                return graph.forward(*args)

            return run

        backend(filling)
        encoder, batch = self.made(tmp_path, "text")
        encoder.compile()
        short.append(True)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            encoder.encode(batch)
        assert encoder.compiled

    def made(self, folder: Path, kind: str) -> tuple[BaseEncoder, list[Item]]:
        if kind == "text":
            return text_encoder(save_model(folder, FAMILIES["bert"].saved())), texts(*TEXTS)
        return vae_encoder(vae_folder(folder)), pictures(3)
