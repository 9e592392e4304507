"""Tables 1 to 8 of TABED on the demo's scenarios. [TABED, Sec. 4 to 6, App. B]

M, T, P and C are single views of a draft model; MT* and MTCP* mix several, with weights from the
target's verdicts on the text so far. Table 1 is measured on all families of the scenarios, the
others on those of `BRIEF`. Left out: the paper's other draft models and targets, which
`--draft-model` and `--target` name. A tree of width d has as many nodes as d chains, the likeliest
by the mixture (`drafters._growth`); the paper does not say which it keeps.
"""

from typing import Final

from varifocal.evaluation.experiment import Claim, Experiment
from varifocal.evaluation.presets import Preset
from varifocal.evaluation.scenarios import GROUPS, MAX_NEW_TOKENS, names
from varifocal.evaluation.suites import SCENARIOS

BRIEF: Final = (
    "general", "document", "yesno", "chart", "poster", "collage", "two-changes", "five-last",
    "second-related", "second-unrelated",
)  # fmt: skip
# The draft model is its own captioner, by the request with which the embedded one learned it.
_CAPTION: Final = "caption_prompt=Describe the picture in detail.:caption_tokens=80"
_MTCP: Final = "policy=mtcp:labels=kl"  # [TABED, B.2]


def _entry(label: str, views: str, depth: int = 5, width: int = 1, options: str = "") -> str:
    """A row that drafts the same number of nodes every round."""
    shape = f"depth={depth}:nodes={depth * width}" + (f":width={width}" if width > 1 else "")
    settings = [shape, *([_CAPTION] if "C" in views else []), *([options] if options else [])]
    return f"ensemble{{model}}:views={views}:{':'.join(settings)}:label={label}"


def _preset(
    number: int,
    title: str,
    entries: dict[str, str],
    claims: tuple[Claim, ...],
    *,
    depth: int = 5,
    blocks: tuple[tuple[str, ...], ...] = (),
    families: tuple[str, ...] = BRIEF,
) -> Preset:
    return Preset(
        title=f"TABED, Table {number}: {title}",
        limit=5,
        repeats=1,
        drafters=",".join(("plain", *entries.values())),
        suite=SCENARIOS,
        families=families,
        max_new_tokens=MAX_NEW_TOKENS,
        experiment=Experiment(
            name=f"tabed-{number}",
            source=f"TABED, Table {number}",
            depth=depth,
            blocks=blocks or (tuple(entries),),
            claims=claims,
            groups=GROUPS,
        ),
    )


def _every(depth: int) -> dict[str, str]:
    """All views alone, and both mixtures."""
    return {view: _entry(view, view, depth) for view in "MTCP"} | {
        "MT*": _entry("MT*", "MT", depth),
        "MTCP*": _entry("MTCP*", "MTCP", depth, options=_MTCP),
    }


def _tree(width: int) -> dict[str, str]:
    views = {f"M d={width}": "M", f"T d={width}": "T", f"MT* d={width}": "MT"}
    return {label: _entry(label, own, width=width) for label, own in views.items()}


_SINGLE: Final = ("M", "T")
_FOUR: Final = ("M", "T", "C", "P")
_BOTH: Final = (Claim(method="MT*", near=_SINGLE), Claim(method="MTCP*", near=_FOUR))
_MT: Final = {"MT*": _entry("MT*", "MT")}
_WINDOWS: Final = {
    f"MT* h={h or 'all'}": _entry(f"MT* h={h or 'all'}", "MT", options=f"window={h}" if h else "")
    for h in (1, 4, 16, 0)
}

_LABELS: Final = ("hard", "kl")

PRESETS: Final[dict[str, Preset]] = {
    "tabed-1": _preset(
        1,
        "with the picture (M), without (T), both with weights that adapt (MT*)",
        {view: _entry(view, view) for view in _SINGLE} | _MT,
        (Claim(method="MT*", near=_SINGLE),),
        families=tuple(names()),
    ),
    "tabed-2": _preset(
        2,
        "the same with token trees of width 2 and 3",
        _tree(2) | _tree(3),
        tuple(Claim(method=f"MT* d={d}", near=(f"M d={d}", f"T d={d}")) for d in (2, 3)),
        blocks=(tuple(_tree(2)), tuple(_tree(3))),
    ),
    "tabed-3": _preset(
        3,
        "captions (C) and pooled pictures (P) as well, and all four together (MTCP*)",
        {view: _entry(view, view) for view in _FOUR}
        | {"MTCP*": _entry("MTCP*", "MTCP", options=_MTCP)},
        (Claim(method="MTCP*", near=_FOUR),),
    ),
    "tabed-4": _preset(
        4,
        "weights that are random, equal, or adapt",
        {
            "MT random": _entry("MT random", "MT", options="policy=random"),
            "MT static": _entry("MT static", "MT", options="policy=static"),
        }
        | _MT,
        (Claim(method="MT*", near=("MT random", "MT static"), those="fixed or random weighting"),),
    ),
    "tabed-5": _preset(
        5,
        "weights from the newest 1, 4, 16 or all positions",
        _WINDOWS,
        (Claim(method="MT* h=all", near=tuple(_WINDOWS)[:-1], those="shorter window"),),
    ),
    "tabed-6": _preset(6, "drafts of 3", _every(3), _BOTH, depth=3),
    "tabed-7": _preset(7, "drafts of 7", _every(7), _BOTH, depth=7),
    "tabed-8": _preset(
        8,
        "weights from AdaBoost, or from the grid by hard labels, KL, or TVD (MT*)",
        {"MT AdaBoost": _entry("MT AdaBoost", "MT", options="policy=adaboost")}
        | {
            f"MT {labels}": _entry(f"MT {labels}", "MT", options=f"labels={labels}")
            for labels in _LABELS
        }
        | _MT,
        (Claim(method="MT*", near=("MT AdaBoost", *(f"MT {n}" for n in _LABELS)), those="other"),),
    ),
}
