"""What a caller may ask for: bad requests are refused by name, pictures all take one way in."""

import pytest
import tiny
from PIL import Image

from varifocal.errors import BadImage, BadRequest
from varifocal.request import Message, Request, ask
from varifocal.sampling import Sampling


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens must be a count from 1, got True"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs must be .* got True"),
        ({"max_new_tokens": 4, "sampling": Sampling(min_new_tokens=5)}, "min_new_tokens is 5"),
    ],
)
def test_bad_requests_are_refused_by_name(settings, named):
    with pytest.raises(BadRequest, match=named):
        ask(**{"prompt": "x", **settings})


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (Message("assistant", ("x",)),),
        (Message("user", ("x",)), Message("system", ("x",))),
    ],
)
def test_a_request_must_end_with_a_user_message(messages):
    with pytest.raises(BadRequest, match="user message"):
        Request(messages=messages)


def test_one_stop_text_is_not_taken_apart():
    assert ask("x", stop="total").stop == ("total",)


def test_a_path_is_a_picture_and_one_picture_needs_no_list(tmp_path):
    path = tmp_path / "a.png"
    tiny.picture().save(path)
    for images in (path, [path], str(path), path.read_bytes(), Image.open(path)):
        (image,) = ask("x", images).images
        assert image.tobytes() == tiny.picture().tobytes()
    with pytest.raises(BadImage, match="nosuch"):
        ask("x", [tmp_path / "nosuch.png"])


def test_pillow_images_are_shown_as_the_loader_shows_files(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    tiny.picture().save(path, exif=exif)
    assert ask("x", [Image.open(path)]).images[0].size == (96, 192)


def test_a_picture_beyond_the_limit_is_taken_where_the_caller_raises_it_and_the_error_says_so():
    large = Image.new("1", (8200, 8000))
    with pytest.raises(BadImage, match=r"Scale it down.*max_pixels= of load_image and ask"):
        ask("x", large)
    (image,) = ask("x", large, max_pixels=66_000_000).images
    assert image.size == (8200, 8000)


def test_seeds_are_whole_numbers():
    with pytest.raises(BadRequest, match="seed"):
        Sampling(seed=2**63)
