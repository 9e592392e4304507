"""Batch size, order, resumption and kept runs never change whose answer is whose."""

import json

import pytest
import torch
from PIL import Image
from scripted import Cache, Scripted, ids_of, saying
from tiny import picture, tiny_target

from varifocal.batch import Batch
from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.evaluation.bench import BenchConfig, run_bench
from varifocal.evaluation.suites import Case
from varifocal.request import ask
from varifocal.target import Forward, Prompt

COLOURS = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "white": (255,) * 3,
           "black": (0, 0, 0), "orange": (255, 165, 0)}  # fmt: skip


class Painter(Scripted):
    """Names the colour of the picture that the request shows, in words of other lengths."""

    def __init__(self):
        super().__init__(saying([]))

    def encode(self, request):
        (shown,) = request.images
        name = next(n for n, rgb in COLOURS.items() if shown.getpixel((0, 0)) == rgb)
        tokens = torch.tensor(ids_of(name))
        return Prompt(tokens, torch.full_like(tokens, -1), {}, request)

    def prefill(self, prompt, want):
        cache = Cache(len(prompt.tokens))
        name = bytes(t - 2 for t in prompt.tokens.tolist()).decode()
        cache.law = saying(ids_of(f"{name}, {name}: it is {name} {'all over ' * len(name)}"))
        return cache, Forward(torch.tensor([cache.law(())], dtype=torch.float32))

    def forward(self, trees, caches, want):
        made = []
        for tree, cache in zip(trees, caches, strict=True):
            paths = [tree.tokens[up].tolist() for up in tree.ancestry]
            rows = [cache.law(tuple([*cache.tokens, *path])) for path in paths]
            made.append(Forward(torch.tensor(rows, dtype=torch.float32)))
            cache.tokens += tree.tokens.tolist()
        return made


def asked(names):
    return [
        ask("Which colour is it?", [Image.new("RGB", (8, 8), COLOURS[name])], id=name)
        for name in names
    ]


@pytest.mark.parametrize("names", [list(COLOURS), list(COLOURS)[::-1]], ids=["on", "back"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_each_sample_gets_the_answer_about_its_own_picture_in_any_batch(size, names):
    target = Painter()
    drafter = load_drafter("lookup", target, nodes=6)
    alone = {r.id: generate(target, load_drafter("plain", target), r).text for r in asked(names)}
    batch = Batch(lambda r: Generation(target, drafter, r), asked(names), max_batch=size)
    texts = [result.text for result in batch.results()]
    assert texts == [alone[name] for name in names]
    assert all(text.startswith(f"{name}, ") for text, name in zip(texts, names, strict=True))


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def shown(numbers):
    return [
        Case(id=f"sample {n}", family="all",
             request=ask("What is this?", [picture(n)], max_new_tokens=8))
        for n in numbers
    ]  # fmt: skip


def answers(target, numbers, file, stops=()):
    """By id what the journal holds after a run that was interrupted at these places."""
    config = BenchConfig(
        drafters="lookup:nodes=4", suite="file", repeats=1, draws=5, warm_up=0, clock="wall"
    )

    def stop_at(count):
        def progress(done, total):
            if done == count:
                raise KeyboardInterrupt

        return progress

    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            run_bench(config, shown(numbers), target, journal=file, progress=stop_at(stop))
    run_bench(config, shown(numbers), target, journal=file)
    found = {}
    for line in file.read_text().splitlines():
        content = json.loads(line)["is"]
        if content["kind"] == "request":
            texts = {tuple(run["token_ids"]) for _, _, run in content["runs"]}
            (found[content["case"]["id"]],) = texts  # plain and drafted are the same
    return found


def test_order_and_resumption_of_a_benchmark_leave_each_sample_its_answer(target, tmp_path):
    plain = load_drafter("plain", target)
    alone = {c.id: tuple(generate(target, plain, c.request).token_ids) for c in shown(range(6))}
    assert len(set(alone.values())) == 6, "the samples must be told apart by their answers"
    assert answers(target, range(6), tmp_path / "on") == alone
    assert answers(target, [4, 1, 5, 0, 2, 3], tmp_path / "mixed") == alone
    assert answers(target, range(6), tmp_path / "resumed", stops=(1, 4)) == alone
    assert answers(target, range(6), tmp_path / "resumed") == alone  # from kept runs alone
