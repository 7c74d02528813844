"""Torch modules as their class, config and weights."""

from __future__ import annotations

import enum
import json
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precook import Digest, IdentityError, digest, identify
from tests.support.identities import clip, form, same

torch: Any = pytest.importorskip("torch", reason="identifies torch modules")
transformers: Any = pytest.importorskip("transformers", reason="identifies tokenizers and processors")


# Torch modules


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def two_towers() -> Any:
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": 50}, vision_config={**tower, "image_size": 16, "patch_size": 8}
    )
    return transformers.CLIPModel(config)


def vae(**settings: object) -> Any:
    diffusers: Any = pytest.importorskip("diffusers", reason="identifies a VAE")
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    return diffusers.AutoencoderKL(**{"block_out_channels": (32,), **blocks, **settings})


class Mode(str, enum.Enum):
    """A choice that is also text, as transformers has them."""

    MEAN = "mean"


class Holder(torch.nn.Module):  # type: ignore[misc]
    """A module with the given entries, and a config where one is given."""

    def __init__(self, config: object = None, **entries: Any) -> None:
        super().__init__()
        if config is not None:
            self.config = config
        for name, entry in entries.items():
            self.register_buffer(name, entry)


def test_a_module_is_its_class_config_and_weights() -> None:
    """A module says its class, its settings that can be read, and its weights as a digest."""
    identity: Any = identify(clip())
    assert identity["kind"] == "torch-module"
    assert identity["class"] == "transformers.models.clip.modeling_clip.CLIPTextModel"
    assert identity["config"]["hidden_size"] == 16
    assert isinstance(identity["weights"], Digest)
    assert not {"_name_or_path", "transformers_version", "dtype", "architectures"} & set(identity["config"])


@pytest.mark.parametrize(
    "make",
    [clip, lambda: clip().to(torch.bfloat16), llama, two_towers, vae, lambda: vae().half()],
    ids=["clip", "bfloat16", "tied", "two towers", "vae", "half vae"],
)
def test_saving_and_loading_a_module_keeps_its_identity(make: Callable[[], Any], tmp_path: Path) -> None:
    """A module that was saved and loaded is the same module, from whatever folder, in whatever mode."""
    module = make()
    module.save_pretrained(tmp_path / "one")
    dtype = next(module.parameters()).dtype
    key = "torch_dtype" if "diffusers" in type(module).__module__ else "dtype"
    loaded = type(module).from_pretrained(tmp_path / "one", **{key: dtype})
    assert module.training != loaded.training
    assert same(module, loaded)


def test_how_a_module_attends_does_not_count(tmp_path: Path) -> None:
    """The attention implementation is left out: it computes the same within rounding."""
    clip().save_pretrained(tmp_path)
    load = transformers.CLIPTextModel.from_pretrained
    eager, sdpa = (load(tmp_path, attn_implementation=name) for name in ("eager", "sdpa"))
    assert eager.config._attn_implementation != sdpa.config._attn_implementation
    assert same(eager, sdpa)


def test_every_change_of_a_module_is_seen() -> None:
    """One weight, the dtype, a setting without weights or the class: each makes another module."""
    base = form(clip())
    nudged = clip()
    with torch.no_grad():
        nudged.final_layer_norm.bias[3] += 1e-3
    others = [nudged, clip().half(), clip(hidden_act="gelu"), clip(layer_norm_eps=1e-6), llama(), two_towers()]
    assert len({base, *map(form, others)}) == len(others) + 1


def test_a_setting_of_a_vae_is_seen() -> None:
    """Two VAEs of equal weights that scale their latents differently are two models."""
    assert same(vae(), vae())
    assert not same(vae(), vae(scaling_factor=1.0))


class Scale(torch.nn.Module):  # type: ignore[misc]
    """Has no weights and shows nothing of itself."""

    def __init__(self, factor: float, table: tuple[float, ...] = (1.0,)) -> None:
        super().__init__()
        self._factor = factor
        self.table = torch.tensor(table)


def test_what_a_module_without_config_holds_beside_weights_counts() -> None:
    assert not same(Scale(1.0), Scale(2.0))
    assert not same(Scale(1.0), Scale(1.0, (2.0,)))
    assert not same(torch.nn.Sequential(Scale(1.0)), torch.nn.Sequential(Scale(2.0)))
    assert same(Scale(1.0), Scale(1.0))
    attention = [torch.nn.MultiheadAttention(8, heads) for heads in (2, 4)]
    attention[1].load_state_dict(attention[0].state_dict())
    assert not same(*attention)


def test_layers_that_show_their_arguments_are_known_by_them() -> None:
    # Entries of stores that were made before are found: nothing was missing in what these are known by.
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU(), torch.nn.LayerNorm(2))
    assert b"patches" not in form(model)


