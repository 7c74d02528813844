"""Reading clips: which frames there are and when, and the pixels of those that are asked for."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

import numpy as np
import pytest
from PIL import Image

from precook.sources import clips
from precook.sources.clips import decode_frames, read_clip
from precook.sources.pictures import RefusedError, decode
from precook.values import Pixels
from tests.support.clips import animation, clip, decoded, frame, number_level, pyav, turned, with_matrix

CODECS = {
    "h264": {"codec": "libx264", "form": "mp4"},
    "h265": {"codec": "libx265", "form": "mp4", "options": {"x265-params": "log-level=none"}},
    "vp8": {"codec": "libvpx", "form": "webm"},
    "vp9": {"codec": "libvpx-vp9", "form": "webm"},
    "ffv1": {"codec": "ffv1", "form": "matroska", "pixels": "bgr0"},
    "prores": {"codec": "prores_ks", "form": "mov", "pixels": "yuv422p10le"},
    "mpeg4": {"codec": "mpeg4", "form": "avi"},
}
TURNS = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}


def pixels_of(content: bytes, numbers: list[int]) -> dict[int, Pixels]:
    return {number: np.asarray(picture.image) for number, picture in decode_frames(content, numbers)}


def seconds(content: bytes) -> list[float]:
    times = read_clip(content).times
    return [int(tick) * times.numerator / times.denominator for tick in times.ticks]


@pytest.mark.parametrize("name", CODECS)
def test_frames_of_every_codec_are_found_by_number(name: str) -> None:
    """Whatever the container and codec, a frame is the one with that number, as PyAV itself decodes it."""
    content = clip(12, **CODECS[name])  # type: ignore[arg-type]
    facts = read_clip(content)
    assert (facts.width, facts.height, facts.times.count, facts.orientation) == (64, 48, 12, 1)
    assert seconds(content) == pytest.approx([number / 16 for number in range(12)], abs=0.001)
    shown = pixels_of(content, [7, 3, 3, 11])
    assert list(shown) == [3, 7, 11]
    for number, pixels in shown.items():
        np.testing.assert_array_equal(pixels, decoded(content)[number])
        assert abs(int(pixels[:, :, 2].mean()) - number_level(number)) < 12, "and that is the frame that was drawn"


def test_an_even_rate_counts_frames() -> None:
    """An even rate is remembered as one number, in whatever ticks the container counts."""
    times = read_clip(clip(5, rate=24)).times
    assert times.ticks.tolist() == [0, 1, 2, 3, 4]
    assert (times.numerator, times.denominator) == (1, 24)


def test_a_rate_that_varies_is_read_as_it_is() -> None:
    """Time stamps are those of the frames, not those that a mean rate would give."""
    stamps = [0, 40, 80, 200, 240, 900, 1000]
    content = clip(times=stamps, form="matroska")
    assert seconds(content) == [stamp / 1000 for stamp in stamps]


@pytest.mark.parametrize("size", [(65, 47), (33, 64), (17, 19)])
def test_odd_sizes_are_read_to_the_last_pixel(size: tuple[int, int]) -> None:
    """No column or row is lost where a side is odd."""
    content = clip(3, codec="libvpx-vp9", form="webm", size=size, pixels="yuv444p")
    facts = read_clip(content)
    assert (facts.width, facts.height) == size
    assert pixels_of(content, [1])[1].shape == (size[1], size[0], 3)


@pytest.mark.parametrize("degrees", TURNS)
def test_a_phone_video_is_turned_upright(degrees: int) -> None:
    """The display matrix is applied: sizes and pixels are those that a player shows."""
    upright = clip(4)
    content = turned(upright, degrees)
    facts = read_clip(content)
    assert (facts.width, facts.height) == ((48, 64) if degrees != 180 else (64, 48))
    plain = Image.fromarray(decoded(upright)[2])
    np.testing.assert_array_equal(pixels_of(content, [2])[2], np.asarray(plain.transpose(TURNS[degrees])))


def test_a_mirrored_video_is_mirrored_and_a_crooked_one_refused() -> None:
    """A matrix that is no right angle would need pixels that are not there."""
    one = 1 << 16
    plain = clip(2)
    mirrored = with_matrix(plain, (-one, 0, 0, 0, one, 0, 64 * one, 0, 1 << 30))
    np.testing.assert_array_equal(pixels_of(mirrored, [0])[0], decoded(plain)[0][:, ::-1])
    with pytest.raises(RefusedError, match="askew"):
        read_clip(with_matrix(plain, (46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30)))


@pytest.mark.parametrize("form", ["GIF", "WEBP"])
def test_animated_pictures_are_clips(form: str) -> None:
    """Each frame is shown as long as it says."""
    content = animation(4, form=form, duration=[50, 100, 200, 50])
    assert seconds(content) == [0, 0.05, 0.15, 0.35]
    shown = pixels_of(content, [0, 2])
    assert abs(int(shown[2][:, :, 2].mean()) - number_level(2)) < 12
    np.testing.assert_array_equal(shown[0], decode(content), "its first frame is its picture")


def test_what_is_transparent_in_any_frame_shows_the_background() -> None:
    """The background counts where a later frame is transparent, and only there."""
    content = animation(3, form="WEBP", alpha=True)
    assert read_clip(content).alpha
    assert not read_clip(animation(3, form="WEBP")).alpha
    shown = {number: np.asarray(one.image) for number, one in decode_frames(content, [0, 1], background=(9, 8, 7))}
    assert shown[1][0, 0].tolist() == [9, 8, 7]
    assert shown[0][0, 0].tolist() != [9, 8, 7]


def test_a_still_is_a_clip_of_one_frame() -> None:
    """A PNG among videos is one frame, with the pixels that it has as a picture."""
    file = io.BytesIO()
    Image.fromarray(frame(3)).save(file, "PNG")
    facts = read_clip(file.getvalue())
    assert (facts.width, facts.height, facts.times.count) == (64, 48, 1)
    np.testing.assert_array_equal(pixels_of(file.getvalue(), [0])[0], frame(3))


def test_sound_is_noticed_and_left_alone() -> None:
    """A video with sound has the same frames, and says that it has sound."""
    content = clip(16, audio=True)
    assert read_clip(content).audio
    assert not read_clip(clip(16)).audio
    assert read_clip(content).times.count == 16


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("name", ["h264", "vp9", "ffv1", "mpeg4", "gif", "webp"])
def test_a_video_that_ends_early_is_refused(name: str, part: float) -> None:
    """What was cut off is told, never taken for a shorter clip."""
    content = clip(20, **CODECS[name]) if name in CODECS else animation(6, form=name.upper())  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="cut off"):
        read_clip(content[: int(len(content) * part)])


def test_a_video_with_its_table_in_front_that_ends_early_is_refused() -> None:
    """The file that was half downloaded plays, and is refused all the same."""
    content = clip(30, options={"movflags": "faststart"})
    with pytest.raises(RefusedError, match=r"cut off: its last .* bytes are missing"):
        read_clip(content[:-100])


def test_damage_inside_is_refused() -> None:
    """A frame that the decoder would fill up with its neighbours is no frame."""
    content = bytearray(clip(20, size=(320, 240)))
    middle = len(content) // 2
    content[middle : middle + 8] = b"\xa5" * 8
    with pytest.raises(RefusedError, match="damaged: frame"):
        read_clip(bytes(content))


def test_a_video_without_frames_is_refused() -> None:
    """Neither a file with sound alone nor one without a frame is a clip."""
    with pytest.raises(RefusedError, match="no pictures to show"):
        read_clip(sound_alone())
    with pytest.raises(RefusedError, match=r"it has no frames|not a readable video"):
        read_clip(clip(0, codec="ffv1", form="matroska", pixels="bgr0"))


def sound_alone() -> bytes:
    av = pyav()
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        sound = container.add_stream("aac", rate=8000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 8000
        container.mux(sound.encode(silence))
        container.mux(sound.encode())
    return file.getvalue()


def test_a_frame_that_is_not_there_is_refused() -> None:
    """Asking for more than there is gives an error and no frame twice."""
    with pytest.raises(RefusedError, match="frame 9 is not there"):
        list(decode_frames(clip(5), [1, 9]))


def test_playlists_are_no_videos() -> None:
    """A text that has FFmpeg read other files is not handed to it."""
    for text in (b"#EXTM3U\nfile:///etc/passwd\n", b"ffconcat version 1.0\nfile /etc/passwd\n"):
        with pytest.raises(RefusedError, match="not a picture"):
            read_clip(text)


def test_without_pyav_stills_and_animations_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only videos need the extra, and say so."""
    monkeypatch.setattr(clips, "has_pyav", lambda: False)
    assert read_clip(animation(3)).times.count == 3
    with pytest.raises(RefusedError, match=r"pip install 'precook\[video\]'"):
        read_clip(clip(3))


