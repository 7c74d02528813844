"""Leaves of prompts: how each tensor that a pipeline makes of a text stands in an entry, and in a batch.

Most have the batch as their first dimension and one shape for every text: an entry is one of them without it, and a
batch stacks them again. `LeafForm` says what is different about the others. Which class of pipelines has which is a
table here, because a plan and a feed have to know it where diffusers is not installed; the encoder refuses to run where
a pipeline does something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class LeafForm:
    """How one leaf of a prompt stands in a batch; every field at its default is the common form."""

    axis: int = 0
    """Which dimension of the batch's tensor counts the texts."""
    pad_to: int | None = None
    """Rows of the tensor: kept without those of zeros at its end, which a batch puts back."""
    mask: str | None = None
    """Each text has a length of its own: a batch is filled up with zeros to the longest, and a leaf of this name
    says which places are real, by 1 and 0 in int64."""
    shared: bool = False
    """One for all texts of a batch, without a dimension that counts them."""
    listed: bool = False
    """Each text has a length of its own, and a batch is a list."""

    @property
    def fixed(self) -> bool:
        """Whether it has the same shape for every text."""
        return self.pad_to is None and self.mask is None and not self.listed

    def plain(self) -> dict[str, object]:
        """What is not at its default, as plain data."""
        return {name: value for name, value in asdict(self).items() if value != getattr(COMMON, name)}


COMMON = LeafForm()
"""That of most leaves."""
_MOST_ROWS = 1 << 20
"""More tokens than any text encoder takes."""
_SHARED_IDS = {"text_ids": LeafForm(shared=True)}
_OWN_LENGTH = {"prompt_embeds": LeafForm(mask="prompt_embeds_mask")}
_LIST = {"prompt_embeds": LeafForm(listed=True)}

_FLUX = (
    "FluxPipeline FluxControlPipeline FluxControlImg2ImgPipeline FluxControlInpaintPipeline FluxControlNetPipeline "
    "FluxControlNetImg2ImgPipeline FluxControlNetInpaintPipeline FluxFillPipeline FluxImg2ImgPipeline "
    "FluxInpaintPipeline FluxKontextPipeline FluxKontextInpaintPipeline "
    "ChromaPipeline ChromaImg2ImgPipeline ChromaInpaintPipeline OvisImagePipeline"
)
_WAN = (
    "WanPipeline WanAnimatePipeline WanImageToVideoPipeline WanVACEPipeline WanVideoToVideoPipeline AnyFlowPipeline "
    "AnyFlowFARPipeline ChronoEditPipeline LucyEditPipeline SkyReelsV2Pipeline SkyReelsV2DiffusionForcingPipeline "
    "SkyReelsV2DiffusionForcingImageToVideoPipeline SkyReelsV2DiffusionForcingVideoToVideoPipeline "
    "SkyReelsV2ImageToVideoPipeline"
)
_COSMOS = "CosmosTextToWorldPipeline CosmosVideoToWorldPipeline Cosmos2TextToImagePipeline Cosmos2VideoToWorldPipeline"
_QWEN = (
    "QwenImagePipeline QwenImageControlNetPipeline QwenImageControlNetInpaintPipeline QwenImageImg2ImgPipeline "
    "QwenImageInpaintPipeline QwenImageLayeredPipeline QwenImageEditPipeline QwenImageEditInpaintPipeline "
    "QwenImageEditPlusPipeline"
)
_Z_IMAGE = "ZImagePipeline ZImageImg2ImgPipeline ZImageInpaintPipeline"
_FORMS: dict[str, Mapping[str, LeafForm]] = {
    kind: forms
    for kinds, forms in (
        (_FLUX, _SHARED_IDS),
        # With the length that encode_prompt takes by itself: max_length is another.
        (_WAN, {"prompt_embeds": LeafForm(pad_to=226)}),
        (_COSMOS, {"prompt_embeds": LeafForm(pad_to=512)}),
        (_QWEN, _OWN_LENGTH),
        (_Z_IMAGE, _LIST),
        ("HiDreamImagePipeline", {"prompt_embeds_llama3": LeafForm(axis=1)}),
    )
    for kind in kinds.split()
}
CLEANED = frozenset(_WAN.split())
"""Classes that mend a text by ftfy, where that is installed."""


def known_forms(kind: str, max_length: int | None) -> dict[str, LeafForm]:
    """The leaves of a class of pipelines that are not of the common form."""
    forms = _FORMS.get(kind, {})
    return {
        name: form if form.pad_to is None or max_length is None else replace(form, pad_to=max_length)
        for name, form in forms.items()
    }


def read_forms(data: object) -> dict[str, LeafForm]:
    """The forms that `LeafForm.plain` has written; `ValueError` where it cannot have."""
    if not isinstance(data, dict):
        raise ValueError("not a mapping of leaves")  # noqa: TRY004 - what was read is not as it should be
    forms: dict[str, LeafForm] = {}
    for name, fields in data.items():
        if not isinstance(fields, dict) or not fields.keys() <= asdict(COMMON).keys():
            raise ValueError(f"the form of {name!r} is not known")
        form = LeafForm(**fields)
        sizes, flags = (form.axis, form.pad_to or 0), (form.shared, form.listed)
        known = all(type(size) is int and 0 <= size <= _MOST_ROWS for size in sizes)
        if not (known and all(type(flag) is bool for flag in flags) and isinstance(form.mask, str | None)):
            raise ValueError(f"the form of {name!r} is not known")
        forms[name] = form
    return forms