def test_a_module_without_config_is_its_structure() -> None:
    """Where no config says it, the parts and their arguments tell modules of equal weights apart."""

    def make(activation: Any, **linear: Any) -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv1d(4, 4, 3, **linear), activation)

    identity: Any = identify(make(torch.nn.ReLU()))
    assert "config" not in identity
    assert identity["structure"]["1"] == "torch.nn.modules.activation.ReLU()"
    assert same(make(torch.nn.ReLU()), make(torch.nn.ReLU()))
    assert not same(make(torch.nn.ReLU()), make(torch.nn.GELU()))
    assert not same(make(torch.nn.ReLU()), make(torch.nn.ReLU(), stride=2))


@pytest.mark.parametrize(
    "entry",
    [
        torch.arange(6, dtype=torch.float32).reshape(2, 3),
        torch.arange(6).to(torch.bfloat16),
        torch.arange(6).to(torch.float8_e4m3fn),
        torch.tensor([True, False]),
        torch.tensor(3.5),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.tensor([1 + 2j]).conj(),
    ],
    ids=lambda entry: f"{entry.dtype} {tuple(entry.shape)}",
)
def test_weights_of_every_kind_count_by_value(entry: Any) -> None:
    """Dtype, shape and bytes count, the layout in memory does not, for every dtype and for 0-d and empty tensors."""
    base = form(Holder(weight=entry))
    spread = torch.stack([entry, entry], dim=-1)[..., 0]
    assert form(Holder(weight=spread)) == base
    assert form(Holder(weight=entry.reshape(*entry.shape, 1))) != base
    assert form(Holder(other=entry)) != base
    if entry.numel():
        raw = entry.resolve_conj().reshape(-1).view(torch.uint8).clone()
        raw[0] ^= 1
        assert form(Holder(weight=raw.view(entry.dtype).reshape(entry.shape))) != base
    if entry.dtype == torch.float32:
        assert form(Holder(weight=entry.view(torch.int32))) != base


def test_the_order_of_weights_does_not_count() -> None:
    """Weights are known by name, not by the order in which they were made."""
    one, two = torch.ones(2), torch.zeros(2)
    holders = Holder(first=one, second=two), Holder(second=two, first=one)
    assert len({identify(holder)["weights"] for holder in holders}) == 1  # type: ignore[index]
    assert identify(Holder(first=two, second=one)) != identify(holders[0])


def test_tied_and_expanded_weights_count_as_their_values() -> None:
    """A tensor that is used twice, or repeats one number, is the same as its copies."""
    shared = torch.arange(3.0)
    assert same(Holder(one=shared, two=shared), Holder(one=shared.clone(), two=shared.clone()))
    assert same(Holder(one=torch.tensor(2.0).expand(4)), Holder(one=torch.full((4,), 2.0)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_does_not_count() -> None:
    """A module on the GPU is the same as on the CPU."""
    assert same(clip().to("cuda"), clip())
    assert same(Holder(weight=torch.arange(6.0).to("cuda", torch.float8_e4m3fn).reshape(2, 3).T),
                Holder(weight=torch.arange(6.0).to(torch.float8_e4m3fn).reshape(2, 3).T))  # fmt: skip


def test_a_compiled_module_is_the_module() -> None:
    """Compiling changes how a module runs, not what it is."""
    module = torch.nn.Linear(2, 2)
    assert same(torch.compile(module), module)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (torch.nn.Linear(2, 2, device="meta"), "meta"),
        (torch.nn.LazyLinear(2), "Uninitialized"),
        (Holder(weight=torch.eye(2).to_sparse()), "sparse"),
    ],
    ids=["meta", "lazy", "sparse"],
)
def test_weights_that_are_not_there_are_refused(module: Any, named: str) -> None:
    """Weights that are elsewhere or not yet made are named, never taken for equal."""
    with pytest.raises(IdentityError, match=named) as caught:
        identify({"vae": module})
    assert caught.value.where == "['vae'].state_dict()['weight']"
    assert caught.value.hint


def test_state_that_is_no_tensor_counts() -> None:
    """Extra state counts where it is plain data, and is refused where it is not."""

    class Extra(Holder):
        def get_extra_state(self) -> object:
            return self.state

        def set_extra_state(self, state: object) -> None:
            self.state = state

    def make(state: object) -> Any:
        module = Extra()
        module.set_extra_state(state)
        return module

    assert same(make({"scale": 1}), make({"scale": 1}))
    assert not same(make({"scale": 1}), make({"scale": 2}))
    with pytest.raises(IdentityError, match="_extra_state"):
        identify(make(object()))


