"""Encoders in the config file: which there are, and what each may be told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from precook.config.field_types import (
    IN_KEYS_IF_CHANGED,
    NOT_IN_KEYS,
    Flaw,
    NonEmpty,
    PathText,
    Positive,
    Section,
    Text,
    clean,
    one_of,
    plain,
    refusal,
    unique,
    whole_or,
)
from precook.config.further_pictures import OWN, PictureName, PictureNames
from precook.config.messages import described, did_you_mean, quoted
from precook.units import parse_size

Eos = Literal["auto", "on", "off"]
Labels = Literal["auto", "all", "completion", "assistant"]

_USER = ":"
"""The user's own class among the kinds of encoders: no built-in name has a colon."""
ADOPTED = "precook.integrations.adopted:Adopted"
"""The one class of precook that a config names like a class of its own."""


def _plain_mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusal(Flaw(f"must be a mapping, not {described(value)}"))
    return dict(plain(value))


def _layers(value: object) -> object:
    if isinstance(value, str) and value == "all":
        return value
    if not isinstance(value, list | tuple):
        example = f"write [{value}]" if type(value) is int else ""
        raise refusal(Flaw(f"must be a list of whole numbers, or all, not {described(value)}", example))
    wrong = [
        Flaw(f"must be a whole number, not {described(layer)}", path=(number,))
        for number, layer in enumerate(value)
        if type(layer) is not int
    ]
    if wrong:
        raise refusal(*wrong)
    if not value:
        raise refusal(Flaw("must not be empty", "write [-1] for the last layer"))
    return unique(tuple(value))


def _version(value: object) -> object:
    if value is None or (type(value) is int and abs(value) < _LARGE_VERSION):
        return value
    if not isinstance(value, str):
        # 1.10 is the same number as 1.1, and two versions that were meant to differ would have the same keys.
        example = f'write "{value}"' if type(value) is float else ""
        raise refusal(Flaw(f"must be text or a whole number, not {described(value)}", example))
    if not value:
        raise refusal(Flaw("must not be empty"))
    return clean(value)


def _memory(value: object) -> object:
    if not isinstance(value, str):
        raise refusal(Flaw(f"must be a size such as 8GiB, or auto, not {described(value)}"))
    if value != "auto":
        try:
            parse_size(value)
        except ValueError as error:
            raise refusal(Flaw(str(error))) from error
    return value


_LARGE_VERSION = 10**18
_VERSION_SCHEMA = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}, {"type": "null"}]}
Dtype = Literal["float32", "float16", "bfloat16"]
ProcessorDtype = Literal["auto", "float32", "float16", "bfloat16"]
Compile = Literal["auto", "off", "on"]
PosteriorForm = Literal["mean", "sample", "moments"]
Layers = Annotated[
    tuple[int, ...] | Literal["all"],
    BeforeValidator(_layers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True},
                {"type": "string", "const": "all"},
            ]
        }
    ),
]


class EncoderSection(Section):
    """What every encoder may be told."""

    uses: str = Field(description="Which encoder it is.")
    device: NonEmpty = Field(
        default="auto", description="Where it runs: auto, cpu, cuda, cuda:1, …", json_schema_extra=NOT_IN_KEYS
    )
    batch_size: Annotated[Positive | Literal["auto"], whole_or("auto")] = Field(
        default="auto", description="Samples per call; auto finds what fits.", json_schema_extra=NOT_IN_KEYS
    )
    version: Annotated[str | int | None, BeforeValidator(_version), WithJsonSchema(_VERSION_SCHEMA)] = Field(
        default=None, description="Text or a whole number of yours: another one makes its entries anew.", examples=[2]
    )


class PictureEncoder(EncoderSection):
    """An encoder of pictures: a sample's own, or one of its further ones."""

    of: PictureName = Field(
        default=OWN, description="Which picture of a sample: image, its own, or the name of a further one."
    )


class ModelEncoder(EncoderSection):
    """An encoder with a model: a folder, or a name on the hub."""

    model: PathText = Field(
        description="Folder of the model, relative to this file, or with revision its name on the hub.",
        examples=["models/vae"],
    )
    revision: NonEmpty | None = Field(
        default=None, description="Branch, tag or commit: model is owner/name on the hub.", examples=["main"]
    )
    subfolder: NonEmpty | None = Field(default=None, description="Folder inside the model's.", examples=["weights"])


class NetworkEncoder(ModelEncoder):
    """An encoder that runs a neural network."""

    dtype: Annotated[Dtype, one_of(Dtype)] = Field(default="float32", description="float32, float16 or bfloat16.")
    compile: Annotated[Compile, one_of(Compile)] = Field(
        default="auto",
        description="Compile the model with torch.compile: on, off, or auto, where it saves time.",
        json_schema_extra=NOT_IN_KEYS,
    )
    device_memory: Annotated[NonEmpty, BeforeValidator(_memory)] = Field(
        default="auto",
        description="Memory of the device that weights may take, such as 8GiB; auto: four fifths of what is free.",
        examples=["8GiB"],
        json_schema_extra=NOT_IN_KEYS,
    )


