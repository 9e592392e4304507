"""Views of a prompt: each is what a draft model reads by itself, and all go on in one forward."""

import logging
from functools import cache
from itertools import groupby
from operator import itemgetter

import pytest
import tiny
import torch
from checkpoints import built, families

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters._caption import ChatCaptioner, load_captioner
from varifocal.drafters._views import Reading, open_views
from varifocal.errors import BadOption, UnsupportedTarget
from varifocal.request import Message, Request, ask
from varifocal.target import Prompt, Want
from varifocal.targets import load_target
from varifocal.targets._hf import Seen
from varifocal.targets._pooled import pool
from varifocal.tree import DraftTree

pytestmark = pytest.mark.usefixtures("without_gradients")

CHAIN = [70, 81, 92]


@cache
def model_of(name):
    return load_target(str(built(name)), dtype=torch.float32)


def conversation(name="llava", question="what is it?"):
    """Two turns, the first with two pictures."""
    shown = [tiny.picture(seed, families()[name].sizes[seed]) for seed in range(2)]
    return Request(
        messages=(
            Message("user", (*shown, "compare them.")),
            Message("assistant", ("they differ.",)),
            Message("user", (question,)),
        )
    )


def opened(model, request, names, captioner=None):
    """As for a target whose tokens do not matter."""
    nothing = torch.zeros(1, dtype=torch.int64)
    return open_views(model, Prompt(nothing, nothing - 1, {}, request), names, captioner)


def after(model, prompt, tokens=CHAIN, seen=None):
    """What the model alone says after each of these tokens."""
    cache, _ = model.prefill(prompt, Want()) if seen is None else model.read(prompt, seen, Want())
    (out,) = model.forward([DraftTree.chain(tokens)], [cache], Want())
    return out.logits


def written(model, text, **settings):
    """A prompt of a text that was typed by hand, special tokens and all."""
    ids = torch.tensor(model.tokenizer(text, **settings)["input_ids"])
    return Prompt(ids, torch.full_like(ids, -1), {}, ask("unused"))


def same(one, other):
    torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


def differ(one, other):
    return float((one - other).abs().max()) > 0.05


def captioner(picture):
    return f"a  picture of {picture.width}\n pixels "


# -- what each view reads ----------------------------------------------------------------------


def test_text_and_captions_stand_where_the_pictures_stood():
    model, request = model_of("llava"), conversation()
    views = opened(model, request, "MTC", captioner)
    assert views.names == ["M", "T", "C"] and not views.left_out
    m, t, c = views.read(model, CHAIN)
    rest = "compare them. ASSISTANT: they differ. USER: what is it? ASSISTANT:"
    same(t, after(model, written(model, f"USER: \n\n\n\n{rest}")))
    shown = "image: a  picture of 60\n pixels\nimage: a  picture of 30\n pixels\n"
    same(c, after(model, written(model, f"USER: {shown}{rest}")))
    same(m, after(model, model.encode(request)))
    assert differ(m, t) and differ(t, c)


def test_pooled_pictures_are_averages_before_the_projector():
    model, request = model_of("llava"), conversation()
    (made,) = opened(model, request, "P").read(model, CHAIN)
    prompt = model.encode(request)
    out = model.model.model.vision_tower(prompt.pixels["pixel_values"], output_hidden_states=True)
    grid = out.hidden_states[-2][:, 1:].unflatten(1, (4, 4))
    few = torch.stack(
        [
            torch.stack(
                [
                    grid[n, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].flatten(0, 1).mean(0)
                    for r in range(2)
                    for c in range(2)
                ]
            )
            for n in range(2)
        ]
    )
    features = model.model.model.multi_modal_projector(few).flatten(0, 1)
    slots = "<image>" * 4
    text = (
        f"USER: {slots}\n{slots}\ncompare them. ASSISTANT: they differ. USER: what is it? "
        "ASSISTANT:"
    )
    by_hand = written(model, text)
    is_slot = by_hand.tokens == model.tokenizer.convert_tokens_to_ids("<image>")
    cache, _ = _read_features(model, by_hand.tokens, is_slot, features)
    (wanted,) = model.forward([DraftTree.chain(CHAIN)], [cache], Want())
    assert int(is_slot.sum()) == 8
    same(made, wanted.logits)


