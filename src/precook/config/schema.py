"""The config file: every field it may have, what that means, and what it is without being written."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from precook.config.concept import Concept
from precook.config.encoders import EncoderSettings
from precook.config.field_types import (
    NOT_IN_KEYS,
    Flaw,
    PathText,
    Section,
    as_tuple,
    matching,
    not_empty,
    one_of,
    refusal,
    unique,
)
from precook.config.further_pictures import OWN
from precook.config.messages import did_you_mean, quoted
from precook.config.remote import CacheSettings, RemoteSettings, no_secrets
from precook.config.sections import ImageSettings, TextSettings, VideoSettings, override

BATCH_NAMES = ("sample", "concept", "path", "caption", "loss_weight", "size", "original_size", "crop", "target_size")
"""What a batch holds beside the encoders' results."""

_DATASET = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_ENCODER = r"[A-Za-z_][A-Za-z0-9_]{0,63}"

KeptText = Literal["paths", "captions"]
StampTrust = Literal["auto", "trust"]


def _encoder_name(text: str) -> str:
    if re.fullmatch(_ENCODER, text) is None:
        rule = "1 to 64 letters, digits and underscores, and not begin with a digit"
        raise refusal(Flaw(f"an encoder's name must be {rule}"))
    if text in BATCH_NAMES:
        raise refusal(Flaw("a batch has something of that name already", "choose another name"))
    return text


def _distinct(concepts: tuple[Concept, ...]) -> tuple[Concept, ...]:
    first: dict[str, int] = {}
    flaws = [
        Flaw(f"another concept is called {quoted(concept.name)}", "give each a name of its own", (number, "name"))
        for number, concept in enumerate(concepts)
        if first.setdefault(concept.name, number) != number
    ]
    if flaws:
        raise refusal(*flaws)
    return concepts


def _no_mask_clash(encoders: dict[str, Any]) -> dict[str, Any]:
    flaws = [
        Flaw(f"is where a batch puts the mask of {quoted(name.removesuffix('_mask'))}", "choose another name", (name,))
        for name in encoders
        if name.endswith("_mask") and name.removesuffix("_mask") in encoders
    ]
    if flaws:
        raise refusal(*flaws)
    return encoders


class Settings(Section):
    """The whole file."""

    store: PathText = Field(
        default="cache",
        description="Folder of the store, relative to this file, or its URL.",
        json_schema_extra=NOT_IN_KEYS,
    )
    cache: CacheSettings = Field(
        default_factory=CacheSettings,
        description="What this machine keeps of a store in a bucket.",
        json_schema_extra=NOT_IN_KEYS,
    )
    remote: Annotated[RemoteSettings, BeforeValidator(no_secrets)] = Field(
        default_factory=RemoteSettings,
        description="How the bucket of the store is reached.",
        json_schema_extra=NOT_IN_KEYS,
    )
    dataset: Annotated[
        str,
        matching(_DATASET, "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"),
        WithJsonSchema({"type": "string", "pattern": f"^{_DATASET}$"}),
    ] = Field(description="The snapshot's name.", examples=["portraits"], json_schema_extra=NOT_IN_KEYS)
    concepts: Annotated[
        tuple[Concept, ...], BeforeValidator(as_tuple), BeforeValidator(not_empty), AfterValidator(_distinct)
    ] = Field(description="Groups of samples.", json_schema_extra={"minItems": 1})
    image: ImageSettings = Field(default_factory=ImageSettings, description="How pictures are cut.")
    text: TextSettings = Field(default_factory=TextSettings, description="Which texts are encoded.")
    video: VideoSettings = Field(
        default_factory=VideoSettings, description="Which frames of a clip are taken, where an encoder takes clips."
    )
    encoders: Annotated[
        dict[Annotated[str, AfterValidator(_encoder_name)], EncoderSettings],
        BeforeValidator(not_empty),
        AfterValidator(_no_mask_clash),
    ] = Field(
        description="What is kept of each sample, by its name in the batch.",
        json_schema_extra={
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{_ENCODER}$", "not": {"enum": [*BATCH_NAMES]}},
        },
    )
    keep: Annotated[
        tuple[Annotated[KeptText, one_of(KeptText)], ...], BeforeValidator(as_tuple), AfterValidator(unique)
    ] = Field(
        default=(),
        description="What a snapshot tells beside its entries: paths, captions.",
        json_schema_extra={**NOT_IN_KEYS, "uniqueItems": True},
    )
    stamps: Annotated[StampTrust, one_of(StampTrust)] = Field(
        default="auto",
        description="auto, or trust: believe file times on network file systems too.",
        json_schema_extra=NOT_IN_KEYS,
    )

    @property
    def used_concepts(self) -> tuple[Concept, ...]:
        """The concepts that are enabled."""
        return tuple(concept for concept in self.concepts if concept.enabled)

    def image_of(self, concept: Concept) -> ImageSettings:
        """How the pictures of a concept are cut."""
        return override(self.image, concept.image)

    def text_of(self, concept: Concept) -> TextSettings:
        """Which texts of a concept are encoded."""
        return override(self.text, concept.text)

    def video_of(self, concept: Concept) -> VideoSettings:
        """Which frames of the clips of a concept are taken."""
        return override(self.video, concept.video)

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        flaws = [
            Flaw(flaw.message, flaw.hint, ("concepts", number, "image", *flaw.path))
            for number, concept in enumerate(self.concepts)
            if concept.image is not None
            for flaw in self.image_of(concept).flaws()
        ]
        if not self.used_concepts:
            flaws.append(Flaw("none of them is enabled", "remove `enabled: false` from one", ("concepts",)))
        if flaws:
            raise refusal(*flaws)
        return self

    @model_validator(mode="after")
    def _known_pictures(self) -> Settings:
        known = {name for concept in self.used_concepts for name in concept.further}
        flaws = []
        for name, section in self.encoders.items():
            given = getattr(section, "of", None) or OWN
            for picture in given if isinstance(given, tuple) else (given,):
                if picture != OWN and picture not in known:
                    hint = f"they have: {', '.join(sorted(known))}" if known else "name them in images of a concept"
                    message = f"no concept has a picture called {quoted(picture)}{did_you_mean(picture, known)}"
                    flaws.append(Flaw(message, hint, ("encoders", name, "of")))
        if flaws:
            raise refusal(*flaws)
        return self
