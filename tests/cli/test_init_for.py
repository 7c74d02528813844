"""`precook init --for`: a config that fits a model."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.cli import demo
from precook.config.check import read_config
from precook.encode.families import FAMILIES, Family, family_of
from precook.store.format.header import Column, dump_header
from tests.support.commands import encoders, environment, run
from tests.support.projects import dataset, picture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.support.prompts import PROMPTS, relative_difference, whole_pipeline  # noqa: E402 - after the skips

VAE = {"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "force_upcast": True}
NAMES = [family.name for family in FAMILIES]


def model_folder(
    folder: Path,
    pipeline: str = "StableDiffusionXLPipeline",
    *,
    texts: tuple[str, ...] = ("text_encoder", "text_encoder_2"),
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    **index: Any,
) -> Path:
    """A pipeline's folder as a download leaves it, with weights of one number each: `init` loads none."""
    configs, dtypes = {"vae": VAE, **(configs or {})}, dtypes or {}
    parts = {"vae": "AutoencoderKL", **dict.fromkeys(texts, "CLIPTextModel")}
    parts |= {name.replace("text_encoder", "tokenizer"): "CLIPTokenizer" for name in texts}
    parts |= dict.fromkeys(configs.keys() - parts.keys(), "SomeModel")
    for name in parts:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(configs.get(name, {})))
        column = Column("weight", dtypes.get(name, "F32"), (1,), 0)
        stem = "model" if name in texts else "diffusion_pytorch_model"
        (folder / name / f"{stem}.safetensors").write_bytes(dump_header([column], {}) + bytes(column.nbytes))
    named = {name: ["somewhere", kind] for name, kind in parts.items()}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline, **named, **index}))
    return folder


def settings_of(document: Any) -> dict[str, Any]:
    """What was decided, by name."""
    return {setting["setting"]: setting["value"] for setting in document["for"]["settings"]}


def sections(path: str = "precook.yaml") -> dict[str, dict[str, Any]]:
    """The encoders of a config, without what is at its default."""
    encoders = read_config(Path(path))[0].encoders
    return {name: section.model_dump(exclude_unset=True) for name, section in encoders.items()}


@pytest.fixture(autouse=True)
def pictures(here: Path) -> None:
    """Three pictures with captions in ./data, where the user is."""
    dataset(here / "data", 3)