class VaeSection(NetworkEncoder):
    """A VAE of diffusers, for pictures or for videos."""

    config: PathText | None = Field(
        default=None,
        description="Where model is one .safetensors file: folder with the config.json of its VAE.",
        examples=["models/vae-config"],
    )
    posterior: Annotated[PosteriorForm, one_of(PosteriorForm)] = Field(
        default="mean", description="mean, sample (drawn once), or moments (drawn anew each epoch)."
    )
    scaled: bool = Field(default=False, description="Apply the model's shift and scaling factor to what is kept.")
    tiling: bool = Field(
        default=False, description="Encode large pictures tile by tile: less memory, slightly other values."
    )
    slicing: bool = Field(
        default=False,
        description="Encode a batch one by one: less memory, the same values.",
        json_schema_extra=NOT_IN_KEYS,
    )


class DiffusersVae(VaeSection, PictureEncoder):
    """Latents of a VAE of diffusers."""

    uses: Literal["diffusers-vae"] = Field(description="Latents of a VAE of diffusers: a tensor C x h x w.")


class DiffusersVideoVae(VaeSection):
    """Latents of a VAE of diffusers for videos."""

    uses: Literal["diffusers-video-vae"] = Field(
        description="Latents of a VAE of diffusers for videos: a tensor C x frames x h x w; `video` says which frames."
    )


class DiffusersPrompt(NetworkEncoder):
    """What a pipeline of diffusers makes of a text."""

    uses: Literal["diffusers-prompt"] = Field(
        description="What a pipeline's own encode_prompt returns; model is the pipeline's folder."
    )
    max_length: Positive | None = Field(
        default=None,
        description="The call's max_sequence_length; without it, the call's own default.",
        examples=[512],
    )
    options: Annotated[dict[str, Any], BeforeValidator(_plain_mapping), WithJsonSchema({"type": "object"})] = Field(
        default={}, description="Passed to the call, such as {clip_skip: 1}."
    )
    of: PictureNames | None = Field(
        default=None,
        description="The picture that its prompts see, such as control, or a list of several; without it, none.",
    )

    @property
    def pictures(self) -> tuple[str, ...]:
        """The names of the pictures that its prompts see."""
        return () if self.of is None else (self.of,) if isinstance(self.of, str) else self.of


class TransformersText(NetworkEncoder):
    """Embeddings of a text encoder of transformers."""

    uses: Literal["transformers-text"] = Field(description="Hidden states of a text encoder of transformers.")
    tokenizer: PathText | None = Field(
        default=None,
        description="Folder of the tokenizer; without it, the model's own, or the one beside it.",
        examples=["models/tokenizer"],
    )
    layers: Layers = Field(default=(-1,), description="Which hidden states: [-1] is the last, or all.")
    pooled: bool = Field(default=True, description="Also keep the pooled output, where the model has one.")
    max_length: Positive | None = Field(
        default=None, description="Tokens to cut a text to; without it, the tokenizer's limit.", examples=[512]
    )
    prefix: Text = Field(default="", description="Put before each text.")
    suffix: Text = Field(default="", description="Put after each text.")
    chat_template: bool = Field(default=False, description="Put each text into the tokenizer's chat template.")
    crop_start: int = Field(
        default=0, ge=0, description="Tokens to drop at the beginning, such as those of a template."
    )
    keep_padding: bool = Field(default=False, description="Keep padded positions up to max_length.")
    attention_mask: bool = Field(
        default=True,
        description="Hide padding from the model; false: it sees max_length tokens, all of which are kept.",
        json_schema_extra=IN_KEYS_IF_CHANGED,
    )
    attention: NonEmpty | None = Field(
        default=None,
        description="How attention is computed: sdpa, eager, flash_attention_2.",
        examples=["sdpa"],
        json_schema_extra=NOT_IN_KEYS,
    )


class TransformersTokens(ModelEncoder):
    """Token ids of a tokenizer of transformers."""

    uses: Literal["transformers-tokens"] = Field(description="Token ids of a tokenizer of transformers.")
    max_length: Positive | None = Field(
        default=None, description="Tokens to cut a text to; without it, the tokenizer's limit.", examples=[512]
    )
    truncation: bool = Field(default=True, description="Cut longer texts; false: they are refused.")
    special_tokens: bool = Field(default=True, description="Add the tokenizer's special tokens.")
    eos: Annotated[Eos, one_of(Eos)] = Field(
        default="auto",
        description="End texts with the end-of-sequence token, as TRL does: on, off, or auto: those with labels.",
        json_schema_extra=IN_KEYS_IF_CHANGED,
    )
    labels: Annotated[Labels, one_of(Labels)] = Field(
        default="auto",
        description="Keep labels: of all tokens, the completion's or the assistant's; auto: where a text has parts.",
        json_schema_extra=IN_KEYS_IF_CHANGED,
    )


