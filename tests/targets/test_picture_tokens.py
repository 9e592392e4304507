"""One function counts the tokens of a picture: the processor's count, and the model's features."""

from functools import cache, partial

import pytest
import tiny
import torch
from checkpoints import built, families, llava_next, llava_onevision

from varifocal.request import ask
from varifocal.target import Want
from varifocal.targets import load_target

STEPS = [25 * step for step in range(1, 41)] + [336, 672, 1008]
SWEEP = [(width, height) for width in STEPS for height in STEPS]
FEW = [
    *((25, 25), (25, 1000), (1000, 25), (336, 336), (672, 336), (336, 672), (1008, 1008)),
    *((500, 375), (375, 500), (1000, 700), (700, 1000), (125, 900), (900, 125), (650, 475)),
]
SIDE = 336
PUBLISHED = {
    "llava_next": partial(
        llava_next.build,
        side=SIDE,
        grids=[[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    ),
    "llava_onevision": partial(
        llava_onevision.build,
        side=384 // 14 * 14,
        grids=[
            [384 // 14 * 14 * rows, 384 // 14 * 14 * columns]
            for rows in range(1, 7)
            for columns in range(1, 7)
        ],
        limit=9,
    ),
}


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, tmp_path_factory):
    """A tiny checkpoint with the tiles and resolutions of the published ones, and its processor."""
    folder = tmp_path_factory.mktemp(request.param)
    PUBLISHED[request.param](folder)
    target = load_target(str(folder), dtype=torch.float32)
    return target, families()[request.param].reference(folder)


def check(target, processor, sizes):
    image_sizes = [[height, width] for width, height in sizes]
    told = processor._get_num_multimodal_tokens(image_sizes=image_sizes)["num_image_tokens"]
    assert [target.num_image_tokens(h, w) for h, w in image_sizes] == told
    for (height, width), count in zip(image_sizes, told, strict=True):
        assert features(target, height, width) == count


def features(target, height, width):
    """Visual tokens that the model's own code makes of tiles of such a picture."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    config = target.model.config
    tile, grids = config.vision_config.image_size, config.image_grid_pinpoints
    tiles = image_size_to_num_patches((height, width), grids, tile)
    made = torch.zeros(tiles, (tile // config.vision_config.patch_size) ** 2, 1)
    strategy = {"vision_feature_select_strategy": config.vision_feature_select_strategy}
    if config.model_type == "llava_onevision":
        strategy = {"vision_aspect_ratio": config.vision_aspect_ratio}
    packed, _ = target.model.model.pack_image_features(
        [made], [(height, width)], image_newline=torch.zeros(1), **strategy
    )
    return len(packed[0])


def test_tokens_equal_the_processors_count_and_the_models_features(published):
    check(*published, FEW)


@pytest.mark.slow
def test_tokens_equal_both_at_every_size_portrait_and_landscape(published):
    check(*published, SWEEP)


@cache
def target_of(name):
    return load_target(str(built(name)), dtype=torch.float32)


TILED = [n for n, f in families().items() if f.target in ("llava", "llava_next", "llava_onevision")]


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (31, 900), (900, 31), (200, 1), (1, 200)])
def test_very_small_and_very_elongated_pictures_are_read(name, size):
    target, image = target_of(name), tiny.picture(0, size)
    prompt = target.encode(ask("x", [image]))
    slots = int(prompt.is_image.sum())
    made = families()[name].reference(built(name))(
        images=image, text="<image>", return_tensors="pt"
    )
    assert slots == int((made["input_ids"] == target.model.config.image_token_id).sum()) > 0
    assert len(target.regions(prompt)) == slots
    _, seen = target.prefill(prompt, Want())  # raises if features and slots differ
    assert seen.logits.isfinite().all()


@pytest.mark.parametrize("name", [n for n in TILED if families()[n].target == "llava"])
def test_every_tower_and_choice_of_features_gives_as_many_as_counted(name):
    target = target_of(name)
    config = target.model.config
    own = config.vision_config.model_type == "clip_vision_model"
    dropped = config.vision_feature_select_strategy == "default"
    assert target.num_image_tokens(10, 10) == 16 + own - dropped
    _, seen = target.prefill(target.encode(ask("x", [tiny.picture()])), Want())
    assert seen.logits.isfinite().all()


def test_regions_follow_what_the_processor_makes_of_a_picture():
    wide = ask("x", [tiny.picture(0, (80, 40))])
    cropped, stretched = (
        [r.box for r in target_of(name).regions(target_of(name).encode(wide))]
        for name in ("llava", "llava-siglip-full")
    )
    assert (cropped[0][0], cropped[-1][2]) == (0.25, 0.75)  # the middle square
    assert (stretched[0][:2], stretched[-1][2:]) == ((0, 0), (1, 1))
    several = ask("x", [tiny.picture(0, (80, 40)), tiny.picture(1, (40, 40))])
    target = target_of("llava_onevision")
    padded = [r.box for r in target.regions(target.encode(several)) if r.image == 0]
    assert padded[:4] == [None] * 4 and padded[4][:2] == (0, 0) and padded[11][2:] == (1, 1)