class TestFolders:
    """The folder of a pipeline."""

    def test_the_file_has_what_its_training_needs(self, here: Path) -> None:
        """SDXL: its size, its VAE in float32, latents drawn anew, and its own prompts."""
        model_folder(here / "models" / "sdxl", configs={"unet": {"sample_size": 128}}, dtypes={"text_encoder": "F32"})
        ended = run("init", "data", "--for", "models/sdxl", "--json")
        assert (ended.code, ended.err) == (0, "")
        assert ended.document["resolution"] == 1024
        told = ended.document["for"]
        assert (told["pipeline"], told["family"], told["left_out"]) == ("StableDiffusionXLPipeline", "sdxl", None)
        assert all(setting["reason"] for setting in told["settings"])
        assert sections() == {
            "latent": {
                "uses": "diffusers-vae",
                "model": "models/sdxl",
                "subfolder": "vae",
                "dtype": "float32",
                "posterior": "moments",
                "scaled": True,
            },
            "prompt": {"uses": "diffusers-prompt", "model": "models/sdxl", "dtype": "float32"},
        }

    def test_people_are_told_what_was_chosen_and_why(self, here: Path) -> None:
        """A line for the model and one for each setting; the reasons stand in the file, too."""
        model_folder(here / "model", configs={"unet": {"sample_size": 128}})
        ended = run("init", "data", "--for", "model")
        told = ended.out.splitlines()
        assert told[1] == "model: a StableDiffusionXLPipeline, of the family sdxl (Stable Diffusion XL)"
        assert "  resolutions [1024]: unet/config.json says 128 latents a side, each of 8 pixels" in told
        assert "  latent.dtype float32: the VAE overflows in float16" in told
        content = (here / "precook.yaml").read_text()
        assert "  # dtype float32: the VAE overflows in float16\n" in content
        assert "  #   model_input = vae.encode(pixel_values).latent_dist.sample() * scaling_factor\n" in content
        assert "add_time_ids" in content

    @pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
    def test_every_variant_of_a_pipeline_belongs_to_its_family(self, here: Path, family: Family) -> None:
        """For pictures from pictures, inpainting or with ControlNet, the same is kept."""
        texts = family.text_encoders or ("text_encoder",)
        found = []
        for pipeline in {family.pipelines[0], family.pipelines[-1]}:
            model_folder(here / pipeline, pipeline, texts=texts)
            ended = run("init", "data", "--for", pipeline, "--json", "--force")
            assert ended.code == 0, ended.err
            assert ended.document["for"]["family"] == family.name
            found.append(sections()["latent"] | {"model": ""})
        assert found[0] == found[-1]
        assert {family_of(pipeline) for pipeline in family.pipelines} == {family}

    @pytest.mark.parametrize(("side", "small"), [(500, False), (300, True)])
    def test_pictures_that_would_be_enlarged_are_told(self, here: Path, side: int, small: bool) -> None:
        """The model's size is taken all the same."""
        for number in range(3):
            picture(here / "data" / f"p{number}.png", number, (side, side))
        ended = run("init", "data", "--for", "sd")
        told = f"hint: the usual picture is smaller, about {side} pixels a side, and would be enlarged"
        assert (told in ended.err) == small
        assert read_config(Path("precook.yaml"))[0].image.resolutions == (512,)

    @pytest.mark.parametrize(("size", "resolution"), [(64, 512), (96, 768)])
    def test_the_size_is_the_one_that_the_model_was_trained_with(self, here: Path, size: int, resolution: int) -> None:
        """Stable Diffusion 1.5 and 2.1 are the same pipeline: the UNet's config tells them apart."""
        model_folder(
            here / "m", "StableDiffusionPipeline", texts=("text_encoder",), configs={"unet": {"sample_size": size}}
        )
        assert run("init", "data", "--for", "m", "--json").document["resolution"] == resolution

    def test_a_model_without_its_unet_is_enough(self, here: Path) -> None:
        """People keep what encodes and delete the rest; the family tells the size."""
        model_folder(here / "m", unet=["diffusers", "UNet2DConditionModel"])
        assert run("init", "data", "--for", "m", "--json").document["resolution"] == 1024

    def test_the_step_follows_the_vae(self, here: Path) -> None:
        """A Wan whose latents stand for 16 pixels needs sizes in steps of 32, and masks 16 times smaller."""
        vae = {"_class_name": "AutoencoderKLWan", "scale_factor_spatial": 16}
        model_folder(here / "m", "WanPipeline", texts=("text_encoder",), configs={"vae": vae})
        picture(here / "data" / "p0-masklabel.png", 9)
        document = run("init", "data", "--for", "m", "--json").document
        assert (document["resolution"], settings_of(document)["step"]) == ("832x480", 32)
        assert sections()["mask"]["factor"] == 16

    @pytest.mark.parametrize(
        "vae", [{"scale_factor_spatial": 10**30}, {"_class_name": "AutoencoderKL", "block_out_channels": [1] * 20_000}]
    )
    def test_a_config_that_makes_no_sense_decides_nothing(self, here: Path, vae: dict[str, Any]) -> None:
        """A latent stands for some pixels, not for more than a picture has."""
        model_folder(here / "m", configs={"vae": vae})
        ended = run("init", "data", "--for", "m", "--json")
        assert ended.code == 0, ended.err
        assert settings_of(ended.document)["step"] == 64

    def test_masks_are_as_large_as_latents(self, here: Path) -> None:
        """Those of FLUX.2 are kept as patches of two by two."""
        model_folder(here / "m", "Flux2Pipeline", texts=("text_encoder",))
        picture(here / "data" / "p0-masklabel.png", 9)
        assert run("init", "data", "--for", "m").code == 0
        assert (sections()["latent"]["scaled"], sections()["mask"]["factor"]) == (True, 16)

    def test_latents_that_a_pipeline_scales_in_two_ways_are_kept_unscaled(self, here: Path) -> None:
        """CogVideoX 1.5 scales a picture that it begins with otherwise than what it learns."""
        vae = {"_class_name": "AutoencoderKLCogVideoX", "invert_scale_latents": True}
        size = {"sample_width": 170, "sample_height": 96}
        configs = {"vae": vae, "transformer": size}
        model_folder(here / "m", "CogVideoXPipeline", texts=("text_encoder",), configs=configs)
        ended = run("init", "data", "--for", "m")
        assert "  latent.scaled false: its pipelines scale what they are given and what they learn apart" in ended.out
        assert '  resolutions ["1360x768"]: transformer/config.json says 170 x 96 latents' in ended.out
        assert sections()["latent"]["scaled"] is False

    @pytest.mark.parametrize(
        ("dtypes", "upcast", "latent", "prompt"),
        [
            ({"vae": "BF16", "text_encoder": "BF16", "text_encoder_2": "BF16"}, True, "bfloat16", "bfloat16"),
            ({"vae": "F16", "text_encoder": "F16", "text_encoder_2": "F16"}, True, "float32", "float16"),
            ({"vae": "F16", "text_encoder": "F16", "text_encoder_2": "F16"}, False, "float16", "float16"),
            ({"vae": "F32", "text_encoder": "BF16", "text_encoder_2": "F32"}, True, "float32", "float32"),
        ],
        ids=["bfloat16", "float16 that would overflow", "float16", "mixed"],
    )
    def test_types_are_those_of_the_weights(
        self, here: Path, dtypes: dict[str, str], upcast: bool, latent: str, prompt: str
    ) -> None:
        """No more precision than was saved, and none that the VAE's config rules out."""
        model_folder(here / "m", "FluxPipeline", configs={"vae": {**VAE, "force_upcast": upcast}}, dtypes=dtypes)
        document = run("init", "data", "--for", "m", "--json").document
        assert settings_of(document)["latent.dtype"] == latent
        assert settings_of(document)["prompt.dtype"] == prompt

    def test_paths_are_right_wherever_the_file_lies(self, here: Path) -> None:
        """As with every path in the file, they start at the file."""
        model_folder(here / "models" / "m")
        (here / "configs").mkdir()
        assert run("init", "data", "--for", "models/m", "--output", "configs/my.yaml").code == 0
        assert sections("configs/my.yaml")["prompt"]["model"] == "../models/m"

    def test_nothing_is_loaded(self, here: Path) -> None:
        """A model of any size is looked at in a moment."""
        model_folder(here / "m")
        program = (
            "import sys\n"
            "from precook.cli.main import app\n"
            "app(['init', 'data', '--for', 'm'], standalone_mode=False)\n"
            "print({'torch', 'diffusers', 'transformers'} & sys.modules.keys())\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
        )
        assert ended.stdout.splitlines()[-1] == "set()"

    def test_another_vae_takes_the_place_of_the_pipelines_own(self, here: Path) -> None:
        """Its folder is named, the settings stay the family's; and the pipeline need not have one."""
        model_folder(here / "other")
        (model_folder(here / "m") / "vae" / "config.json").unlink()
        ended = run("init", "data", "--for", "m", "--vae", "other/vae")
        assert ended.code == 0, ended.err
        latent = sections()["latent"]
        assert (latent["model"], latent["posterior"], "subfolder" in latent) == ("other/vae", "moments", False)

    def test_a_pipeline_of_no_family_gets_a_config_and_says_so(self, here: Path) -> None:
        """Nothing is made up about it: the mean, unscaled, at the size of the pictures."""
        model_folder(here / "m", "OvisImagePipeline", texts=("text_encoder",))
        ended = run("init", "data", "--for", "m")
        assert ended.code == 0, ended.err
        assert "m: a OvisImagePipeline, of no family that precook knows: look at what was chosen" in ended.out
        assert read_config(Path("precook.yaml"))[0].image.resolutions == (256,)
        latent = sections()["latent"]
        assert (latent["posterior"], latent["scaled"]) == ("mean", False)
        assert sections()["prompt"]["uses"] == "diffusers-prompt"

    @pytest.mark.parametrize(
        ("pipeline", "reason"),
        [
            ("QwenImageEditPipeline", "takes a picture for its prompts"),
            ("StableVideoDiffusionPipeline", "has no encode_prompt"),
            ("SomebodysPipeline", "has no SomebodysPipeline"),
        ],
    )
    def test_prompts_that_cannot_be_encoded_are_left_out_with_the_reason(
        self, here: Path, pipeline: str, reason: str
    ) -> None:
        """Latents alone are kept, and both the command and the file say why."""
        model_folder(here / "m", pipeline, texts=("text_encoder",))
        ended = run("init", "data", "--for", "m")
        assert ended.code == 0, ended.err
        assert re.search(rf"hint: captions are left aside: .*{reason}", ended.err)
        assert list(sections()) == ["latent"]
        assert reason in (here / "precook.yaml").read_text()

    def test_a_pipeline_without_a_vae_keeps_pictures(self, here: Path) -> None:
        """One that works on pixels trains on the pictures themselves."""
        folder = model_folder(here / "m", "IFPipeline", texts=("text_encoder",))
        index = json.loads((folder / "model_index.json").read_text())
        (folder / "model_index.json").write_text(json.dumps({**index, "vae": [None, None]}))
        assert run("init", "data", "--for", "m").code == 0
        assert list(sections()) == ["prompt", "pixels"]

    def test_no_name_in_an_index_gets_into_the_file_as_a_setting(self, here: Path) -> None:
        """A class with line breaks in its name is shown in one line, and the file says what it said before."""
        model_folder(here / "m", "Bad\nstore: /etc\nPipeline\x1b[31m", texts=())
        ended = run("init", "data", "--for", "m")
        assert ended.code == 0, ended.err
        assert read_config(Path("precook.yaml"))[0].store == "cache"
        assert "\x1b" not in ended.out + ended.err