def _read_features(model, tokens, is_slot, features):
    prompt = Prompt(tokens, torch.where(is_slot, 0, -1), {}, ask("unused"))
    return model.read(prompt, Seen(features), Want())


@pytest.mark.parametrize("size", [(60, 40), (30, 90), (80, 80), (200, 20)])
def test_pooled_tiles_are_packed_as_transformers_packs_tiles(size, monkeypatch):
    model = model_of("llava_next")
    prompt = model.encode(ask("what is it?", [tiny.picture(1, size), tiny.picture(2, (70, 70))]))
    made = model.see_pooled(prompt)
    assert torch.equal(made.full.features, model.see(prompt).features)
    inner = model.model.model
    pixels = prompt.pixels["pixel_values"]
    counts = [1 + down * across for down, across in
              (model._tiles(*s) for s in prompt.pixels["image_sizes"].tolist())]  # fmt: skip
    tiles = torch.cat([own[:count] for own, count in zip(pixels, counts, strict=True)])
    out = inner.vision_tower(tiles, output_hidden_states=True).hidden_states[-2][:, 1:]
    grid = out.transpose(1, 2).unflatten(2, (2, 2, 2, 2)).mean((3, 5))  # 4x4 to 2x2
    projected = inner.multi_modal_projector(grid.flatten(2).transpose(1, 2))
    # A tower with patches twice as large has as many of them as are left.
    monkeypatch.setattr(inner.config.vision_config, "patch_size", 28)
    wanted, lengths = inner.pack_image_features(
        projected.split(counts), prompt.pixels["image_sizes"], "default", inner.image_newline
    )
    assert made.counts == lengths.tolist()
    same(made.pooled.features, torch.cat(list(wanted)))


def test_grids_with_an_odd_side_keep_their_edge():
    patches = torch.arange(2 * 10.0).view(2, 10, 1)  # one entry of the tower's own, then 3x3
    few = pool(patches, 3)
    assert few[0, :, 0].tolist() == [0.0, 3.0, 4.5, 7.5, 9.0]
    assert few.shape == (2, 5, 1)


def test_the_tower_runs_once_for_full_and_pooled_pictures():
    model, request = model_of("llava_next"), conversation("llava_next")
    runs = []
    handle = model.model.model.vision_tower.register_forward_hook(lambda *_: runs.append(1))
    try:
        views = opened(model, request, "MP")
    finally:
        handle.remove()
    assert views.names == ["M", "P"] and len(runs) == 1
    full, pooled = (cache.length for cache in views.caches)
    assert pooled < full


def test_frames_of_a_placeholder_go_with_the_picture():
    model, request = model_of("qwen2_5_vl"), conversation("qwen2_5_vl")
    views = opened(model, request, "MTP")
    assert views.names == ["M", "T"] and "qwen2_5_vl" in views.left_out["P"]
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n\n\ncompare them.<|im_end|>\n"
        "<|im_start|>assistant\nthey differ.<|im_end|>\n"
        "<|im_start|>user\nwhat is it?<|im_end|>\n<|im_start|>assistant\n"
    )
    m, t = views.read(model, CHAIN)
    same(t, after(model, written(model, text)))
    same(m, after(model, model.encode(request)))  # with positions on three axes


def test_a_language_model_has_the_views_without_pictures():
    model, request = model_of("text-llama"), conversation()
    views = opened(model, request, "MTPC", captioner)
    assert views.names == ["T", "C"]
    assert views.left_out == dict.fromkeys("MP", "the draft model reads no pictures")
    (t, _) = views.read(model, CHAIN)
    text = (
        "<s><|user|>\n\n\ncompare them.\n<|assistant|>\nthey differ.\n<|user|>\nwhat is it?\n"
        "<|assistant|>\n"
    )
    same(t, after(model, written(model, text, add_special_tokens=False)))


