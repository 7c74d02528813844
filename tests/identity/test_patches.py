"""What was changed in a torch module after its config had built it: everything that decides a result is seen."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precook import IdentityError, identify
from tests.support.identities import clip, form, same

torch: Any = pytest.importorskip("torch", reason="identifies torch modules")
transformers: Any = pytest.importorskip("transformers", reason="identifies models")


def vae() -> Any:
    diffusers: Any = pytest.importorskip("diffusers", reason="identifies a VAE")
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    return diffusers.AutoencoderKL(block_out_channels=(32,), **blocks)


class Adapter(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of a part's `forward`, as OneTrainer's LoRA does; the part does not know it."""

    def __init__(self, part: Any, alpha: float = 1.0) -> None:
        super().__init__()
        self._part = [part]
        torch.manual_seed(1)
        self.down = torch.nn.Linear(part.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, part.out_features, bias=False)
        self.register_buffer("alpha", torch.tensor(alpha))
        self.device = torch.device("cpu")

    def hook(self) -> None:
        part = self._part[0]
        self.orig_forward, self.orig_train = part.forward, part.train
        part.forward, part.train = self.forward, self.wrap_train

    def unhook(self) -> None:
        self._part[0].forward, self._part[0].train = self.orig_forward, self.orig_train

    def wrap_train(self, mode: bool = True) -> None:
        self.orig_train(mode)

    def forward(self, x: Any) -> Any:
        return self.orig_forward(x) + self.up(self.down(x)) * self.alpha


