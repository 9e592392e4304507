"""Checks of real decoding: the text, and tokens a round against what was promised."""

from collections.abc import Sequence
from typing import Any

import torch

from varifocal.drafter import Drafter
from varifocal.drafters._weights import Card
from varifocal.evaluation._acceptance_checks import Trial
from varifocal.evaluation._findings import Finding, skipped
from varifocal.evaluation.compare import Mismatch
from varifocal.evaluation.ngram import Walk
from varifocal.result import GenerationResult

CARD_SHARE = 0.5  # of the tokens that the card promises beyond plain decoding
ENGINE_SHARE = 0.8  # of the tokens a round that drafts from true states promise
FEW_ROUNDS = 12  # below so many, tokens a round say little


def texts(check: str, mismatches: Sequence[Mismatch | None], dtype: torch.dtype) -> Finding:
    """The text with the drafter is the text without."""
    found = [m for m in mismatches if m is not None]
    different = [m for m in found if not m.near_tie]
    numbers = {
        "requests": len(mismatches),
        "identical": len(mismatches) - len(found),
        "near_tie": len(found) - len(different),
        "different": len(different),
    }
    measured = (
        f"{numbers['identical']} of {len(mismatches)} texts are those of plain decoding in "
        f"{str(dtype).removeprefix('torch.')}, {numbers['near_tie']} part at a near-tie, "
        f"{len(different)} differ"
    )
    if not different:
        return Finding(check=check, verdict="ok", measured=measured, numbers=numbers)
    first = different[0]
    return Finding(
        check=check,
        verdict="fault",
        measured=f"{measured}; {first.id} at token {first.position}: plain {first.plain}, drafted "
        f"{first.drafted}",
        way_out="a drafter cannot change the text, so the fault is in the target's forward: see "
        "the checks of positions, and `varifocal verify`",
        numbers=numbers,
    )


def tau(
    check: str, drafter: Drafter[Any], results: Sequence[GenerationResult], trial: Trial
) -> Finding:
    """Tokens a round against what drafts from true states promise; did it draft at all."""
    walk = Walk(0, 0)
    for r in results:
        walk += Walk(len(r.token_ids) - 1, r.num_spec_steps)
    promised = trial.base.walk.tau
    drafted = sum(round_.num_drafted for r in results for round_ in r.rounds)
    per_round = drafted / max(walk.rounds, 1)
    plain = sorted({r.fallback for r in results if r.fallback})
    numbers = {
        "tau": walk.tau,
        "tau_from_true_states": promised,
        "rounds": walk.rounds,
        "tokens": walk.tokens,
        "drafted_a_round": per_round,
        "depth": drafter.config.depth,
        "nodes": drafter.config.nodes,
        "fallback": plain,
    }
    measured = (
        f"{walk.tau:.2f} tokens a round over {walk.rounds} rounds; drafts from true states promise "
        f"{promised:.2f}; {per_round:.1f} tokens are drafted a round, {drafter.config.depth} deep "
        "at most"
    )
    if walk.rounds >= FEW_ROUNDS and walk.tau - 1 < ENGINE_SHARE * (promised - 1) - 0.1:
        return Finding(
            check=check,
            verdict="fault",
            measured=measured,
            way_out="the drafter guesses better when it reads one token a round than when it reads "
            "an accepted path: its `observe` mistakes the path's positions or features",
            numbers=numbers,
        )
    if plain:
        return Finding(
            check=check,
            verdict="warning",
            measured=f"{measured}. {'; '.join(plain)}",
            way_out="ask for less at a time, or use a drafter with a longer context",
            numbers=numbers,
        )
    return Finding(check=check, verdict="ok", measured=measured, numbers=numbers)


def against_card(
    check: str, card: Card | None, families: Sequence[str], results: Sequence[GenerationResult]
) -> Finding:
    """Tokens a round against the score recorded when it was trained."""
    known = {k: v for k, v in card.scores.items() if k.startswith("tau")} if card else {}
    if not known:
        return skipped(check, "no card records tokens a round (tau)")
    by_family = [known.get(f"tau_{family}", known.get("tau")) for family in families]
    scores = [score for score in by_family if score is not None]
    if not scores:
        return skipped(check, f"its card has scores for {', '.join(sorted(known))} only")
    promised = sum(scores) / len(scores)
    tokens = sum(len(r.token_ids) - 1 for r in results)
    rounds = sum(r.num_spec_steps for r in results)
    found = tokens / rounds if rounds else 1.0
    numbers = {"tau": found, "card": promised, "rounds": rounds}
    measured = f"{found:.2f} tokens a round, its card says {promised:.2f} for such requests"
    if rounds < FEW_ROUNDS:
        return Finding(
            check=check,
            verdict="ok",
            measured=f"{measured}; {rounds} rounds are too few to compare",
            numbers=numbers,
        )
    if found - 1 < CARD_SHARE * (promised - 1):
        return Finding(
            check=check,
            verdict="warning",
            measured=measured,
            way_out="compare dtype, draft settings and data with those of its card; the checks "
            "above tell whether inputs or weights are to blame",
            numbers=numbers,
        )
    return Finding(check=check, verdict="ok", measured=measured, numbers=numbers)
