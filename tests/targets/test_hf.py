"""What all targets on transformers share and one family shows: limits, exact rows, fingerprint."""

import pytest
import tiny
import torch

from varifocal.errors import BadRequest
from varifocal.request import ask
from varifocal.target import Want
from varifocal.tree import DraftTree

TREE = DraftTree(
    torch.tensor([10, 11, 12, 13, 14, 15, 16, 17, 18]),
    torch.tensor([-1, 0, 0, 1, 1, 2, 3, 5, 6]),
)


def path_to(node: int) -> list[int]:
    return TREE.ancestry[node].nonzero()[:, 0].tolist()


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


def test_asking_for_more_than_the_context_holds_says_what_would_fit(target):
    with pytest.raises(BadRequest, match=r"ask for at most \d+"):
        target.encode(ask("x", max_new_tokens=5000))


@pytest.mark.parametrize(
    ("pictures", "way_out"), [(0, "shorten"), (1, "fewer or smaller pictures")]
)
def test_a_prompt_longer_than_the_context_says_by_how_much_and_what_to_shorten(
    target, pictures, way_out
):
    shown = [tiny.picture()] * pictures
    short = len(target.encode(ask("x", shown)).tokens)
    more = target.context_length - short  # one token a letter: the prompt fills the context
    for beyond in (0, 300):
        with pytest.raises(BadRequest) as refused:
            target.encode(ask("x" * (more + 1 + beyond), shown, max_new_tokens=1))
        said = str(refused.value)
        assert f"the prompt takes {target.context_length + beyond} tokens" in said
        assert f"holds {target.context_length} for prompt and answer" in said
        assert way_out in said and f"by at least {1 + beyond} tokens" in said
        assert "at most 0" not in said
    assert len(target.encode(ask("x" * more, shown, max_new_tokens=1)).tokens) == 4095


@pytest.mark.parametrize("context", [300, 3000])
def test_exact_rows_make_scattered_paths_bit_equal_in_bfloat16(context):
    target = tiny.tiny_target(dtype=torch.bfloat16, exact_rows=True)
    prompt = target.encode(ask("x" * (context - 120), [tiny.picture()]))
    assert abs(len(prompt.tokens) - context) < 20
    rng = torch.Generator().manual_seed(0)
    drafted, _ = target.prefill(prompt, Want())
    plain, _ = target.prefill(prompt, Want())
    for _ in range(12):
        tokens = torch.randint(10, 250, (9,), generator=rng)
        tree = DraftTree(tokens, TREE.parents)
        (seen,) = target.forward([tree], [drafted], Want())
        path = path_to(int(torch.randint(0, 9, (1,), generator=rng)))
        drafted.keep(path, len(tree))
        for node in path:
            (step,) = target.forward([DraftTree.chain([int(tokens[node])])], [plain], Want())
            plain.keep([0], 1)
            assert torch.equal(seen.logits[node], step.logits[0])


def test_the_fingerprint_knows_the_weights_but_not_their_precision():
    prints = {tiny.tiny_target(dtype=d).fingerprint for d in (torch.float32, torch.bfloat16)}
    assert len(prints) == 1
    assert tiny.tiny_target(seed=1).fingerprint not in prints