class ScaledLinear(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer of 8 bits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("scale", torch.tensor(1.0))
        self.compute_dtype = None


class ActivationScaledLinear(ScaledLinear):
    """The same weights, and inputs of 8 bits too."""


class BaseCheckpointLayer(torch.nn.Module):  # type: ignore[misc]
    """Named as OneTrainer names what computes a layer again in the backward pass."""

    def __init__(self, orig_forward: Any) -> None:
        super().__init__()
        self.orig_forward = orig_forward
        self.conductor = iter(())

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.orig_forward(*args, **options)


class ExtraEmbedding:
    """Vectors under tokens that are made up anew in each process."""

    def __init__(self, vector: Any) -> None:
        self.vector = vector
        self.text_tokens = [f"<{uuid.uuid4()}>" for _ in vector]
        self.joint_tokens_cache: list[int] | None = None


class AdditionalEmbeddingWrapper:
    """Named as OneTrainer names what adds vectors to an embedding; it is there without any, too."""

    def __init__(self, part: Any, *embeddings: ExtraEmbedding) -> None:
        self.orig_module = part
        self.embeddings = list(embeddings)
        self.orig_forward = part.forward
        part.forward = self.forward

    def forward(self, x: Any) -> Any:
        weight = torch.cat([self.orig_module.weight, *(embedding.vector for embedding in self.embeddings)])
        return torch.nn.functional.embedding(x, weight)


def quantised(kind: type[Any]) -> Any:
    module = clip()
    for layer in module.modules():
        for name, part in list(layer.named_children()):
            if type(part) is torch.nn.Linear:
                made = kind(part.in_features, part.out_features)
                made.load_state_dict({**part.state_dict(), "scale": torch.tensor(0.5)})
                setattr(layer, name, made)
    return module


def test_a_padding_mode_that_was_set_is_seen() -> None:
    """Circular padding in a VAE's convolutions is no part of its config, and changes every latent."""
    circular = vae()
    for part in circular.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.padding_mode = "circular"
    assert not same(vae(), circular)


@pytest.mark.parametrize("switch", ["tiling", "slicing"])
def test_tiling_and_slicing_are_seen_and_can_be_switched_off(switch: str) -> None:
    """A VAE that cuts its input is told apart, by what it says of itself."""
    switched = vae()
    getattr(switched, f"enable_{switch}")()
    identity: Any = identify(switched)
    assert identity["patches"] == {"": {"attributes": {f"use_{switch}": True}}}
    assert not same(vae(), switched)
    getattr(switched, f"disable_{switch}")()
    assert same(vae(), switched)


def test_a_written_weight_is_seen_without_a_version() -> None:
    """Writing through `.data` leaves no trace but in the weight."""
    written = vae()
    written.encoder.conv_in.weight.data.add_(1)
    assert not same(vae(), written)


def test_an_adapter_over_a_layer_counts_while_it_is_there() -> None:
    """What takes the place of `forward` counts with its weights and settings, until it is taken away."""

    def adapted(alpha: float = 1.0) -> tuple[Any, Adapter]:
        module = clip()
        adapter = Adapter(module.encoder.layers[0].self_attn.q_proj, alpha)
        adapter.hook()
        return module, adapter

    module, adapter = adapted()
    hooked = form(module)
    assert form(adapted()[0]) == hooked
    assert len({form(clip()), hooked, form(adapted(2.0)[0])}) == 3
    adapter.up.weight.data.zero_()
    assert form(module) != hooked
    adapter.unhook()
    assert form(module) == form(clip())


def test_layers_that_were_exchanged_are_seen() -> None:
    """Two quantisations with equal weights compute differently, and what they compute in counts."""
    assert not same(clip(), quantised(ScaledLinear))
    assert not same(quantised(ScaledLinear), quantised(ActivationScaledLinear))
    module = quantised(ScaledLinear)
    module.encoder.layers[0].mlp.fc1.compute_dtype = torch.bfloat16
    assert not same(quantised(ScaledLinear), module)


def test_a_part_that_was_exchanged_or_removed_is_seen() -> None:
    """Neither an activation nor a layer that is gone can be known by weights that are there."""
    exchanged, shortened = clip(), clip()
    exchanged.encoder.layers[0].mlp.activation_fn = torch.nn.ReLU()
    del shortened.encoder.layers[0].mlp.activation_fn
    assert len({form(module) for module in (clip(), exchanged, shortened)}) == 3


def test_extra_embeddings_count_by_their_vectors() -> None:
    """Made-up names are others in each process and do not count, nor do the places for embeddings without any."""

    def embedded(*vectors: Any) -> Any:
        module = clip()
        AdditionalEmbeddingWrapper(module.get_input_embeddings(), *map(ExtraEmbedding, vectors))
        return module

    assert same(embedded(torch.ones(2, 16)), embedded(torch.ones(2, 16)))
    assert not same(embedded(torch.ones(2, 16)), embedded(torch.zeros(2, 16)))
    assert not same(embedded(torch.ones(2, 16)), clip())
    assert same(embedded(), clip())


def test_how_a_layer_is_run_does_not_count() -> None:
    """Checkpointing, compiling and the recording of hidden states leave a module what it is."""
    checkpointed, compiled, used = clip(), clip(), clip().eval()
    layer = checkpointed.encoder.layers[0]
    layer.forward = BaseCheckpointLayer(layer.forward).forward
    compiled.encoder.layers[0].compile(backend="eager")
    used(torch.zeros((1, 3), dtype=torch.int64), output_hidden_states=True)
    for module in (checkpointed, compiled, used):
        assert same(module, clip())


def test_training_and_where_it_lies_do_not_count(tmp_path: Path) -> None:
    """Gradient checkpointing, a device map, groups of weights that are moved in and out: the results are the same."""
    text, checkpointed, offloaded = clip(), vae(), vae()
    text.gradient_checkpointing_enable()
    checkpointed.enable_gradient_checkpointing()
    offloaded.enable_group_offload(torch.device("cpu"), torch.device("cpu"), offload_type="leaf_level")
    offloaded.save_pretrained(tmp_path)
    mapped = type(offloaded).from_pretrained(tmp_path, device_map="cpu")
    assert mapped.hf_device_map
    assert same(text, clip())
    for module in (checkpointed, offloaded, mapped):
        assert same(module, vae())
    cast = vae()
    cast.enable_layerwise_casting(storage_dtype=torch.float16, compute_dtype=torch.float32)
    assert not same(cast, vae().half())


def test_tokens_that_were_added_leave_no_patch(tmp_path: Path) -> None:
    """A model whose embeddings were made larger is what it is after saving and loading."""
    larger = clip()
    larger.resize_token_embeddings(60)
    larger.save_pretrained(tmp_path)
    assert same(larger, type(larger).from_pretrained(tmp_path))


def double(_: Any, __: Any, output: Any, *, factor: float = 2.0) -> Any:
    return output * factor


def test_hooks_count_by_name_and_by_what_they_are_given() -> None:
    """A hook that changes an output is seen, where there is a config and where there is none."""

    def hooked(make: Callable[[], Any], hook: Any) -> Any:
        module = make()
        next(part for part in module.modules() if isinstance(part, torch.nn.Linear)).register_forward_hook(hook)
        return module

    def linear() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(2, 2))

    for make in (clip, linear):
        forms = {form(hooked(make, functools.partial(double, factor=factor))) for factor in (2.0, 2.0, 3.0)}
        assert len({form(make()), form(hooked(make, double)), *forms}) == 4
        with pytest.raises(IdentityError, match="lambda") as caught:
            identify({"encoder": hooked(make, lambda *_: None)})
        assert caught.value.where.startswith("['encoder'].")