@pytest.mark.parametrize("name", ["h264", "vp9", "ffv1", "mpeg4", "gif", "webp"])
def test_changed_bytes_are_read_or_refused(name: str) -> None:
    """Whatever a file was made of, reading it ends with facts or with a reason, and so does decoding its frames."""
    whole = clip(6, **CODECS[name]) if name in CODECS else animation(4, form=name.upper())  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole)
        for place in random.integers(0, len(content), int(random.choice([1, 4, 30]))).tolist():
            content[place] = int(random.integers(0, 256))
        try:
            facts = read_clip(bytes(content))
            assert facts.width > 0
            assert facts.height > 0
            assert facts.times.count > 0
            list(decode_frames(bytes(content), [0, facts.times.count - 1]))
        except RefusedError as error:
            assert str(error).isprintable()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_machine_that_is_short_of_something_refuses_no_clip(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal would be remembered with the clip's content; this is an error of the moment."""
    av, content = pyav(), clip(2)
    assert read_clip(content).times.count == 2

    def fail(*_: Any, **__: Any) -> None:
        av.error.err_check(-number)

    with monkeypatch.context() as patched:
        patched.setattr(av, "open", fail)
        with pytest.raises(OSError, match=os.strerror(number)):
            read_clip(content)
    assert read_clip(content).times.count == 2


def test_frames_that_are_larger_than_the_container_says_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on pixels holds for what is decoded, whatever stands in the header of a small file."""
    content = clip(2, codec="libvpx", form="webm")
    said = content.replace(b"\xb0\x81\x40", b"\xb0\x81\x10").replace(b"\xba\x81\x30", b"\xba\x81\x10")
    assert said != content
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 512)
    for lying in (content, said):
        with pytest.raises(RefusedError):
            read_clip(lying)
        with pytest.raises(RefusedError):
            list(decode_frames(lying, [0, 1]))