class TransformersProcessor(ModelEncoder, PictureEncoder):
    """What a processor of transformers makes of a picture."""

    uses: Literal["transformers-processor"] = Field(description="What a processor of transformers returns.")
    options: Annotated[dict[str, Any], BeforeValidator(_plain_mapping), WithJsonSchema({"type": "object"})] = Field(
        default={}, description="Passed to the processor's call, such as {do_resize: false}."
    )
    dtype: Annotated[ProcessorDtype, one_of(ProcessorDtype)] = Field(
        default="auto",
        description="auto keeps numbers as the processor returns them; float32, float16 or bfloat16 rounds them.",
        json_schema_extra=IN_KEYS_IF_CHANGED,
    )


class TransformersVision(NetworkEncoder, PictureEncoder):
    """What a vision tower of transformers makes of a picture."""

    uses: Literal["transformers-vision"] = Field(
        description="Hidden states and pooled output of a vision model of transformers."
    )
    layers: Layers = Field(default=(-1,), description="Which hidden states: [-1] is the last, or all.")
    pooled: bool = Field(default=True, description="Also keep the pooled output, where the model has one.")


class MaskSection(EncoderSection):
    """The mask, cut as its picture."""

    uses: Literal["mask"] = Field(description="The mask, cut as its picture and made smaller.")
    factor: Positive = Field(default=8, description="How much smaller than the picture: the VAE's factor.")


class ImageSection(PictureEncoder):
    """The picture itself, cut to its size."""

    uses: Literal["image"] = Field(description="The picture itself, cut to its size; needs no model.")


class UserSection(PictureEncoder):
    """An encoder of your own: its other fields go to the constructor."""

    model_config = ConfigDict(extra="allow")

    uses: Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^[^:\s]+:[^:.\s]+$"})] = Field(
        description="package.module:Name, a class of yours; all further fields go to its constructor.",
        examples=["my_package.my_module:MyEncoder"],
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """What the constructor is called with."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _plain_arguments(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value if name in cls.model_fields else plain(value, (name,)) for name, value in data.items()}


ENCODERS: dict[str, type[EncoderSection]] = {
    "diffusers-vae": DiffusersVae,
    "diffusers-video-vae": DiffusersVideoVae,
    "diffusers-prompt": DiffusersPrompt,
    "transformers-text": TransformersText,
    "transformers-tokens": TransformersTokens,
    "transformers-processor": TransformersProcessor,
    "transformers-vision": TransformersVision,
    "mask": MaskSection,
    "image": ImageSection,
    _USER: UserSection,
}
"""The encoders by the kind that `kind_of` tells."""


def own_class(section: EncoderSection) -> bool:
    """Whether an encoder is code of the config's own: whoever loads it runs that."""
    return isinstance(section, UserSection) and section.uses != ADOPTED


def kind_of(value: Any) -> str | None:
    """Which of `ENCODERS` a value from the file is meant for; None where it does not say."""
    uses = value.get("uses") if isinstance(value, dict) else getattr(value, "uses", None)
    if not isinstance(uses, str):
        return None
    return _USER if ":" in uses else uses


def _known(value: object) -> object:
    """An encoder whose `uses` tells which one it is."""
    if isinstance(value, EncoderSection):
        return value
    if not isinstance(value, dict):
        raise refusal(Flaw(f"must be a mapping of fields, not {described(value)}", "write {uses: image}, for example"))
    names = [name for name in ENCODERS if name != _USER]
    hint = f"built in: {', '.join(names)}; a class of yours: package.module:Name"
    if "uses" not in value:
        raise refusal(Flaw("the field 'uses' is missing", hint, ("uses",)))
    uses = value["uses"]
    if not isinstance(uses, str):
        raise refusal(Flaw(f"must be text, not {described(uses)}", hint, ("uses",)))
    if ":" in uses:
        module, _, name = uses.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            raise refusal(Flaw(f"{quoted(uses)} does not name a class", "write package.module:Name", ("uses",)))
    elif uses not in names:
        raise refusal(Flaw(f"unknown encoder {quoted(uses)}{did_you_mean(uses, names)}", hint, ("uses",)))
    return value


EncoderSettings = Annotated[
    Annotated[DiffusersVae, Tag("diffusers-vae")]
    | Annotated[DiffusersVideoVae, Tag("diffusers-video-vae")]
    | Annotated[DiffusersPrompt, Tag("diffusers-prompt")]
    | Annotated[TransformersText, Tag("transformers-text")]
    | Annotated[TransformersTokens, Tag("transformers-tokens")]
    | Annotated[TransformersProcessor, Tag("transformers-processor")]
    | Annotated[TransformersVision, Tag("transformers-vision")]
    | Annotated[MaskSection, Tag("mask")]
    | Annotated[ImageSection, Tag("image")]
    | Annotated[UserSection, Tag(_USER)],
    Discriminator(kind_of),
    BeforeValidator(_known),
]
"""One encoder of the file, told apart by `uses`."""
