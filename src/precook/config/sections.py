"""Sections of the config file that concepts share: how pictures are cut, and which texts are encoded; and which
frames of clips are taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from typing_extensions import Self

from precook.config.field_types import (
    NOT_IN_KEYS,
    Flaw,
    Positive,
    Section,
    as_tuple,
    not_empty,
    one_of,
    refusal,
    unique,
    whole_or,
)
from precook.config.messages import described, did_you_mean, either

COLOURS = {"black": (0, 0, 0), "white": (255, 255, 255), "gray": (128, 128, 128), "grey": (128, 128, 128)}

_SIZE = r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}"
_COLOUR = r"#(?:[0-9A-Fa-f]{3}){1,2}"
_SIDE = 65_536
NATIVE = "native"
"""The resolution at which every picture keeps its own size."""
_USUAL_PIXELS = 89_478_485
"""Pictures of more pixels are refused where the config says nothing else: Pillow warns of them."""

Crop = Literal["center", "random"]
Flip = Literal["none", "random", "always"]
Resampling = Literal["nearest", "area", "bilinear", "bicubic", "lanczos", "draft"]
Rounding = Literal["auto", "down", "nearest"]
Permission = Literal["allow", "refuse"]
Extreme = Literal["crop", "refuse"]
Pick = Literal["one", "each"]
ClipStart = Literal["first", "middle", "random"]
_Settings = TypeVar("_Settings", bound=Section)


@dataclass(frozen=True, slots=True)
class Resolution:
    """A target: this very size if `exact`, each picture's own if `native`, else any size of about its area."""

    width: int
    height: int
    exact: bool
    native: bool = False

    @classmethod
    def of(cls, value: int | str) -> Resolution:
        """The resolution that the config gives as the side of a square, as a size such as 768x512, or as native."""
        if isinstance(value, int):
            return cls(value, value, exact=False)
        if value == NATIVE:
            return cls(0, 0, exact=False, native=True)
        width, height = map(int, value.split("x"))
        return cls(width, height, exact=True)


def _resolution(value: object) -> object:
    if (type(value) is int and 1 <= value <= _SIDE) or (isinstance(value, str) and value == NATIVE):
        return value
    if isinstance(value, str) and re.fullmatch(_SIZE, value) and max(map(int, value.split("x"))) <= _SIDE:
        return value
    rule = f'a whole number from 1 to {_SIDE}, a size such as "768x512", or {NATIVE}'
    meant = did_you_mean(value, [NATIVE]) if isinstance(value, str) else ""
    raise refusal(Flaw(f"must be {rule}, not {described(value)}{meant}"))


def _list_or_native(schema: dict[str, Any]) -> None:
    """Say in the schema of a list that the one word may stand in its place."""
    listed = {"type": "array", "items": schema.pop("items"), "minItems": 1, "uniqueItems": True}
    del schema["type"]
    schema["anyOf"] = [listed, {"type": "string", "const": NATIVE}]


def _resolutions(value: object) -> object:
    """The list; the one word stands for a list of it."""
    if not isinstance(value, str):
        return as_tuple(value)
    if value != NATIVE:
        meant = did_you_mean(value, [NATIVE])
        hint = f'write ["{value}"]' if re.fullmatch(_SIZE, value) else "" if meant else "begin each item with a dash"
        raise refusal(Flaw(f"must be a list, or {NATIVE}, not {described(value)}{meant}", hint))
    return (value,)


def _colour(text: str) -> str:
    if text not in COLOURS and re.fullmatch(_COLOUR, text) is None:
        meant = did_you_mean(text, COLOURS)
        raise refusal(Flaw(f'must be {either(list(COLOURS))}, or such as "#ff8800", not {described(text)}{meant}'))
    return text