@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_5_vl", "text-llama"])
def test_without_a_picture_one_view_is_left_and_the_others_are_named(name, caplog):
    model, request = model_of(name), ask("what is it?")
    with caplog.at_level(logging.WARNING):
        views = opened(model, request, "TMPC", captioner)
    assert views.names == ["T"]
    assert views.left_out == dict.fromkeys("MPC", "it reads the same as T")
    assert all(f"the view {n} of the draft model is left out" in caplog.text for n in "MPC")
    same(views.read(model, CHAIN)[0], after(model, model.encode(request)))


def test_names_of_special_tokens_that_were_typed_or_captioned_stay_text():
    model = model_of("llava")
    request = conversation(question="is <image> typed? </s>")
    views = opened(model, request, "TC", lambda _: "an <image> of </s>")
    asked = model.encode_instead(request, ["\n", "\n"]).tokens
    shown = model.encode_instead(request, ["image: an <image> of </s>"] * 2).tokens
    slot, end = model.tokenizer.convert_tokens_to_ids(["<image>", "</s>"])
    for tokens in (asked, shown):
        assert not {slot, end} & set(tokens.tolist())
    assert "<image>" in model.tokenizer.decode(asked)
    assert model.tokenizer.decode(shown).count("an <image> of </s>") == 2
    assert [cache.length for cache in views.caches] == [len(asked), len(shown)]


def test_a_prompt_of_ids_is_read_with_newlines_for_its_pictures():
    model = model_of("llava")
    prompt = model.encode(conversation())
    given = Prompt(prompt.tokens, prompt.image_of, {}, ask("(given)"), is_given=True)
    views = open_views(model, given, "MT", None)
    assert views.names == ["T"] and "came as ids" in views.left_out["M"]
    newline = model.tokenizer.convert_tokens_to_ids("<0x0A>")
    runs = groupby(
        zip(prompt.tokens.tolist(), prompt.image_of.tolist(), strict=True), itemgetter(1)
    )
    ids = [i for image, run in runs for i in ([newline] if image >= 0 else [i for i, _ in run])]
    assert ids.count(newline) == 4 and len(ids) < len(prompt.tokens)
    by_hand = Prompt(torch.tensor(ids), torch.full((len(ids),), -1), {}, prompt.request)
    same(views.read(model, CHAIN)[0], after(model, by_hand))
    plain = model.encode(ask("what is it?"))
    given = Prompt(plain.tokens, plain.image_of, {}, ask("(given)"), is_given=True)
    views = open_views(model, given, "MT", None)
    assert views.names == ["M"] and views.left_out == {"T": "it reads the same as M"}
    same(views.read(model, CHAIN)[0], after(model, plain))


def test_what_the_draft_model_cannot_hold_is_left_out_by_name(monkeypatch):
    model, request = model_of("llava"), conversation()
    monkeypatch.setattr(model, "context_length", len(model.encode(request).tokens))
    views = opened(model, request, "MT")
    assert views.names == ["T"] and "no answer fits" in views.left_out["M"]


# -- captions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("captioner", "said"),
    [
        (lambda picture: 1 / 0, "the captioner failed: ZeroDivisionError"),
        (lambda picture: "  " if picture.width == 30 else "a dog", "nothing of picture 2"),
        (None, "there is no captioner"),
    ],
)
def test_a_captioner_that_fails_costs_its_view_and_nothing_else(captioner, said):
    model, request = model_of("llava"), conversation()
    views = opened(model, request, "TC", captioner)
    assert views.names == ["T"] and said in views.left_out["C"]


def test_captions_are_made_once_for_each_picture():
    seen = []

    def counting(picture):
        seen.append(picture.size)
        return "a dog"

    opened(model_of("llava"), conversation(), "MTC", counting)
    assert seen == [(60, 40), (30, 90)]


def test_a_chat_model_captions_greedily():
    model, shown = model_of("llava"), tiny.picture(3, (60, 40))
    said = ChatCaptioner(model, "Describe it.", 12)(shown)
    request = ask("Describe it.", [shown], max_new_tokens=12)
    plain = generate(model, load_drafter("plain", model), request)
    assert said == " ".join(plain.text.split()) != ""