def test_a_method_that_was_exchanged_is_seen() -> None:
    """Another module's method under the name of one's own is not taken for it."""
    other, module = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before = form(module)
    module.forward = other.forward
    assert form(module) != before
    del module.forward
    assert form(module) == before


def test_a_config_that_builds_no_module_leaves_it_its_structure() -> None:
    """Where a class needs more than its config, its parts are taken down as they are."""

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, config: object, activation: Any) -> None:
            super().__init__()
            self.config = config
            self.activation = activation

    identity: Any = identify(Wrapped({"size": 1}, torch.nn.ReLU()))
    assert identity["config"] == {"size": 1}
    assert not same(Wrapped({"size": 1}, torch.nn.ReLU()), Wrapped({"size": 1}, torch.nn.GELU()))


def test_a_module_that_nobody_touched_has_no_patches(caplog: pytest.LogCaptureFixture) -> None:
    """Its identity is class, config and weights alone; looking draws no random number and says nothing."""
    diffusers: Any = pytest.importorskip("diffusers", reason="identifies a VAE")
    channels = {"encoder_block_out_channels": (4,) * 4, "decoder_block_out_channels": (4,) * 4}
    for module in (clip(), vae(), diffusers.AutoencoderTiny(**channels), clip().half().eval()):
        with caplog.at_level(logging.WARNING):
            state = torch.random.get_rng_state()
            assert set(identify(module)) == {"kind", "class", "config", "weights"}  # type: ignore[call-overload]
            assert torch.equal(state, torch.random.get_rng_state())
    assert caplog.records == []


def test_parametrised_weights_and_what_a_generation_leaves_behind_are_no_patches() -> None:
    """Each part with a norm of its weights has a class of its own, and is built with draws on the CPU."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    convolutions = {"conv_dim": (8,), "conv_stride": (2,), "conv_kernel": (3,), "num_conv_pos_embeddings": 4}
    config = transformers.Wav2Vec2Config(**sizes, **convolutions, num_conv_pos_embedding_groups=2)
    module = transformers.Wav2Vec2Model(config)
    state = torch.random.get_rng_state()
    assert "patches" not in identify(module)  # type: ignore[operator]
    assert torch.equal(state, torch.random.get_rng_state())
    generated = clip()
    generated.rope_deltas = torch.zeros(1, 1)
    assert same(generated, clip())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_what_it_is_after_saving_and_loading(tmp_path: Path) -> None:
    """What scripting keeps of the module that it was given is not in the file, and computes nothing."""
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    scripted.save(str(tmp_path / "scripted.pt"))
    assert same(scripted, torch.jit.load(str(tmp_path / "scripted.pt")))


def test_a_class_of_ones_own_may_keep_what_it_computed_in_a_cache() -> None:
    """An attribute that is called a cache makes no other module of it."""

    class Caching(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.output_cache: Any = None
            self.scale = 2.0

    module = Caching()
    before = form(module)
    module.output_cache = torch.ones(1)
    assert form(module) == before
    module.scale = 3.0
    assert form(module) != before


def test_a_constructor_is_not_called_with_a_name() -> None:
    """What a class is given as text may be a model to load, so the module's structure is taken down instead."""

    class Named(torch.nn.Module):  # type: ignore[misc]
        loaded: list[str] = []  # noqa: RUF012

        def __init__(self, config: str) -> None:
            super().__init__()
            self.loaded.append(config)
            self.config = config

    module = Named("a model")
    assert "structure" in identify(module)  # type: ignore[operator]
    assert Named.loaded == ["a model"]


def test_what_cannot_say_what_it_is_is_named() -> None:
    """An object without content that a patch depends on is refused with its place."""
    module = clip()
    module.final_layer_norm.forward = functools.partial(double, iter(()))
    with pytest.raises(IdentityError, match="iterator") as caught:
        identify(module)
    assert caught.value.where.startswith(".final_layer_norm.forward")
    assert caught.value.hint