class ImageSettings(Section):
    """How pictures are cut."""

    resolutions: Annotated[
        tuple[
            Annotated[
                int | str,
                BeforeValidator(_resolution),
                WithJsonSchema(
                    {
                        "anyOf": [
                            {"type": "integer", "minimum": 1, "maximum": _SIDE},
                            {"type": "string", "pattern": f"^{_SIZE}$"},
                            {"type": "string", "const": NATIVE},
                        ]
                    }
                ),
            ],
            ...,
        ],
        BeforeValidator(_resolutions),
        BeforeValidator(not_empty),
        AfterValidator(unique),
    ] = Field(
        default=(512,),
        description='Sides of a square of equal area, exact sizes: "768x512", or native: each picture its own.',
        json_schema_extra=_list_or_native,
    )
    step: int = Field(default=64, ge=1, le=_SIDE, description="Widths and heights are multiples of this.")
    multiple_of: int = Field(
        default=1, ge=1, le=_SIDE, description="With native, widths and heights are scaled to multiples of this."
    )
    crop: Annotated[Crop, one_of(Crop)] = Field(default="center", description="center or random.")
    flip: Annotated[Flip, one_of(Flip)] = Field(
        default="none", description="none, random or always: mirrored left to right."
    )
    variations: int = Field(default=1, ge=1, le=1000, description="Draws of crop and flip that are kept per picture.")
    resampling: Annotated[Resampling, one_of(Resampling)] = Field(
        default="lanczos",
        description="nearest, area, bilinear, bicubic, lanczos, or draft: the JPEG decoder helps.",
    )
    rounding: Annotated[Rounding, one_of(Rounding)] = Field(
        default="auto",
        description="How a scaled side is rounded: down as torchvision does, nearest, or auto, by the sizes there are.",
    )
    upscale: Annotated[Permission, one_of(Permission)] = Field(
        default="allow",
        description="Pictures smaller than their size: allow, or refuse them.",
        json_schema_extra=NOT_IN_KEYS,
    )
    max_aspect: float = Field(
        default=4.0, ge=1, allow_inf_nan=False, description="No size is more elongated than this, 4.0 being 4:1."
    )
    extreme_aspect: Annotated[Extreme, one_of(Extreme)] = Field(
        default="crop",
        description="Pictures more elongated than any size: crop or refuse them.",
        json_schema_extra=NOT_IN_KEYS,
    )
    background: Annotated[
        str,
        AfterValidator(_colour),
        WithJsonSchema({"type": "string", "pattern": f"^(?:{'|'.join(COLOURS)}|{_COLOUR})$"}),
    ] = Field(default="white", description='What shows through transparency: white, black, gray or "#rrggbb".')
    max_pixels: int = Field(
        default=_USUAL_PIXELS,
        ge=1,
        le=178_956_970,
        description="Pictures of more pixels are refused unread or, with native, scaled down to so many.",
    )
    pick: Annotated[Pick, one_of(Pick)] = Field(
        default="one",
        description="Of several resolutions an epoch shows one of each picture, drawn anew, or each.",
        json_schema_extra=NOT_IN_KEYS,
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Decides every draw.")

    @property
    def sizes(self) -> tuple[Resolution, ...]:
        """The resolutions as numbers."""
        return tuple(Resolution.of(value) for value in self.resolutions)

    @property
    def native(self) -> bool:
        """Whether pictures are kept at their own size, beside others or alone."""
        return NATIVE in self.resolutions

    @property
    def most_pixels(self) -> int:
        """Pictures of more pixels are refused unread.

        Where pictures keep their size, `max_pixels` is what larger ones are scaled down to, and no reason to refuse
        them: what is refused then is what would be refused anyway, or not even that where more is asked for.
        """
        return max(self.max_pixels, _USUAL_PIXELS) if self.native else self.max_pixels

    @property
    def rgb(self) -> tuple[int, int, int]:
        """The background as red, green and blue."""
        text = self.background
        if text in COLOURS:
            return COLOURS[text]
        digits = text[1:] if len(text) > 4 else "".join(digit * 2 for digit in text[1:])  # noqa: PLR2004 - #rgb
        red, green, blue = bytes.fromhex(digits)
        return red, green, blue

    def flaws(self) -> list[Flaw]:
        """What does not go together."""
        flaws = []
        for number, size in enumerate(self.sizes):
            path = ("resolutions", number)
            if size.exact and (size.width % self.step or size.height % self.step):
                message = f"{size.width}x{size.height} is not made of multiples of step, {self.step}"
                width, height = (max(self.step, side // self.step * self.step) for side in (size.width, size.height))
                flaws.append(Flaw(message, f'write "{width}x{height}", or change step', path))
            if size.native and self.multiple_of**2 > self.max_pixels:
                message = f"no size of multiples of {self.multiple_of} has at most {self.max_pixels} pixels"
                flaws.append(Flaw(message, "raise max_pixels, or lower multiple_of", ("max_pixels",)))
            if not size.exact and not size.native and size.width < self.step:
                flaws.append(Flaw(f"{size.width} is less than step, {self.step}", "raise it, or lower step", path))
        return flaws

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if flaws := self.flaws():
            raise refusal(*flaws)
        return self


class TextSettings(Section):
    """Which texts are encoded."""

    variations: Annotated[Positive | Literal["all"], whole_or("all")] = Field(
        default="all",
        description="Captions, or variations of tags, that are kept per picture: all, or at most so many.",
    )
    empty_prompt: bool = Field(default=True, description='Also encode "", for caption dropout and guidance.')


_MOST_FRAMES = 4095
_MOST_FPS = 1000
_THOUSAND = 1000


def _fps(value: object) -> object:
    if isinstance(value, str) and value == "source":
        return value
    number = value if type(value) in (int, float) else 0
    assert isinstance(number, int | float), "for the type checker"
    if not 0 < number <= _MOST_FPS or Fraction(str(number)) * _THOUSAND % 1:
        rule = f"a number above 0 and up to {_MOST_FPS}, with three decimals at most, or source"
        raise refusal(Flaw(f"must be {rule}, not {described(value)}", "write 16, 23.976 or source"))
    return value


class VideoSettings(Section):
    """Which frames of a clip are taken."""

    frames: Annotated[
        tuple[Annotated[int, Field(ge=1, le=_MOST_FRAMES)], ...],
        BeforeValidator(as_tuple),
        BeforeValidator(not_empty),
        AfterValidator(unique),
    ] = Field(
        default=(1, 25),
        description="How many frames: of each clip the most that it has. A still picture has 1.",
        examples=[[1, 25, 49]],
        json_schema_extra={"minItems": 1, "uniqueItems": True},
    )
    fps: Annotated[
        int | float | Literal["source"],
        BeforeValidator(_fps),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0.001, "maximum": _MOST_FPS}, {"enum": ["source"]}]}),
    ] = Field(default=16, description="Frames per second, taken by their time stamps; source: every frame.")
    start: Annotated[ClipStart, one_of(ClipStart)] = Field(
        default="first", description="Where in a longer clip: its first frame, its middle, or random: drawn."
    )

    @property
    def rate(self) -> int:
        """Thousandths of frames per second; 0 for every frame."""
        return 0 if isinstance(self.fps, str) else int(Fraction(str(self.fps)) * _THOUSAND)