class TestPipelines:
    """Real pipelines, tiny and saved whole, with the pictures of the demo."""

    @pytest.mark.parametrize("family", sorted({*NAMES, "sdxl-refiner", "flux2-klein"} - {"qwen-image-edit"}))
    def test_plan_takes_the_file_at_once(self, here: Path, family: str, pipeline_of: Callable[[str], Path]) -> None:
        """Every encoder is understood, and everything is missing."""
        demo._make_pictures(here)
        ended = run("init", "pictures", "--for", pipeline_of(family), "--json")
        assert ended.code == 0, ended.err
        assert ended.document["for"]["family"] == {"sdxl-refiner": "sdxl", "flux2-klein": "flux2"}.get(family, family)
        planned = run("plan", "--json")
        assert planned.code == 0, planned.err
        counts = encoders(planned.document, "ready", "missing", "failed")
        assert counts == {"latent": [0, 24, 0], "prompt": [0, 25, 0], "mask": [0, 5, 0]}

    @pytest.mark.parametrize("family", ["sd", "sdxl", "sd3", "flux2", "qwen-image", "wan", "cogvideox", "sana"])
    @pytest.mark.usefixtures("one_thread")
    def test_a_build_makes_what_a_trainer_takes(
        self, here: Path, family: str, pipeline_of: Callable[[str], Path]
    ) -> None:
        """At a smaller size, because these are CPUs: masks as large as latents, and prompts of the script's length."""
        picture(here / "data" / "p0-masklabel.png", 9)
        assert run("init", "data", "--for", pipeline_of(family)).code == 0
        content = (here / "precook.yaml").read_text()
        (here / "precook.yaml").write_text(re.sub(r"resolutions: \[.*?\]", "resolutions: [64]", content))
        ended = run("build")
        assert ended.code == 0, ended.err
        with precook.load("precook.yaml") as project, project.feed(batch_size=1) as feed:
            (batch, *_) = feed.epoch(0)
        assert batch["latent"].shape[-2:] == batch["mask"].shape[-2:]
        (length,) = (known.max_length for known in FAMILIES if known.name == family)
        arguments = PROMPTS[family].arguments | ({} if length is None else {"max_sequence_length": length})
        with torch.inference_mode():
            made = whole_pipeline(pipeline_of(family)).encode_prompt(prompt=batch["caption"], **arguments, device="cpu")
        embeds = made[0] if isinstance(made, tuple) else made
        assert relative_difference(batch["prompt"]["prompt_embeds"], embeds) < 1e-5


