"""Why a pair of target and drafter accepts little: both examined part by part, in plain words.

The order is that of elimination: the target alone, its positions and cache, what both share, the
drafter's guesses from true states, and only then real decoding. So a fault is named by the first
check that it breaks.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.drafters._weights import Card
from varifocal.engine import Engine
from varifocal.errors import BadArtifact, DrafterMismatch
from varifocal.evaluation._acceptance_checks import Trial, agreed, inputs, promises, try_out
from varifocal.evaluation._decoding_checks import against_card, tau, texts
from varifocal.evaluation._drafter_checks import DRAFTER_CHECKS, check_drafter
from varifocal.evaluation._findings import Finding, Verdict, attempt, skipped
from varifocal.evaluation._lessons import OUTSIDE, POSITIONS, Lesson, record
from varifocal.evaluation._position_checks import POSITION_CHECKS, check_positions
from varifocal.evaluation._target_checks import check_target
from varifocal.evaluation.compare import judge
from varifocal.evaluation.suites import Case
from varifocal.result import GenerationResult
from varifocal.sampling import Sampling
from varifocal.targets._hf import HFTarget

logger = logging.getLogger(__name__)

__all__ = ["Diagnosis", "Finding", "Verdict", "diagnose", "examine"]

_ACCEPTANCE = ("acceptance.promises", "acceptance.agreement", "acceptance.inputs")
_DECODING = ("decoding.text", "decoding.tau", "decoding.card")
Progress = Callable[[str], None]  # told what is being examined


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All findings about a pair."""

    target: str
    drafter: str
    dtype: str
    requests: int  # that could be asked
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        verdicts = {f.verdict for f in self.findings}
        return "fault" if "fault" in verdicts else "warning" if "warning" in verdicts else "ok"

    @property
    def conclusion(self) -> str:
        """In a sentence: what is the matter, or that nothing was found."""
        faults = [f for f in self.findings if f.verdict == "fault"]
        reasons = [f for f in faults if "reason" in f.numbers]
        # What the drafter is fed cannot be judged while something before it is broken.
        first = faults[0] if faults else None
        if first is None:
            return "no fault was found"
        if reasons and first.check.startswith("acceptance."):
            first = reasons[0]
        return f"{first.check}: {first.numbers.get('reason', first.measured)}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal doctor --json`."""
        return {
            "target": self.target,
            "drafter": self.drafter,
            "dtype": self.dtype,
            "requests": self.requests,
            "verdict": self.verdict,
            "conclusion": self.conclusion,
            "checks": [asdict(f) for f in self.findings],
        }


def diagnose(
    target: HFTarget,
    drafter: str,
    options: Mapping[str, Any],
    cases: Sequence[Case],
    at: Progress = lambda stage: None,
) -> Diagnosis:
    """Load a drafter by name, module or folder, and examine the pair.

    One that does not fit the target, or whose files are damaged, is a finding. Raises BadOption
    where there is no such drafter.
    """
    at(f"loading {drafter}")
    try:
        made = load_drafter(drafter, target, **options)
    except (DrafterMismatch, BadArtifact) as error:
        finding = Finding(check="drafter.load", verdict="fault", measured=str(error))
        return _examine(target, None, drafter, cases, at, finding)
    return examine(target, made, cases, at)


def examine(
    target: HFTarget,
    drafter: Drafter[Any],
    cases: Sequence[Case],
    at: Progress = lambda stage: None,
) -> Diagnosis:
    """Examine a loaded pair on these requests, decoded greedily."""
    loaded = Finding(check="drafter.load", verdict="ok", measured=f"{drafter.name} fits the target")
    return _examine(target, drafter, drafter.name, cases, at, loaded)


def _examine(
    target: HFTarget,
    drafter: Drafter[Any] | None,
    name: str,
    cases: Sequence[Case],
    at: Progress,
    loaded: Finding,
) -> Diagnosis:
    at("the target")
    cases = [_shortened(case) for case in cases]
    findings = check_target(target, cases)
    at("plain decoding")
    asked = _Asked(target, cases)
    at("positions")
    findings += asked.check_positions()
    findings.append(loaded)
    at("what both share")
    why = "the drafter could not be loaded: see drafter.load"
    if drafter is None:
        findings += [skipped(c, why) for c in (*DRAFTER_CHECKS, *_ACCEPTANCE, *_DECODING)]
    else:
        card = _card(drafter)
        findings += check_drafter(target, drafter, card)
        findings += asked.check_guesses(drafter, card, at)
    return Diagnosis(
        target=target.name,
        drafter=name,
        dtype=str(target.dtype).removeprefix("torch."),
        requests=len(asked.cases),
        findings=tuple(findings),
    )