def _written(section: Section, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """The fields that were written: only they take the place of the file's."""
    return {name: value for name, value in dump(section).items() if name in section.model_fields_set}


def _refuse_for_all(section: Section, name: str, home: str) -> None:
    if name in section.model_fields_set:
        hint = f"write it under {home}, at the left margin"
        raise refusal(Flaw("is for all concepts together, and not for one of them", hint, (name,)))


class ImageOverrides(ImageSettings):
    """How the pictures of one concept are cut: what is written here, and for the rest what the file says."""

    @model_serializer(mode="wrap")
    def _spelled(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _written(self, dump)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        # Whether its fields go together is seen when those of the file stand beside them.
        _refuse_for_all(self, "pick", "image")
        return self


class TextOverrides(TextSettings):
    """Which texts of one concept are encoded: what is written here, and for the rest what the file says."""

    @model_serializer(mode="wrap")
    def _spelled(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _written(self, dump)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _refuse_for_all(self, "empty_prompt", "text")
        return self


class VideoOverrides(VideoSettings):
    """Which frames of the clips of one concept are taken: what is written here, and for the rest what the file says."""

    @model_serializer(mode="wrap")
    def _spelled(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _written(self, dump)


def override(settings: _Settings, overrides: Section | None) -> _Settings:
    """Settings of the file with those of a concept in their places."""
    if overrides is None:
        return settings
    return settings.model_copy(update={name: getattr(overrides, name) for name in overrides.model_fields_set})