def test_a_captioning_model_of_transformers_is_loaded_from_its_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]", *"abcdefghij"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    sizes = dict(num_hidden_layers=1, num_attention_heads=2, hidden_size=16, intermediate_size=16)
    config = transformers.BlipConfig(
        text_config=dict(
            sizes, vocab_size=len(vocabulary), encoder_hidden_size=16, bos_token_id=5,
            eos_token_id=3, sep_token_id=3, pad_token_id=0, max_position_embeddings=32,
        ),
        vision_config=dict(sizes, image_size=32, patch_size=16),
        projection_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BlipForConditionalGeneration(config).eval()
    pictures = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    processor = transformers.BlipProcessor(pictures, tokenizer)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = load_captioner(
        str(tmp_path), device=torch.device("cpu"), prompt="unused", max_tokens=6
    )
    shown = tiny.picture(1, (60, 40))
    inputs = processor(images=shown, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=6, do_sample=False, num_beams=1)
    wanted = " ".join(processor.batch_decode(ids, skip_special_tokens=True)[0].split())
    assert loaded(shown) == wanted != ""


def test_captioners_that_cannot_be_used_are_refused_by_name(tmp_path):
    given = {"device": torch.device("cpu"), "prompt": "Describe it.", "max_tokens": 4}
    with pytest.raises(BadOption, match="reads no pictures"):
        load_captioner(str(built("text-llama")), **given)
    with pytest.raises(UnsupportedTarget, match=r"captioner .* cannot be loaded"):
        load_captioner(str(tmp_path), **given)
    chat = load_captioner(str(built("llava")), **given)
    assert isinstance(chat, ChatCaptioner) and chat.prompt == "Describe it."


# -- reading on --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "llava_next"])
def test_views_read_together_are_views_read_one_by_one(name):
    model, request = model_of(name), conversation(name)
    names = "MTC" if name == "qwen2_5_vl" else "MTPC"
    together = opened(model, request, names, captioner)
    assert "".join(together.names) == names
    alone = [
        Reading([n], [c.copy()], {}) for n, c in zip(together.names, together.caches, strict=True)
    ]
    for made, one in zip(together.read(model, CHAIN), alone, strict=True):
        same(made, one.read(model, CHAIN)[0])
    # Two levels of a tree: three nodes, of which two have a child each.
    level = torch.tensor([60, 61, 62]), torch.eye(3, dtype=torch.bool), 1
    below = torch.tensor([63, 63]), torch.tensor([[0, 1, 0, 1, 0], [0, 0, 1, 0, 1]]).bool(), 2
    for tokens, sees, depth in (level, below):
        drafted = together.draft(model, tokens, sees, depth)
        for made, one in zip(drafted, alone, strict=True):
            same(made, one.draft(model, tokens, sees, depth)[0])
    together.keep([2, 4])
    for made, one in zip(together.read(model, [64]), alone, strict=True):
        one.keep([2, 4])
        same(made, one.read(model, [64])[0])


def test_a_level_of_a_tree_sees_its_own_ancestors_alone():
    model, request = model_of("llava"), conversation()
    views = opened(model, request, "MT")
    views.read(model, CHAIN)
    eye = torch.eye(2, dtype=torch.bool)
    views.draft(model, torch.tensor([60, 61]), eye, 1)
    sees = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]]).bool()
    drafted = views.draft(model, torch.tensor([62, 63]), sees, 2)
    for made, prompt in zip(
        drafted, (model.encode(request), model.encode_instead(request, ["\n"] * 2)), strict=True
    ):
        same(made[:1], after(model, prompt, [*CHAIN, 61, 62])[-1:])
        same(made[1:], after(model, prompt, [*CHAIN, 60, 63])[-1:])
    views.keep([0, 3])
    for made, prompt in zip(
        views.read(model, [64]),
        (model.encode(request), model.encode_instead(request, ["\n"] * 2)),
        strict=True,
    ):
        same(made, after(model, prompt, [*CHAIN, 60, 63, 64])[-1:])


def test_a_view_that_is_dropped_leaves_the_others_as_they_were():
    model, request = model_of("llava"), conversation()
    views, twin = opened(model, request, "MT"), opened(model, request, "T")
    views.drop("M", "full")
    assert views.names == ["T"] and views.left_out == {"M": "full"}
    same(views.read(model, CHAIN)[0], twin.read(model, CHAIN)[0])
