"""How often guesses of sparse attention would be right: as Markdown, and by layer as a picture."""

from collections.abc import Iterable, Sequence
from io import BytesIO

from PIL import PngImagePlugin

from varifocal.evaluation.charts import Curve, lines
from varifocal.evaluation.drawing import Pen, Text
from varifocal.sparse.panel import TRIED, Tally
from varifocal.sparse.rates import BASELINE, RatesResult, Row

SHOWN = (0.5, 1.0, 1.25, 1.5, 2.0)  # guesses for each chosen block, of TRIED
GOAL = 0.9
_BOUNDS = ("none", "oracle")  # 0 and 1 by definition: in tables, but not drawn
_EQUAL = TRIED.index(1.0)
_WIDTH, _HEIGHT, _EDGE = 580.0, 330.0, 20.0


def tables(result: RatesResult) -> str:
    """By context, by number of guesses, who reaches the goal, by layer; for each budget."""
    parts = []
    for budget in result.config.budgets:
        rows = [row for row in result.rows if row.budget == budget]
        parts += [f"## Budget of {budget} tokens", *_of_budget(rows, result)]
    return "\n\n".join(parts)


def _of_budget(rows: Sequence[Row], result: RatesResult) -> list[str]:
    predictors = result.config.all_predictors
    parts = [
        "Hit rate with as many guesses as blocks are chosen (least to greatest of the texts):",
        _by_context(rows, predictors),
    ]
    if answered := _accuracies(rows):
        parts += ["Share of answer words that are said:", answered]
    parts += [
        f"Fewest guesses for each chosen block that reach a hit rate of {GOAL:.0%}, of those tried "
        "(share of them in vain):",
        _reaching(rows, predictors),
    ]
    longest = max(row.context for row in rows)
    for row in (row for row in rows if row.context == longest):
        layers = {name: row.tallies(name)[1:] for name in predictors if name not in _BOUNDS}
        parts += [
            f"{row.selector}, {longest} tokens: hit rate / share of guesses in vain, by guesses "
            "for each chosen block:",
            _by_guesses({name: row.tallies(name)[0] for name in predictors}),
            f"{row.selector}, {longest} tokens: hit rate by layer with as many guesses as are "
            "chosen:",
            _by_layer(layers),
        ]
    return parts


def _by_context(rows: Sequence[Row], predictors: Sequence[str]) -> str:
    head = ["predictor", *(f"{row.selector}, {row.context}" for row in rows)]
    body = [[name, *(_spread(row, name) for row in rows)] for name in predictors]
    chance = ["*at random*", *(f"{row.tallies(predictors[0])[0].chance:.1%}" for row in rows)]
    agreement = ["*tokens as dense*", *(f"{row.agreement:.1%}" for row in rows)]
    return _table([head, *body, chance, agreement])


def _spread(row: Row, predictor: str) -> str:
    rate = row.tallies(predictor)[0].hit_rates[_EQUAL]
    rates = [tally.hit_rates[_EQUAL] for tally in row.by_place(predictor)]
    apart = f" ({min(rates):.1%}–{max(rates):.1%})" if len(rates) > 1 else ""
    return f"{rate:.1%}{apart}"


def _accuracies(rows: Sequence[Row]) -> str:
    made = [(row, row.accuracy()) for row in rows]
    kinds = dict.fromkeys(kind for _, found in made for kind in found)
    if not kinds:
        return ""
    head = ["kind", *(f"{row.selector}, {row.context}: sparse (dense)" for row in rows)]
    body = [
        [kind, *(f"{f[kind]['sparse']:.1%} ({f[kind]['dense']:.1%})" for _, f in made)]
        for kind in kinds
    ]
    return _table([head, *body])


def _reaching(rows: Sequence[Row], predictors: Sequence[str]) -> str:
    head = ["predictor", *(f"{row.selector}, {row.context}" for row in rows)]
    body = [
        [name, *(_reached(row.tallies(name)[0]) for row in rows)]
        for name in predictors
        if name not in _BOUNDS
    ]
    return _table([head, *body])


def _reached(tally: Tally) -> str:
    rates = zip(TRIED, tally.hit_rates, tally.waste_rates, strict=True)
    found = next(((share, waste) for share, rate, waste in rates if rate >= GOAL), None)
    return "never" if found is None else f"{found[0]:g} ({found[1]:.0%})"


def _by_guesses(totals: dict[str, Tally]) -> str:
    at = [TRIED.index(share) for share in SHOWN]
    body = [
        [name, *(f"{t.hit_rates[n]:.1%} / {t.waste_rates[n]:.0%}" for n in at)]
        for name, t in totals.items()
    ]
    return _table([["predictor", *(f"{share:g}" for share in SHOWN)], *body])


def _by_layer(layers: dict[str, list[Tally]]) -> str:
    body = [
        [f"{tallies[0].layer}", *(f"{tally.hit_rates[_EQUAL]:.1%}" for tally in tallies)]
        for tallies in zip(*layers.values(), strict=True)
    ]
    return _table([["layer", *layers], *body])


def _table(rows: Sequence[Iterable[str]]) -> str:
    head, *body = ([*row] for row in rows)
    made = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in made)


def png(result: RatesResult, target: str) -> bytes:
    """By layer at the longest context, a panel for each selector with 1 and with 1.5 guesses for
    each chosen block; variants of a predictor are left to the tables.
    """
    config = result.config
    budget, longest = config.budgets[len(config.budgets) // 2], max(config.contexts)
    drawn = [n for n in config.all_predictors if n not in _BOUNDS and ":" not in n]
    panels = []
    for row in (r for r in result.rows if (r.budget, r.context) == (budget, longest)):
        for share in (1.0, 1.5):
            at = TRIED.index(share)
            curves = [
                Curve(name=name, number=n, shares=[t.hit_rates[at] for t in row.tallies(name)[1:]])
                for n, name in enumerate(drawn)
            ]
            title = f"{row.selector}, {share:g} guesses for each chosen block"
            panels.append(lines(title, curves, width=_WIDTH, height=_HEIGHT, is_named=True))
    height = 64 + (_HEIGHT + 16) * len(config.selectors)
    pen = Pen(2 * _WIDTH + 3 * _EDGE, height)
    told = (
        f"{target}: budget {budget}, a context of {longest} tokens, {config.tokens} tokens at each "
        f"place. Layers are counted from 1. The baseline is {BASELINE}."
    )
    pen.paint([
        Text(x=_EDGE, y=30, text="Share of the chosen blocks that had been guessed, by layer",
             size=18, is_bold=True),
        Text(x=_EDGE, y=50, text=told, size=12, colour="soft"),
    ])  # fmt: skip
    for number, panel in enumerate(panels):
        left = _EDGE + (_WIDTH + _EDGE) * (number % 2)
        pen.paint(panel.parts, left, 64 + (_HEIGHT + 16) * (number // 2))
    data, about = BytesIO(), PngImagePlugin.PngInfo()
    about.add_itxt("Description", " ".join(panel.alt for panel in panels))
    pen.finish(height).save(data, "PNG", pnginfo=about, optimize=True)
    return data.getvalue()
