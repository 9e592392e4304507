"""Which method leads and why, in sentences computed from the figures."""

from collections.abc import Iterator

from varifocal.evaluation.figures import BenchResult, Mean
from varifocal.evaluation.lead import Gap, Lead, is_outside, is_plain
from varifocal.evaluation.table import verdict

_SAME = 0.01  # shares of tokens and relative differences below it are not worth a word


def story(result: BenchResult) -> list[str]:
    """A few sentences; a speed-up in them is followed by what became of the texts."""
    lead = result.lead
    if lead is None:
        if all(is_plain(entry) or is_outside(entry) for entry in result.means):
            return ["No drafter of ours was measured, so none leads."]
        return ["No drafter of ours has all its texts right, so none leads."]
    told = [_first(result, lead)]
    if lead.runner_up is not None:
        told += [_next(result, lead, lead.runner_up), _reason(result, lead, lead.runner_up)]
        told += _where(result, lead, lead.runner_up)
    else:
        own = result.means[lead.drafter]
        told.append(
            f"A round of {lead.drafter} delivers {own.tau:.2f} tokens and takes as long as "
            f"{own.round_cost:.2f} rounds of plain decoding."
        )
    return [*told, *_families(result, lead), *_unclear(lead), *_unranked(result, lead)]


def _first(result: BenchResult, lead: Lead) -> str:
    own = result.means[lead.drafter]
    low, high = own.decode_speedup_ci95
    families = {row.family for row in result.rows}
    over = (
        f"in the mean of {len(families)} families" if len(families) > 1 else f"on {min(families)}"
    )
    gain = f"{own.decode_speedup:.2f}× as fast as plain decoding {over}"
    spread = f"(95 %: {low:.2f}–{high:.2f}; {verdict(own)})"
    if high < 1:
        return f"No drafter pays here: {lead.drafter} comes nearest, {gain} {spread}."
    if low <= 1:
        return (
            f"{lead.drafter} leads, {gain} {spread}; as the interval has 1 in it, it may not pay."
        )
    return f"{lead.drafter} leads: {gain} {spread}."


def _next(result: BenchResult, lead: Lead, other: str) -> str:
    own, gap = result.means[other], lead.over[other]
    low, high = gap.ci95
    said = (
        f"Next is {other} with {own.decode_speedup:.2f}× ({verdict(own)}); the lead over it is a "
        f"factor of {gap.ratio:.2f} (paired 95 %: {low:.2f}–{high:.2f})"
    )
    if gap.is_clear and gap.ratio < 1:
        return f"{said}: this baseline from outside is faster than any drafter of ours."
    if gap.is_clear:
        return f"{said}, more than drawing other requests explains."
    return f"{said}: these requests cannot tell the two apart."


def _reason(result: BenchResult, lead: Lead, other: str) -> str:
    """Speed-up is tokens a round over cost of a round: which of the two makes the difference."""
    own, its = result.means[lead.drafter], result.means[other]
    said = (
        f"A round of {lead.drafter} delivers {own.tau:.2f} tokens and takes as long as "
        f"{own.round_cost:.2f} rounds of plain decoding; one of {other} delivers {its.tau:.2f} and "
        f"takes {its.round_cost:.2f}"
    )
    more, cheaper = own.tau / its.tau - 1, its.round_cost / own.round_cost - 1
    return f"{said}: {_ending(lead.drafter, more, cheaper, lead.over[other])}."


def _ending(drafter: str, more: float, cheaper: float, gap: Gap) -> str:
    if abs(more) < _SAME and abs(cheaper) < _SAME:
        return "there is next to no difference"
    if more > -_SAME and cheaper > -_SAME:
        parts = ["more tokens a round"] if more >= _SAME else []
        return " and ".join([*parts, *(["cheaper rounds"] if cheaper >= _SAME else [])])
    if gap.ratio < 1:
        return f"so {drafter} falls behind"
    if more > 0:
        return f"{drafter}'s rounds take longer, but bring even more in tokens"
    return f"{drafter} gets fewer tokens a round, but its rounds are cheaper by more than that"


def _where(result: BenchResult, lead: Lead, other: str) -> Iterator[str]:
    """The kind of words that makes most of the difference in drafted tokens."""
    own, its = _shares(result.means[lead.drafter]), _shares(result.means[other])
    if not own or not its:
        return
    whole = sum(own[k][1] * (own[k][0] - its[k][0]) for k in own)
    if abs(whole) < _SAME:
        return
    kind = max(own, key=lambda k: own[k][1] * (own[k][0] - its[k][0]) * (1 if whole > 0 else -1))
    yield (
        f"The difference in tokens lies most in {NAMES[kind]}, {own[kind][1]:.0%} of all tokens: "
        f"{own[kind][0]:.0%} of them were drafted by {lead.drafter}, {its[kind][0]:.0%} by {other}."
    )


NAMES = {
    "copied": "words that were said before",
    "number": "new numbers",
    "other": "new words",
    "function": "function words",
    "punctuation": "punctuation",
    "space": "spaces",
    "end": "end tokens",
    "picture": "words that need the picture",
    "template": "words of the template",
}


def _shares(mean: Mean) -> dict[str, tuple[float, float]]:
    """By kind, the part of its tokens that was drafted, and its part of all tokens."""
    counts = {k: c for k, c in mean.acceptance_by_kind.items() if c["tokens"]}
    whole = sum(c["tokens"] for c in counts.values())
    return {k: (c["drafted"] / c["tokens"], c["tokens"] / whole) for k, c in counts.items()}


def _families(result: BenchResult, lead: Lead) -> Iterator[str]:
    """Where it is not the fastest, and how little it brings at least."""
    families = list(dict.fromkeys(row.family for row in result.rows))
    if len(families) == 1:
        return
    ranked = {lead.drafter, *lead.over}
    right = [
        row
        for row in result.rows
        if row.drafter in ranked and not result.means[row.drafter].different
    ]
    fastest = {
        f: max((r for r in right if r.family == f), key=lambda r: r.decode_speedup).drafter
        for f in families
    }
    others: dict[str, list[str]] = {}
    for family, entry in fastest.items():
        if entry != lead.drafter:
            others.setdefault(entry, []).append(family)
    own = [row for row in result.rows if row.drafter == lead.drafter]
    least = min(own, key=lambda row: row.decode_speedup)
    count = sum(entry == lead.drafter for entry in fastest.values())
    said = "all" if count == len(families) else f"{count} of {len(families)}"
    ahead = "; ".join(f"ahead in {', '.join(f)} is {entry}" for entry, f in others.items())
    yield (
        f"It is the fastest in {said} families{f' ({ahead})' if ahead else ''}, and brings least "
        f"in {least.family}: {least.decode_speedup:.2f}× ({verdict(least)})."
    )


def _unclear(lead: Lead) -> Iterator[str]:
    apart = [e for e, gap in lead.over.items() if not gap.is_clear and e != lead.runner_up]
    if apart:
        yield f"Nor can these requests tell it from {', '.join(apart)}."


def _unranked(result: BenchResult, lead: Lead) -> Iterator[str]:
    """Entries that are measured by another plain loop."""
    baselines = {row.drafter: row.baseline for row in result.rows}
    for entry, mean in result.means.items():
        if entry not in (lead.drafter, *lead.over) and not is_plain(entry):
            yield (
                f"Not ranked with these is {entry}, which is compared with {baselines[entry]}: "
                f"{mean.decode_speedup:.2f}× ({verdict(mean)})."
            )
