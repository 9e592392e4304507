"""The one image loader: whatever holds a picture becomes the RGB pixels a viewer shows.

Rules, the same for the library, the command line, the trainer and the benchmark:

- Formats: PNG, JPEG, GIF, WebP, BMP, TIFF, PPM/PGM/PBM and AVIF; told by content, not by name.
- Limits: `max_pixels`, checked on the header before any pixel is decoded; `MAX_BYTES`; and no side
  more than `MAX_ASPECT` times the other. Within these every size is taken as it is, 1x1 too:
  the processors of the targets resize. (LLaVA-NeXT digests even more extreme strips, but shrinks
  them to nothing; Qwen-VL refuses them by this same number.)
- Orientation from EXIF is applied. A damaged EXIF block means upright, as in viewers.
- Transparency is blended on white, with straight 8-bit arithmetic.
- 16-bit grey becomes `round(v / 257)`; 16-bit colour keeps its high byte (so does Pillow).
- CMYK becomes `(255 - ink) * (255 - black) / 255`; JPEGs store inverted ink, which is undone.
- An animation or a file of many pages gives its first frame.
- Left out: colour profiles and gamma, which the targets' own processors do not apply either.
"""

import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ExifTags import Base as Tag

from varifocal.errors import BadImage

MAX_PIXELS = 64_000_000  # width times height
MAX_BYTES = 256 * 2**20  # of the file, compressed or not
MAX_ASPECT = 200  # longest side over shortest

_FORMATS = "PNG, JPEG, GIF, WebP, BMP, TIFF, PPM or AVIF"
_WHITE = (255, 255, 255, 255)