class TestFamilies:
    """The name of a family, for a model that is not here yet."""

    @pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
    def test_its_config_is_written_with_folders_to_fill_in(self, here: Path, family: Family) -> None:
        """The file names a folder below models, and the command says so."""
        ended = run("init", "data", "--for", family.name.upper())
        assert ended.code == 0, ended.err
        assert f"hint: the file names models/{family.name}: put the model there" in ended.err
        assert {section["model"] for section in sections().values()} == {f"models/{family.name}"}
        assert set(sections()) == ({"latent"} if family.no_prompt else {"latent", "prompt"})

    def test_a_folder_of_that_name_wins(self, here: Path) -> None:
        """Nobody's own files are passed over."""
        model_folder(here / "flux", "StableDiffusionXLPipeline")
        assert run("init", "data", "--for", "flux", "--json").document["for"]["family"] == "sdxl"

    def test_plan_says_what_to_fill_in(self, here: Path) -> None:
        """A folder that is not there yet is an error of the config."""
        assert run("init", "data", "--for", "flux").code == 0
        ended = run("plan")
        assert ended.code == 2
        assert "models/flux" in ended.err


class TestRefusals:
    """What is no model, or not all of one."""

    @pytest.fixture
    def model(self, here: Path) -> Path:
        """A whole SDXL."""
        return model_folder(here / "m")

    @pytest.mark.parametrize(
        ("args", "message", "hint"),
        [
            (
                ["--for", "fluxx"],
                "--for fluxx: no such folder, and no family of that name; did you mean 'flux'?",
                "sd3",
            ),
            (["--for", "models/gone"], "--for models/gone: no such folder", "qwen-image, "),
            (["--for", "owner/name"], "--for owner/name: no such folder", "as model beside revision"),
            (["--for", "data"], "--for data: no pipeline of diffusers: there is no model_index.json in it", "--vae"),
            (["--for", "m/vae"], "--for m/vae: no pipeline of diffusers", "name the folder above it"),
            (
                ["--for", "m/model_index.json"],
                "--for m/model_index.json: no pipeline of diffusers: it is no folder",
                "",
            ),
            (["--for", "m", "--text", "m"], "--for and --text do not go together", "leave out --text"),
            (["--for", "m", "--vae", "gone"], "--vae gone: no such folder", "download the model first"),
            (
                ["--vae", "m/vae/diffusion_pytorch_model.safetensors"],
                "--vae m/vae/diffusion_pytorch_model.safetensors: no such folder",
                "config.json",
            ),
            (["--for", "m", "--vae", "data"], "data/config.json: ", "name the folder that holds the model's config"),
        ],
    )
    def test_what_is_wrong_is_said_and_nothing_is_written(
        self, here: Path, model: Path, args: list[str], message: str, hint: str
    ) -> None:
        """Exit code 2, with what to write instead."""
        ended = run("init", "data", *args)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"error: {message}"), ended.err
        assert re.search(rf"\nhint: .*{re.escape(hint)}", ended.err), ended.err
        assert not (here / "precook.yaml").exists()

    @pytest.mark.parametrize("part", ["vae", "text_encoder_2", "tokenizer"])
    def test_a_part_that_was_deleted_is_named(self, here: Path, model: Path, part: str) -> None:
        """Half of a model is no model, and which half is missing is said."""
        for file in (model / part).iterdir():
            file.unlink()
        (model / part).rmdir()
        ended = run("init", "data", "--for", "m")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"error: m/{part} is not there: model_index.json of m names a ")
        assert ("--vae names another VAE" in ended.err) == (part == "vae")

    def test_a_part_that_its_index_leaves_out_is_named(self, here: Path, model: Path) -> None:
        """As in repositories that leave a text encoder to be loaded from elsewhere."""
        index = json.loads((model / "model_index.json").read_text())
        (model / "model_index.json").write_text(json.dumps({**index, "text_encoder_2": [None, None]}))
        ended = run("init", "data", "--for", "m")
        assert ended.code == 2
        assert ended.err.startswith("error: m has no text_encoder_2: its model_index.json names none\n")

    def test_what_a_pipeline_does_without_may_be_missing(self, here: Path) -> None:
        """SDXL's refiner has one text encoder, and SD3 runs without T5."""
        model_folder(here / "r", "StableDiffusionXLImg2ImgPipeline", texts=("text_encoder_2",), text_encoder=[None] * 2)
        model_folder(here / "3", "StableDiffusion3Pipeline", text_encoder_3=[None] * 2)
        for model in ("r", "3"):
            assert run("init", "data", "--for", model, "--force").code == 0

    @pytest.mark.parametrize("content", ["{", "[]", "{}", '{"_class_name": 3}'])
    def test_an_index_that_says_nothing_is_refused(self, here: Path, model: Path, content: str) -> None:
        """The file is named."""
        (model / "model_index.json").write_text(content)
        ended = run("init", "data", "--for", "m")
        assert ended.code == 2
        assert ended.err.startswith("error: m/model_index.json")

    def test_a_folder_whose_name_is_not_unicode_is_refused(self, here: Path, model: Path) -> None:
        """A config could not name it."""
        model.rename(here / "m\udcff")
        ended = run("init", "data", "--for", "m\udcff")
        assert (ended.code, ended.out) == (2, "")
        assert r"m\udcff" in ended.err
        assert "rename it" in ended.err


class TestTable:
    """What the table of families says is what diffusers has."""

    def test_every_class_is_one_of_diffusers(self) -> None:
        """And no class belongs to two families."""
        spec = importlib.util.find_spec("diffusers")
        assert spec is not None
        assert spec.origin is not None
        exported = Path(spec.origin).read_text()
        classes = [pipeline for family in FAMILIES for pipeline in family.pipelines]
        assert [name for name in classes if f'"{name}"' not in exported] == []
        assert len(classes) == len(set(classes))

    @pytest.mark.parametrize("family", [family for family in FAMILIES if family.max_length], ids=lambda f: f.name)
    def test_a_length_is_told_where_the_call_has_another(self, family: Family) -> None:
        """Else the file would give a reason that is none."""
        diffusers = importlib.import_module("diffusers")
        for pipeline in family.pipelines:
            call = inspect.signature(getattr(diffusers, pipeline).encode_prompt)
            assert call.parameters["max_sequence_length"].default != family.max_length
