"""The demo's training: what is fed, what is learnt from it, and that it can be cut off anywhere."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedTokenizerFast

from varifocal.demo.draft_model import DraftPlan, build_draft_model
from varifocal.demo.feed import Feed
from varifocal.demo.grow import doubled
from varifocal.demo.labels import CHARACTERS, COLOUR_NAMES, KINDS, PATCH, SIDE, SLOTS, cut, label
from varifocal.demo.language import (
    LanguagePlan,
    agrees_with_transformers,
    answer_logits,
    train_language,
)
from varifocal.demo.lessons import (
    BLIND,
    Lesson,
    LessonBatches,
    Mix,
    Writer,
    batch_of,
    num_image_tokens,
)
from varifocal.demo.model import (
    Shape,
    encode_views,
    export,
    new_model,
    new_processor,
    new_tower,
    to_pixels,
)
from varifocal.demo.optimise import StackedMuon
from varifocal.demo.sample import Glyph, Sample, Thing, Turn
from varifocal.demo.score import answer, exact_fields, score
from varifocal.demo.tokenizer import chat, train_tokenizer
from varifocal.demo.tower import TowerBatches, TowerPlan, train_tower
from varifocal.drafters._weights import shipped_draft_model
from varifocal.targets import load_target

SMALL = Shape(
    tower_layers=1, tower_width=32, tower_inner=48, tower_heads=2, layers=2, width=64, inner=96
)
QUICK = LanguagePlan(cpu_seconds=1.0, mix=Mix(first=1.0, last=1.0))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(20)


@pytest.fixture(scope="module")
def model(tokenizer):
    return new_model(SMALL, tokenizer, seed=0).eval()


@pytest.fixture
def uncompiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


def picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def sample(width: int = 192, height: int = 96) -> Sample:
    turns = (
        Turn("What does the sign say?", "The sign says FOX 12.", ("FOX 12",)),
        Turn("Is it red?", "No, it is blue.", ("No", "blue")),
    )
    return Sample("s", "text", picture(width, height), turns)


def lessons_of(tokenizer, *sizes: tuple[int, int]) -> list[Lesson]:
    writer = Writer(tokenizer)
    return [writer.lesson(sample(*size), sample(*size).turns) for size in sizes]


@pytest.mark.parametrize(
    "text", ["Grüße, 日本語 😀\n\ttab", "a red star", "KR-482 IS 7.50", "\x00é"]
)
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_printed_text_is_spelt_character_by_character(tokenizer):
    printed = "FOXLANE12.50KR-482"
    assert tokenizer.tokenize(printed) == list(printed)


def test_the_vocabulary_is_small_and_has_no_reserved_holes(tokenizer):
    assert len(tokenizer) <= 2048
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_a_lesson_has_the_ids_and_pixels_of_the_processor(tokenizer):
    drawn_sample = sample()
    processor = new_processor(tokenizer)
    turns = [(turn.question, turn.answer) for turn in drawn_sample.turns]
    text = processor.apply_chat_template(chat(turns))
    theirs = processor(images=drawn_sample.image, text=text, return_tensors="pt")
    (ours,) = lessons_of(tokenizer, (192, 96))
    assert ours.ids.tolist() == theirs["input_ids"][0].tolist()
    assert torch.equal(to_pixels(torch.from_numpy(ours.views)), theirs["pixel_values"][0])


def test_only_what_the_assistant_says_is_learnt(tokenizer):
    (lesson,) = lessons_of(tokenizer, (192, 96))
    said = tokenizer.decode(lesson.ids[lesson.is_answer].tolist())
    assert said == "The sign says FOX 12.<|end|>No, it is blue.<|end|>"


@pytest.mark.parametrize(
    "size",
    [(192, 96), (96, 192), (192, 192), (288, 96), (96, 288), (640, 480), (50, 50), (1000, 90)],
)
def test_a_picture_has_as_many_tokens_as_features(tokenizer, model, size):
    inputs = new_processor(tokenizer)(
        images=picture(*size), text="<|user|><image>\nhm<|end|>", return_tensors="pt"
    )
    with torch.no_grad():
        model(**inputs)  # raises where the counts differ
    if size[0] % 96 == size[1] % 96 == 0:
        grid = (size[1] // 96, size[0] // 96)
        placeholders = inputs["input_ids"] == model.config.image_token_id
        assert placeholders.sum() == num_image_tokens(grid)


def test_our_tower_forward_is_the_last_hidden_state_of_transformers():
    tower = new_tower(SMALL, seed=0)
    views = to_pixels(torch.from_numpy(np.stack([np.asarray(picture(96, 96))] * 2)))
    with torch.no_grad():
        theirs = tower(views, output_hidden_states=True).hidden_states[-1]
        assert torch.equal(encode_views(tower, views), theirs[:, 1:])


@pytest.mark.parametrize("size", [(192, 96), (96, 288), (192, 192)])
def test_our_forward_gives_the_logits_of_transformers(tokenizer, model, size):
    lessons = lessons_of(tokenizer, size, size)
    batch = batch_of(lessons, len(lessons[0].ids) + 7, tokenizer.pad_token_id)
    assert agrees_with_transformers(model, batch) < 1e-5


@pytest.mark.parametrize("instead", ["\n", "image: a large red star"])
def test_a_lesson_without_its_picture_is_read_as_transformers_does(tokenizer, model, instead):
    drawn = sample()
    lesson = Writer(tokenizer).blind(drawn, drawn.turns, instead)
    shown = len(tokenizer.encode(instead, add_special_tokens=False))
    seen = Writer(tokenizer).lesson(drawn, drawn.turns)
    assert lesson.grid == BLIND and len(lesson.views) == 0
    assert len(lesson.ids) == len(seen.ids) - num_image_tokens(seen.grid) + shown
    assert tokenizer.decode(lesson.ids[1 : 1 + shown]) == instead
    batch = batch_of([lesson, lesson], len(lesson.ids) + 3, tokenizer.pad_token_id)
    assert agrees_with_transformers(model, batch) < 1e-4


def test_the_share_of_lessons_without_a_picture_is_half_captioned(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    drawn = LessonBatches(tmp_path, Mix(first=0.0, last=0.0, blind=0.5))
    lessons = [drawn._draw(Writer(tokenizer), index) for index in range(60)]
    blind = [lesson for lesson in lessons if lesson.grid == BLIND]
    captioned = [x for x in blind if tokenizer.decode(x.ids[1:]).startswith("image: ")]
    assert 0.4 < len(blind) / len(lessons) < 0.6 and 0.4 < len(captioned) / len(blind) < 0.6


def test_a_draft_model_has_the_tower_of_its_target_and_says_whose_it_is(
    tokenizer, model, tmp_path, uncompiled
):
    export(model, tokenizer, tmp_path / "target")
    run = tmp_path / "run"
    run.mkdir()
    plan = DraftPlan(seconds=0.5, layers=1, width=32, inner=48, heads=2, score_items=2)
    recipe = build_draft_model(run, tmp_path / "target", tmp_path / "out", plan)
    target, draft = (load_target(str(tmp_path / name)) for name in ("target", "out"))
    assert recipe["target"]["fingerprint"] == target.fingerprint
    assert shipped_draft_model(target, tmp_path / "out") == tmp_path / "out"
    assert shipped_draft_model(draft, tmp_path / "out") is None
    theirs = target.model.model.vision_tower.state_dict()
    for name, weight in draft.model.model.vision_tower.state_dict().items():
        assert torch.equal(weight, theirs[name])
    assert recipe["stages"][0]["steps"] > 0 and len(recipe["scores"]["families"]) == 9


def test_labels_name_the_patch_where_a_character_and_a_thing_stand():
    seen = label(
        Sample(
            "s",
            "tower",
            picture(192, 96),
            (),
            (Glyph("Q", (100.0, 34.0, 106.0, 44.0)), Glyph("7", (107.0, 34.0, 111.0, 44.0))),
            (Thing("star", "blue", (0.0, 0.0, 40.0, 40.0)),),
        )
    )
    # The second tile starts at x = 96: Q has its middle 7 px into it, in the middle third of the
    # first patch of the third row; 7 has it at 13, in the last third.
    found = seen.characters[2].reshape(SIDE, SIDE, SLOTS)[2, 0].tolist()
    assert found == [0, CHARACTERS.index("Q") + 1, CHARACTERS.index("7") + 1]
    assert (seen.characters[1:] > 0).sum() == 2
    colours = seen.colours[1].reshape(SIDE, SIDE)
    shapes = seen.shapes[1].reshape(SIDE, SIDE)
    assert (colours[:2, :2] == COLOUR_NAMES.index("blue") + 1).all()
    assert (shapes[:2, :2] == KINDS.index("star") + 1).all()
    assert not colours[3:].any() and not colours[:, 40 // PATCH + 1 :].any()


def test_stacked_muon_is_torchs_muon():
    shapes = [(8, 8), (8, 8), (16, 8), (8, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    stacked = StackedMuon(ours, 0.02, 0.1)
    single = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for weight, twin in zip(ours, theirs, strict=True):
            weight.grad = torch.randn_like(weight)
            twin.grad = weight.grad.clone()
        stacked.step()
        single.step()
    for weight, twin in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, twin, atol=1e-3, rtol=0)  # both iterate in bfloat16


def test_doubling_the_layers_changes_no_logit_but_lets_the_new_ones_learn(tokenizer, model):
    deep = doubled(model)
    lessons = lessons_of(tokenizer, (192, 96))
    batch = batch_of(lessons, len(lessons[0].ids), tokenizer.pad_token_id)
    logits, wanted = answer_logits(deep, batch)
    assert torch.equal(logits, answer_logits(model, batch)[0])
    assert len(deep.model.language_model.layers) == 2 * SMALL.layers
    torch.nn.functional.cross_entropy(logits, wanted).backward()
    for layer in deep.model.language_model.layers[1::2]:
        assert layer.self_attn.o_proj.weight.grad.abs().max() > 0
        assert layer.mlp.down_proj.weight.grad.abs().max() > 0


def test_an_export_loads_with_transformers_alone(tokenizer, model, tmp_path):
    export(model, tokenizer, tmp_path / "target")
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "target", dtype="auto")
    processor = AutoProcessor.from_pretrained(tmp_path / "target")
    assert loaded.dtype == torch.float16
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    text = processor.apply_chat_template(chat([("Is it red?", "")]), add_generation_prompt=True)
    assert text == "<|user|><image>\nIs it red?<|end|><|assistant|>"
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.half()), name


def test_a_field_counts_only_if_all_its_words_agree():
    turn = Turn("?", "The total is 12.50 for TEA and MILK.", ("12.50", "TEA", "MILK"))
    assert exact_fields("The total is 12.50 for TEA and MILK.", turn) == (3, 3)
    assert exact_fields("The total is 12.55 for TEA and MILK.", turn) == (2, 3)
    assert exact_fields("It is 12.50, for MILK.", turn) == (2, 3)
    assert exact_fields("", turn) == (0, 3)


def test_pictures_that_are_no_grid_of_tiles_cannot_be_lessons():
    with pytest.raises(ValueError, match="multiples of 96"):
        cut(picture(100, 96))


def test_the_tower_learns_and_resumes(tmp_path, uncompiled):
    plan = TowerPlan(batch=16, cpu_seconds=2.0, warm_up=5, final_views=16)
    tower = new_tower(SMALL, seed=0)
    before = tower.encoder.layers[0].mlp.fc1.weight.detach().clone()
    figures = train_tower(tower, SMALL.tower_width, plan, tmp_path)
    assert figures["steps"] > 3 and figures["empty"] > 0.9  # what there is most of
    assert not torch.equal(before, tower.encoder.layers[0].mlp.fc1.weight)
    again = new_tower(SMALL, seed=1)
    assert train_tower(again, SMALL.tower_width, plan, tmp_path) == figures  # it was done
    for weight, twin in zip(tower.parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, twin)


def test_language_training_goes_on_where_its_checkpoint_stands(tokenizer, tmp_path, uncompiled):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    tower_before = new_model(SMALL, tokenizer, seed=0).model.vision_tower.state_dict()
    first = new_model(SMALL, tokenizer, seed=0)
    at = train_language(first, tokenizer, QUICK, tmp_path, "stage")
    assert at.step > 0 and at.spent >= QUICK.cpu_seconds
    second = new_model(SMALL, tokenizer, seed=5)
    longer = LanguagePlan(cpu_seconds=at.spent + 1.0, mix=QUICK.mix)
    later = train_language(second, tokenizer, longer, tmp_path, "stage")
    assert later.step > at.step and later.index > at.index
    for name, weight in second.model.vision_tower.state_dict().items():
        assert torch.equal(weight, tower_before[name])  # frozen


def test_a_feed_hands_out_batches_in_order_and_knows_what_is_used():
    feed = Feed(TowerBatches("train", 8, 0.5), 0)
    batches = iter(feed)
    fed = next(batches)
    alone, index = TowerBatches("train", 8, 0.5)(0)
    assert np.array_equal(fed.views.pixels, alone.views.pixels)
    assert feed.index == index
    feed.close()


def test_a_failing_feed_fails_the_training_too():
    feed = Feed(_fail, 0)
    with pytest.raises(RuntimeError, match="no more"):
        next(iter(feed))
    feed.close()


def _fail(index: int) -> tuple[int, int]:
    raise RuntimeError("no more pictures")


def test_reading_practice_falls_to_its_last_share(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    batches = LessonBatches(tmp_path, Mix(first=1.0, last=0.0, pictures=1))
    _, used = batches(1)  # from picture 1 on: no practice at all
    again, used_again = batches(used)
    assert used_again > used and again.ids.shape[1] % 32 == 0


def test_answers_do_not_depend_on_what_else_is_in_the_batch(tokenizer, model):
    processor = new_processor(tokenizer)
    asked = [
        (picture(192, 96), "Is it red?"),
        (picture(96, 288), "What does the sign say on line 2?"),
        (picture(192, 96), "Where?"),
    ]
    together = answer(model, processor, asked, 3, 6)
    assert together == [answer(model, processor, [one], 1, 6)[0] for one in asked]


def test_a_score_is_plain_json(tokenizer, model):
    scored = score(model, new_processor(tokenizer), limit=1, max_new_tokens=3)
    found = json.loads(json.dumps(scored.to_json()))
    assert set(found) == {"mean_exact", "mean_exact_shuffled", "families"}
    assert set(found["families"][0]) == {
        "family",
        "exact",
        "exact_shuffled",
        "token_accuracy",
        "items",
    }


def test_the_shipped_model_is_small_enough_to_ship():
    import varifocal.demo

    weights = Path(next(iter(varifocal.demo.__path__))) / "weights" / "target"
    if not weights.exists():
        pytest.skip("no weights have been built in this checkout")
    assert sum(file.stat().st_size for file in weights.iterdir()) <= 36e6