# We call the openers ourselves: `Image.open` would warn or raise by a global limit of its own.
_OPENERS: tuple[tuple[bytes, str, Callable[[BytesIO], ImageFile.ImageFile]], ...] = (
    (rb"\x89PNG\r\n\x1a\n", "PNG", PngImagePlugin.PngImageFile),
    (rb"\xff\xd8\xff", "JPEG", JpegImagePlugin.jpeg_factory),
    (rb"GIF8[79]a", "GIF", GifImagePlugin.GifImageFile),
    (rb"RIFF.{4}WEBP", "WebP", WebPImagePlugin.WebPImageFile),
    (rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\x00{3}", "BMP", BmpImagePlugin.BmpImageFile),
    (rb"II[*+]\x00|MM\x00[*+]", "TIFF", TiffImagePlugin.TiffImageFile),
    (rb"P[1-6][\s#]", "PPM", PpmImagePlugin.PpmImageFile),
    (rb".{4}ftyp(.{4})*?avi[fs]", "AVIF", AvifImagePlugin.AvifImageFile),
)

_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (rb"version https://git-lfs", "a Git LFS pointer; run `git lfs pull`"),
    (rb".{4}ftyp(.{4})*?(hei[cxms]|mif1)", "an HEIC picture"),
    (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*(<!DOCTYPE svg|<svg)", "an SVG drawing"),
    (rb"\s*(<!doctype html|<html)", "an HTML page"),
    (rb"%PDF", "a PDF"),
    (rb".{4}ftyp|\x1a\x45\xdf\xa3", "a video"),
    (rb"[\x09\x0a\x0d\x20-\x7e]+\Z", "plain text"),
)

_TURNS = {  # EXIF orientation: what brings the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def load_image(
    source: str | Path | bytes | Image.Image,
    *,
    max_pixels: int = MAX_PIXELS,
    name: str = "",
) -> Image.Image:
    """The picture in `source` (a path, a file's bytes or a Pillow image) as a new RGB image.

    `name` is what errors call the picture; by default its path. A Pillow image is not changed,
    and is taken at the frame where it stands. Raises `BadImage`. Safe to call from many threads.
    """
    name = name or _name_of(source)
    try:
        if isinstance(source, Image.Image):
            return _rgb_of(source, max_pixels=max_pixels)
        data = source if isinstance(source, bytes) else _read(source)
        with _opened(data) as image:
            return _rgb_of(image, max_pixels=max_pixels)
    except BadImage as error:
        raise BadImage(f"{name}: {error}") from error.__cause__


def _name_of(source: str | Path | bytes | Image.Image) -> str:
    if isinstance(source, Image.Image):
        return "picture in memory"
    if isinstance(source, bytes):
        return f"picture of {len(source)} bytes"
    text = str(source)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _read(source: str | Path) -> bytes:
    """The bytes of a file, pipe or device; one byte over `MAX_BYTES` at most."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://|data:", str(source)):
        raise BadImage("wanted a file, got an address. Save the picture and give its path.")
    try:
        with open(source, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise BadImage("wanted a picture, but there is no such file. Check the path.") from error
    except IsADirectoryError as error:
        raise BadImage("wanted a picture, got a folder. Name one file in it.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise BadImage(f"wanted a readable file, but {_reason(error)}. Check the path.") from error


def _opened(data: bytes) -> ImageFile.ImageFile:
    """The picture with its header read and no pixel decoded."""
    if not data:
        raise BadImage(f"wanted {_FORMATS}, got zero bytes. Was it copied or piped completely?")
    if len(data) > MAX_BYTES:
        raise BadImage(
            f"wanted at most {MAX_BYTES // 2**20} MiB, got more. Save it smaller or as JPEG."
        )
    for signature, kind, opener in _OPENERS:
        if re.match(signature, data[:256], re.DOTALL):
            try:
                return opener(BytesIO(data))
            except Exception as error:  # openers raise nearly anything on damaged bytes
                raise _damaged(kind, error) from error
    raise BadImage(
        f"wanted {_FORMATS}, got {_stranger(data)}. Convert it, for instance to PNG, and try again."
    )


def _stranger(data: bytes) -> str:
    for signature, kind in _STRANGERS:
        if re.match(signature, data[:256], re.DOTALL | re.IGNORECASE):
            return kind
    return f"{len(data)} bytes of an unknown kind (first: {data[:8].hex(' ')})"


def _rgb_of(image: Image.Image, *, max_pixels: int) -> Image.Image:
    """The pixels a viewer shows; the size is checked first."""
    _check_size(*image.size, max_pixels=max_pixels)
    try:
        image.load()
        picture = _upright(_opaque(image), _orientation(image))
    except BadImage:
        raise
    except Exception as error:  # decoders raise nearly anything on damaged bytes
        raise _damaged(getattr(image, "format", None) or "picture", error) from error
    picture.info = {}  # a second load must not turn it again
    return picture


def _check_size(width: int, height: int, *, max_pixels: int) -> None:
    if min(width, height) < 1:
        raise BadImage(f"wanted at least one pixel, got {width}x{height}. Use another picture.")
    if width * height > max_pixels:
        raise BadImage(
            f"wanted at most {max_pixels} pixels, got {width}x{height} = {width * height}. "
            "Scale it down: targets read far fewer, so nothing is lost. In Python, max_pixels= of "
            "load_image and ask raises this limit for files that you trust."
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadImage(
            f"wanted sides within 1:{MAX_ASPECT}, got {width}x{height}. "
            "Cut the strip into pieces or add a margin."
        )


def _opaque(image: Image.Image) -> Image.Image:
    """A new RGB image: samples scaled to 8 bits, transparency blended on white."""
    if image.mode == "F":
        raise BadImage(
            "wanted integer samples, got floating point, which has no agreed white. "
            "Save it with 8 or 16 bits."
        )
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_16_bit(image).convert("RGB")
    if image.mode == "La":  # Pillow has no direct way from premultiplied grey
        image = image.convert("LA")
    if not image.has_transparency_data:
        return image.convert("RGB")
    colours = image.convert("RGBA")
    page = Image.new("RGBA", colours.size, _WHITE)
    return Image.alpha_composite(page, colours).convert("RGB")


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Grey of 16 bits in 8; Pillow's own conversion would clip at 255."""
    samples = np.asarray(image).astype(np.int32)
    if samples.min() < 0 or samples.max() > 65535:
        raise BadImage(
            f"wanted grey samples of 16 bits, got {samples.min()} to {samples.max()}. "
            "Save it with 8 or 16 bits."
        )
    grey = ((samples + 128) // 257).astype(np.uint8)
    if isinstance(clear := image.info.get("transparency"), int):
        grey[samples == clear] = 255
    return Image.fromarray(grey)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(Tag.Orientation, 1))
    except Exception:  # damaged EXIF: viewers show the picture as stored
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def _damaged(kind: str, error: Exception) -> BadImage:
    return BadImage(
        f"wanted a whole {kind}, got a damaged or cut one ({_reason(error)}). "
        "Copy or export it again."
    )


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    return text.strip().rstrip(".").lower()