class _Asked:
    """The requests that the target could be asked, with its plain answers."""

    def __init__(self, target: HFTarget, cases: Sequence[Case]) -> None:
        self.target = target
        self.cases: list[Case] = []
        self.plain: list[GenerationResult] = []
        self.reason = "there are no requests"
        engine = Engine(target, load_drafter("plain", target))
        for case in cases:
            try:
                self.plain.append(engine.generate(case.request))
            except Exception as error:  # of any kind; the checks of the target name the fault
                logger.debug("%s cannot be asked", case.id, exc_info=True)
                self.reason = f"the target cannot be asked: {error}"
            else:
                self.cases.append(case)

    def check_positions(self) -> list[Finding]:
        """On a request with a picture, if there is one."""
        if not self.cases:
            return [skipped(check, self.reason) for check in POSITION_CHECKS]
        seen = (n for n, case in enumerate(self.cases) if case.request.images)
        number = next(seen, 0)
        prompt = self.target.encode(self.cases[number].request)
        return check_positions(self.target, prompt, self.plain[number].token_ids)

    def check_guesses(
        self, drafter: Drafter[Any], card: Card | None, at: Progress
    ) -> list[Finding]:
        """From true states, then in decoding."""
        every = (*_ACCEPTANCE, *_DECODING)
        if not self.cases:
            return [skipped(check, self.reason) for check in every]
        if drafter.config.depth == 0:
            return [skipped(check, f"{drafter.name} drafts nothing") for check in every]
        trials: list[Trial] = []

        def tried() -> Finding:
            trials.append(try_out(drafter, self._lessons(drafter, at)))
            return promises(_ACCEPTANCE[0], trials[0])

        kept = attempt(_ACCEPTANCE[0], tried)
        if not trials:
            why = "the drafter broke off: see acceptance.promises"
            return [kept, *(skipped(check, why) for check in every[1:])]
        (trial,) = trials
        at("changed inputs")
        return [
            kept,
            agreed(_ACCEPTANCE[1], drafter, trial),
            attempt(_ACCEPTANCE[2], lambda: inputs(_ACCEPTANCE[2], self.target, drafter, trial)),
            *self._decoded(drafter, card, trial, at),
        ]

    def _lessons(self, drafter: Drafter[Any], at: Progress) -> Iterator[Lesson]:
        for case, plain in zip(self.cases, self.plain, strict=True):
            at(f"drafts for {case.id}")
            prompt = self.target.encode(case.request)
            yield record(self.target, drafter.want, prompt, plain.token_ids, case.id, case.family)

    def _decoded(
        self, drafter: Drafter[Any], card: Card | None, trial: Trial, at: Progress
    ) -> list[Finding]:
        if trial.base.broken[OUTSIDE]:
            # Reading such an id is an error on a CPU and ends the process on a GPU.
            why = "the drafter proposes ids that the target cannot read: see acceptance.promises"
            return [skipped(check, why) for check in _DECODING]
        engine = Engine(self.target, drafter)
        results: list[GenerationResult] = []

        def decoded() -> Finding:
            mismatches = []
            for case, plain in zip(self.cases, self.plain, strict=True):
                at(f"decoding {case.id}")
                results.append(engine.generate(case.request))
                mismatches.append(judge(self.target, case.request, plain, results[-1]))
            return texts(_DECODING[0], mismatches, self.target.dtype)

        same = attempt(_DECODING[0], decoded)
        if len(results) < len(self.cases):
            why = "decoding broke off: see decoding.text"
            return [same, *(skipped(check, why) for check in _DECODING[1:])]
        families = [case.family for case in self.cases]
        return [
            same,
            tau(_DECODING[1], drafter, results, trial),
            against_card(_DECODING[2], card, families, results),
        ]


def _shortened(case: Case) -> Case:
    """Greedy, and no longer than drafts from true states go."""
    request = replace(
        case.request,
        max_new_tokens=min(case.request.max_new_tokens, POSITIONS + 1),
        sampling=Sampling(),
        stop=(),
        logprobs=None,
        id=case.id,
    )
    return replace(case, request=request)


def _card(drafter: Drafter[Any]) -> Card | None:
    """How the drafter was made, if the folder that it came from says so."""
    if drafter.recipe is None:
        return None
    known = {f.name for f in fields(Card)}
    return Card(**{key: value for key, value in drafter.recipe.items() if key in known})
