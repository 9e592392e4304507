"""What is delivered: the same for every way in which tokens are cut into blocks."""

import random

import pytest

from varifocal.commit import Commit
from varifocal.result import TokenLogprob

EOS = 1


def decode(tokens):
    """Token 2 + b is byte b; the end token has no text."""
    return bytes(t - 2 for t in tokens if t >= 2).decode("utf-8", errors="replace")


def ids(text: str) -> list[int]:
    return [b + 2 for b in text.encode()]


def run(tokens, cuts, *, budget=100, stop=()):
    commit = Commit(decode, frozenset({EOS}), budget, stop)
    pieces, start = [], 0
    for end in [*cuts, len(tokens)]:
        pieces.append(commit.push(tokens[start:end]))
        start = end
    return commit, pieces


CASES = {
    "eos inside": ([*ids("good"), EOS, *ids("junk")], 100, (), "good", "eos"),
    "budget": (ids("abcdefgh"), 5, (), "abcde", "length"),
    "budget inside a character": (ids("aé"), 2, (), "a\ufffd", "length"),
    "stop": (ids("one. Two."), 100, (". ",), "one", "stop"),
    "stop over several tokens": (ids("say STOP now"), 100, ("STOP",), "say ", "stop"),
    "first completed stop wins": (ids("xabcdy"), 100, ("bcd", "c"), "xab", "stop"),
    "stop before eos": ([*ids("a#"), EOS], 100, ("#",), "a", "stop"),
    "stop at the last token of the budget": (ids("ab#"), 3, ("#",), "ab", "stop"),
    "eos at the last token of the budget": ([*ids("ab"), EOS], 3, (), "ab", "eos"),
    "several bytes": ([*ids("naïve 日本語 🙂"), EOS], 100, (), "naïve 日本語 🙂", "eos"),
    "unfinished character at the end": ([*ids("日")[:2], EOS], 100, (), "\ufffd", "eos"),
    "nothing": ([EOS], 100, (), "", "eos"),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_deliver_what_single_tokens_deliver(case):
    tokens, budget, stop, text, reason = CASES[case]
    one, pieces = run(tokens, range(1, len(tokens)), budget=budget, stop=stop)
    assert (one.text, one.finish_reason) == (text, reason)
    rng = random.Random(0)
    for _ in range(30):
        cuts = sorted(rng.sample(range(len(tokens) + 1), rng.randint(0, min(4, len(tokens)))))
        other, blocks = run(tokens, cuts, budget=budget, stop=stop)
        assert (other.tokens, other.text, other.finish_reason) == (one.tokens, text, reason)
        assert "".join(b.text for b in blocks) == text
        assert [t for b in blocks for t in b.tokens] == one.tokens
    assert "".join(p.text for p in pieces) == text


def test_a_beginning_of_a_stop_text_is_held_back_until_it_is_decided():
    commit = Commit(decode, frozenset({EOS}), 100, ("STOP",))
    assert commit.push(ids("a ST")).text == "a "
    assert commit.push(ids("AY")).text == "STAY"


def test_characters_are_shown_whole():
    commit = Commit(decode, frozenset({EOS}), 100)
    first, second = ids("é")
    assert commit.push([first]).text == ""
    assert commit.push([second]).text == "é"


def test_nothing_is_delivered_after_the_end():
    commit, _ = run([*ids("ab"), EOS], [])
    assert commit.push(ids("more")).tokens == [] and commit.room == 0
    assert commit.text == "ab"


PIECES = {10: "ab", 11: "cST", 12: "OPde", 13: "x"}


def test_ids_log_probs_and_text_are_cut_at_the_token_that_completes_a_stop_text():
    tokens = [10, 11, 12, 13, 13]
    entries = [TokenLogprob(token=t, logprob=-float(n)) for n, t in enumerate(tokens)]
    for cut in range(len(tokens) + 1):
        commit = Commit(
            lambda ids: "".join(PIECES[i] for i in ids), frozenset({EOS}), 100, ("STOP",)
        )
        blocks = [commit.push(tokens[a:b], entries[a:b]) for a, b in ((0, cut), (cut, 5))]
        assert commit.text == "".join(b.text for b in blocks) == "abc"
        assert commit.tokens == [t for b in blocks for t in b.tokens] == [10, 11, 12]
        assert commit.logprobs == [e for b in blocks for e in b.logprobs] == entries[:3]
        assert commit.finish_reason == "stop"


def fallback_decode(tokens):
    """With byte fallback, each byte of an unfinished character shows as one replacement."""
    raw = bytes(t - 2 for t in tokens if t >= 2)
    for end in range(len(raw), -1, -1):
        try:
            return raw[:end].decode() + "\ufffd" * (len(raw) - end)
        except UnicodeDecodeError:
            continue
    raise AssertionError("an empty text is always whole")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_of_several_byte_tokens_are_shown_whole(size):
    text = "čaj 🙂 木漏れ日"
    tokens = [*ids(text), EOS]
    commit = Commit(fallback_decode, frozenset({EOS}), 100)
    pieces = [commit.push(tokens[n : n + size]).text for n in range(0, len(tokens), size)]
    assert "".join(pieces) == commit.text == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_token_without_text_takes_no_space_from_the_next():
    words = {0: "", 2: "▁a", 3: "▁chart"}

    def sentencepiece(tokens):
        return "".join(words[t] for t in tokens).replace("▁", " ").removeprefix(" ")

    for tokens in ([2, 0, 3], [2, 0, 0, 3, 0, 2], [0, 2, 3]):
        commit = Commit(sentencepiece, frozenset({EOS}), 100)
        for token in tokens:
            commit.push([token])
        assert commit.text == sentencepiece(tokens)