def test_adapters_count_with_their_scale_and_whether_they_are_on() -> None:
    """An adapter of PEFT is part of a module until it is merged, by its weights, its scale and its state."""
    peft: Any = pytest.importorskip("peft", reason="adds an adapter")

    def adapted(alpha: int = 4) -> Any:
        module = clip()
        torch.manual_seed(1)
        return peft.get_peft_model(module, peft.LoraConfig(r=2, target_modules=["q_proj"], lora_alpha=alpha))

    module = adapted()
    base = form(module)
    assert form(adapted()) == base
    assert len({base, form(clip()), form(adapted(alpha=8))}) == 3
    module.base_model.disable_adapter_layers()
    assert form(module) != base
    merged = adapted().merge_and_unload()
    assert "patches" not in identify(merged)  # type: ignore[operator]


def test_an_adapter_in_a_part_alone_is_seen() -> None:
    """Where an adapter was put into a part of a model, its scale counts too."""
    peft: Any = pytest.importorskip("peft", reason="adds an adapter")

    def adapted(alpha: int) -> Any:
        module = clip()
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_alpha=alpha)
        peft.inject_adapter_in_model(config, module.encoder)
        return module

    assert same(adapted(4), adapted(4))
    assert not same(adapted(4), adapted(8))


def test_learned_prompts_are_refused() -> None:
    """What a wrapper of PEFT puts before the inputs is not among the weights of the model."""
    peft: Any = pytest.importorskip("peft", reason="adds prompts")
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=2)
    with pytest.raises(IdentityError, match="prompts"):
        identify(peft.get_peft_model(llama(), config))


def test_a_config_that_says_nothing_is_refused() -> None:
    """A config that cannot be read is named, not passed over."""
    with pytest.raises(IdentityError) as caught:
        identify(Holder(config={"act": torch.nn.functional.gelu, "size": 1}))
    assert caught.value.where == ".config['act']"
    assert same(Holder(config={"size": 1}), Holder(config={"size": 1, "_name_or_path": "x"}))
    assert not same(Holder(config={"size": 1}), Holder(config={"size": 2}))


def test_a_config_is_read_as_it_would_be_saved() -> None:
    """Enums, dtypes, numpy numbers, sets, patterns and objects of settings are the plain data they stand for."""
    np: Any = pytest.importorskip("numpy", reason="numpy numbers")
    config = types.SimpleNamespace(
        mode=Mode.MEAN,
        compute=torch.float16,
        scale=np.float32(0.5),
        steps=np.arange(3),
        stages=set("hgfedcba"),
        names=re.compile("a+"),
        inner=transformers.CLIPTextConfig(vocab_size=7),
    )
    identity: Any = identify(Holder(config=config))
    inner = identity["config"].pop("inner")
    assert inner["vocab_size"] == 7
    expected = {"mode": "mean", "compute": "float16", "scale": 0.5, "steps": [0, 1, 2], "stages": list("abcdefgh")}
    assert identity["config"] == {**expected, "names": {"pattern": "a+", "flags": int(re.UNICODE)}}


def test_a_tensor_is_its_dtype_shape_and_content() -> None:
    """A tensor by itself is identified like a weight."""
    tensor = torch.arange(3, dtype=torch.int16)
    content = digest(tensor.numpy().tobytes())
    assert identify(tensor) == {"kind": "tensor", "dtype": "int16", "shape": [3], "content": content}


def test_code_that_came_with_a_model_counts_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code loaded from a model's folder counts by what it says, not by the name of the folder."""
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    code = (
        "import torch\nfrom transformers import PreTrainedModel, PreTrainedConfig\n"
        "class TinyConfig(PreTrainedConfig):\n    model_type = 'precook-tiny'\n"
        "class Tiny(PreTrainedModel):\n    config_class = TinyConfig\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.scale = torch.nn.Parameter(torch.ones(2))\n        self.post_init()\n"
    )
    auto_map = {"AutoConfig": "tiny.TinyConfig", "AutoModel": "tiny.Tiny"}
    config = json.dumps({"model_type": "precook-tiny", "auto_map": auto_map})

    def load(folder: str, source: str) -> Any:
        path = tmp_path / folder
        path.mkdir()
        (path / "tiny.py").write_text(source)
        (path / "config.json").write_text(config)
        return transformers.AutoModel.from_config(
            transformers.AutoConfig.from_pretrained(path, trust_remote_code=True), trust_remote_code=True
        )

    one, moved, edited = load("one", code), load("moved", code), load("edited", code + "    factor = 2\n")
    assert type(one).__module__ != type(moved).__module__
    assert same(one, moved)
    assert not same(one, edited)
