"""Every picture a user may hand over becomes the pixels a viewer shows, or a clear refusal."""

import os
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from PIL.ExifTags import Base as Tag

import varifocal.images
from varifocal.errors import BadImage, VarifocalError
from varifocal.images import MAX_ASPECT, MAX_PIXELS, load_image

RED, BLUE, WHITE, BLACK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def pixels(source: str | Path | bytes | Image.Image) -> list[list[tuple[int, ...]]]:
    """The rows of the loaded picture."""
    return [[tuple(p) for p in row] for row in np.asarray(load_image(source)).tolist()]


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, bits: int, colour: int, rows: bytes, **chunks: bytes) -> bytes:
    """A PNG by hand, for headers and depths that Pillow does not write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    middle = b"".join(chunk(kind.encode(), body) for kind, body in chunks.items())
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + middle
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def marker() -> Image.Image:
    """3 wide, 2 high, white; red at the left end of the top row, blue at its right end."""
    image = Image.new("RGB", (3, 2), WHITE)
    image.putpixel((0, 0), RED)
    image.putpixel((2, 0), BLUE)
    return image


def refusal(source: str | Path | bytes | Image.Image, **options: object) -> str:
    with pytest.raises(BadImage) as caught:
        load_image(source, **options)
    assert isinstance(caught.value, VarifocalError)
    return str(caught.value)


# --- sources ---------------------------------------------------------------------------------


def test_path_string_bytes_and_pillow_give_the_same_picture(tmp_path: Path):
    path = tmp_path / "marker.png"
    marker().save(path)
    expected = np.asarray(marker()).tolist()
    for source in (path, str(path), path.read_bytes(), marker(), Image.open(path)):
        loaded = load_image(source)
        assert loaded.mode == "RGB"
        assert np.asarray(loaded).tolist() == expected


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP", "AVIF", "JPEG"])
def test_each_format_is_told_by_its_content(tmp_path: Path, kind: str):
    path = tmp_path / "no_telling_name.dat"
    path.write_bytes(encoded(Image.new("RGB", (16, 16), RED), kind))
    assert np.abs(np.asarray(load_image(path)).astype(int) - RED).max() <= 3  # lossy ones


def test_a_pillow_image_is_neither_changed_nor_shared():
    source = marker()
    load_image(source).putpixel((0, 0), BLACK)
    assert source.getpixel((0, 0)) == RED


def test_loading_twice_equals_loading_once():
    exif = Image.Exif()
    exif[Tag.Orientation] = 6
    once = load_image(encoded(marker(), "PNG", exif=exif))
    assert pixels(once) == UPRIGHT[6]


def test_a_pipe_is_read_as_a_file(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = encoded(marker(), "PNG")
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    assert load_image(pipe).size == (3, 2)
    writer.join()


def test_many_threads_load_the_same_file(tmp_path: Path):
    path = tmp_path / "marker.png"
    marker().resize((300, 200), Image.Resampling.NEAREST).save(path)
    expected, found = load_image(path).tobytes(), []
    threads = [
        threading.Thread(target=lambda: found.append(load_image(path).tobytes())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


# --- orientation -----------------------------------------------------------------------------

W, R, B = WHITE, RED, BLUE
UPRIGHT = {  # the marker is stored as  R W B / W W W
    1: [[R, W, B], [W, W, W]],
    2: [[B, W, R], [W, W, W]],
    3: [[W, W, W], [B, W, R]],
    4: [[W, W, W], [R, W, B]],
    5: [[R, W], [W, W], [B, W]],
    6: [[W, R], [W, W], [W, B]],
    7: [[W, B], [W, W], [W, R]],
    8: [[B, W], [W, W], [R, W]],
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", sorted(UPRIGHT))
def test_exif_orientation_is_applied(kind: str, orientation: int):
    exif = Image.Exif()
    exif[Tag.Orientation] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(marker(), kind, exif=exif, **options)
    assert pixels(data) == UPRIGHT[orientation]
    assert pixels(Image.open(BytesIO(data))) == UPRIGHT[orientation]


@pytest.mark.parametrize("orientation", sorted(UPRIGHT))
def test_exif_orientation_of_a_jpeg_is_applied(orientation: int):
    exif = Image.Exif()
    exif[Tag.Orientation] = orientation
    large = marker().resize((48, 32), Image.Resampling.NEAREST)
    data = encoded(large, "JPEG", exif=exif, quality=100, subsampling=0)
    seen = np.asarray(load_image(data)).astype(int)[8::16, 8::16]
    assert np.abs(seen - np.asarray(UPRIGHT[orientation])).max() <= 3


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_unknown_orientation_means_upright(orientation: int):
    exif = Image.Exif()
    exif[Tag.Orientation] = orientation
    assert pixels(encoded(marker(), "PNG", exif=exif)) == UPRIGHT[1]


def test_damaged_exif_means_upright():
    assert pixels(png(1, 1, 8, 2, b"\0\xff\0\0", eXIf=b"II*\0\xff\xff\xff\xff")) == [[RED]]
    assert pixels(png(1, 1, 8, 2, b"\0\xff\0\0", eXIf=b"nonsense")) == [[RED]]


def test_orientation_and_transparency_go_together():
    exif = Image.Exif()
    exif[Tag.Orientation] = 6
    image = marker().convert("RGBA")
    image.putpixel((2, 0), (0, 0, 0, 0))
    assert pixels(encoded(image, "PNG", exif=exif)) == [[W, R], [W, W], [W, W]]


# --- transparency ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGBA", (255, 0, 0, 128), (255, 127, 127)),
        ("RGBA", (255, 0, 0, 0), WHITE),
        ("RGBA", (1, 2, 3, 255), (1, 2, 3)),
        ("RGBa", (128, 0, 0, 128), (255, 127, 127)),
        ("LA", (0, 128), (127, 127, 127)),
        ("LA", (77, 255), (77, 77, 77)),
        ("La", (0, 128), (127, 127, 127)),
    ],
)
def test_alpha_is_blended_on_white(mode: str, colour: tuple[int, ...], expected: tuple[int, ...]):
    assert pixels(Image.new(mode, (1, 1), colour)) == [[expected]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_half_transparent_red_file_becomes_pink(kind: str):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 128)), kind, **options)
    assert pixels(data) == [[(255, 127, 127)] * 2] * 2


def paletted() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 0, 255, 0, 0, 0])
    image.putdata([0, 1, 2])
    return image


def test_a_palette_is_looked_up():
    assert pixels(encoded(paletted(), "PNG")) == [[RED, BLUE, BLACK]]
    assert pixels(encoded(paletted(), "BMP")) == [[RED, BLUE, BLACK]]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_one_clear_palette_entry_becomes_white(kind: str):
    assert pixels(encoded(paletted(), kind, transparency=2)) == [[RED, BLUE, WHITE]]


def test_palette_entries_with_alpha_are_blended():
    data = encoded(paletted(), "PNG", transparency=bytes([128, 255, 0]))
    assert pixels(data) == [[(255, 127, 127), BLUE, WHITE]]


def test_palette_with_an_alpha_band_is_blended():
    image = paletted().convert("PA")
    image.putalpha(Image.new("L", (3, 1), 128))
    assert pixels(image) == [[(255, 127, 127), (127, 127, 255), (127, 127, 127)]]


def test_a_clear_colour_becomes_white():
    assert pixels(png(2, 1, 8, 2, b"\0" + bytes([9, 9, 9, *BLUE]), tRNS=bytes([0, 9] * 3))) == [
        [WHITE, BLUE]
    ]
    assert pixels(png(2, 1, 8, 0, b"\0\x07\x08", tRNS=b"\0\x07")) == [[WHITE, (8, 8, 8)]]
    assert pixels(png(2, 1, 16, 0, b"\0" + struct.pack(">2H", 257, 514), tRNS=b"\x01\x01")) == [
        [WHITE, (2, 2, 2)]
    ]


# --- depths and colour spaces ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_not_clipped(kind: str):
    ramp = np.tile(np.arange(256, dtype=np.uint16) * 257, (2, 1))
    seen = np.asarray(load_image(encoded(Image.fromarray(ramp), kind)))
    assert seen[0].tolist() == [[v, v, v] for v in range(256)]


@pytest.mark.parametrize("mode", ["I", "I;16", "I;16B", "I;16L"])
def test_16_bit_pillow_images_are_scaled(mode: str):
    assert pixels(Image.new(mode, (1, 1), 65535)) == [[WHITE]]
    assert pixels(Image.new(mode, (1, 1), 32768)) == [[(128, 128, 128)]]
    assert pixels(Image.new(mode, (1, 1), 128)) == [[BLACK]]
    assert pixels(Image.new(mode, (1, 1), 129)) == [[(1, 1, 1)]]


def test_16_bit_pgm_is_scaled():
    assert pixels(b"P5\n2 1\n1023\n" + struct.pack(">2H", 1023, 0)) == [[WHITE, BLACK]]


def test_16_bit_colour_keeps_its_high_byte():
    row = b"\0" + struct.pack(">3H", 65535, 0x80FF, 0)
    assert pixels(png(1, 1, 16, 2, row)) == [[(255, 128, 0)]]


@pytest.mark.parametrize(("value", "bound"), [(70000, "70000"), (-1, "-1")])
def test_32_bit_grey_is_refused(value: int, bound: str):
    assert bound in refusal(encoded(Image.new("I", (2, 2), value), "TIFF"))


def test_floating_point_is_refused():
    assert "no agreed white" in refusal(encoded(Image.new("F", (2, 2), 0.5), "TIFF"))


def test_1_bit_becomes_black_and_white():
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    for kind in ("PNG", "TIFF", "BMP", "PPM"):
        assert pixels(encoded(image, kind)) == [[BLACK, WHITE]]


def test_grey_fills_the_three_channels():
    assert pixels(Image.new("L", (1, 1), 77)) == [[(77, 77, 77)]]


INKS = [
    ((0, 255, 255, 0), RED),
    ((255, 255, 0, 0), BLUE),
    ((0, 0, 0, 0), WHITE),
    ((0, 0, 0, 255), BLACK),
]


@pytest.mark.parametrize(("ink", "expected"), INKS)
def test_cmyk_tiff_becomes_rgb(ink: tuple[int, ...], expected: tuple[int, ...]):
    assert pixels(encoded(Image.new("CMYK", (1, 1), ink), "TIFF")) == [[expected]]


@pytest.mark.parametrize(("ink", "expected"), INKS)
def test_inverted_cmyk_jpeg_becomes_rgb(ink: tuple[int, ...], expected: tuple[int, ...]):
    data = encoded(Image.new("CMYK", (16, 16), ink), "JPEG", quality=100)
    assert b"Adobe" in data  # whose inks are stored inverted
    assert np.abs(np.asarray(load_image(data)).astype(int) - expected).max() <= 2


def test_mixed_inks_follow_the_documented_formula():
    ink = (100, 50, 0, 30)
    expected = [(255 - part) * (255 - ink[3]) / 255 for part in ink[:3]]
    seen = np.asarray(load_image(Image.new("CMYK", (1, 1), ink)))[0, 0]
    assert np.abs(seen - expected).max() <= 1


# --- animations ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_gives_its_first_frame(kind: str):
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE, BLACK)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(BytesIO(data)).n_frames == 3
    assert pixels(data) == [[RED] * 4] * 4


# --- limits ----------------------------------------------------------------------------------


def test_a_bomb_is_refused_by_its_header():
    bomb = png(20000, 20000, 8, 2, b"")  # decoding it would fail with another message
    message = refusal(bomb)
    assert "20000x20000" in message and str(MAX_PIXELS) in message


def test_a_bomb_causes_no_warning():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        refusal(png(11000, 9000, 8, 2, b""))
    assert seen == []


def test_the_pixel_limit_is_exact_and_can_be_set():
    image = Image.new("RGB", (10, 10))
    assert load_image(image, max_pixels=100).size == (10, 10)
    assert "10x10 = 100" in refusal(image, max_pixels=99)


def test_more_pixels_than_pillow_allows_can_be_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert load_image(encoded(Image.new("RGB", (10, 10)), "PNG")).size == (10, 10)


@pytest.mark.parametrize("source", ["file", "bytes"])
def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str):
    path = tmp_path / "large.bmp"
    marker().save(path)
    monkeypatch.setattr(varifocal.images, "MAX_BYTES", 20)
    assert "MiB" in refusal(path if source == "file" else path.read_bytes())


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (MAX_ASPECT, 1), (1, MAX_ASPECT), (600, 3)])
def test_small_and_long_pictures_are_taken_as_they_are(size: tuple[int, int]):
    assert load_image(encoded(Image.new("RGB", size), "PNG")).size == size


@pytest.mark.parametrize("size", [(30000, 20), (20, 30000), (MAX_ASPECT + 1, 1)])
def test_strips_are_refused_with_the_rule(size: tuple[int, int]):
    message = refusal(encoded(Image.new("RGB", size), "PNG"))
    assert f"1:{MAX_ASPECT}" in message and f"{size[0]}x{size[1]}" in message


def test_a_picture_without_pixels_is_refused():
    assert "0x5" in refusal(Image.new("RGB", (0, 5)))


# --- files that are no pictures --------------------------------------------------------------

STRANGERS: dict[str, tuple[bytes, str]] = {
    "empty.png": (b"", "zero bytes"),
    "note.png": (b"hello there\n", "plain text"),
    "page.jpg": (b"<!DOCTYPE html><html></html>", "HTML"),
    "paper.png": (b"%PDF-1.7\n", "PDF"),
    "drawing.svg": (b'<?xml version="1.0"?><svg xmlns="x"/>', "SVG"),
    "phone.heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
    "clip.png": (b"\0\0\0\x18ftypisom\0\0\0\0isom", "video"),
    "lfs.png": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "noise.png": (bytes(range(128, 256)), "80 81 82"),
}


@pytest.mark.parametrize("name", sorted(STRANGERS))
def test_a_stranger_is_named_with_what_to_do(tmp_path: Path, name: str):
    content, kind = STRANGERS[name]
    path = tmp_path / name
    path.write_bytes(content)
    message = refusal(path)
    assert str(path) in message and kind in message and "PNG" in message


def test_missing_files_folders_and_unreadable_files_are_told_apart(tmp_path: Path):
    loop = tmp_path / "loop.png"
    loop.symlink_to(loop)
    assert "no such file" in refusal(tmp_path / "missing.png")
    assert "folder" in refusal(tmp_path)
    assert "readable" in refusal(loop)
    assert "readable" in refusal("null\0byte.png")
    assert "readable" in refusal("x" * 5000 + ".png")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_refused(tmp_path: Path):
    path = tmp_path / "secret.png"
    marker().save(path)
    path.chmod(0)
    assert "permission denied" in refusal(path)


@pytest.mark.parametrize("address", ["https://example.org/a.png", "data:image/png;base64,AAAA"])
def test_an_address_is_not_a_path(address: str):
    assert "address" in refusal(address)


def noisy(kind: str) -> bytes:
    samples = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    return encoded(Image.fromarray(samples), kind)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM"])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str, share: float):
    data = noisy(kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(data[: max(3, int(len(data) * share))])
    message = refusal(path)
    assert str(path) in message and re.search(r"damaged or cut|wanted PNG", message)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.filterwarnings("ignore")  # Pillow reports some of the damage as warnings too
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM"])
def test_flipped_bytes_give_a_picture_or_a_refusal(kind: str):
    data, rng = noisy(kind), np.random.default_rng(1)
    for _ in range(40):
        damaged = bytearray(data)
        for place in rng.integers(0, min(len(data), 300), 4):
            damaged[place] ^= int(rng.integers(1, 256))
        try:
            load_image(bytes(damaged), max_pixels=1_000_000)
        except BadImage as error:
            assert str(error).startswith("picture of")


def test_errors_use_the_given_name():
    assert refusal(b"", name="standard input").startswith("standard input: ")


def test_errors_shorten_a_long_name():
    assert len(refusal("data:image/png;base64," + "A" * 10**6)) < 500


def test_pillow_keeps_its_global_settings(take_settings: Callable[[], tuple[object, ...]]):
    before = take_settings()
    load_image(encoded(marker(), "PNG"))
    refusal(b"")
    refusal(png(20000, 20000, 8, 2, b""))
    assert take_settings() == before


@pytest.fixture
def take_settings() -> Callable[[], tuple[object, ...]]:
    return lambda: (
        Image.MAX_IMAGE_PIXELS,
        ImageFile.LOAD_TRUNCATED_IMAGES,
        ImageFile.MAXBLOCK,
        list(warnings.filters),
    )
