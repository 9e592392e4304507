"""Requests for the doctor, and what to read off its diagnosis."""

from tiny import picture

from varifocal.evaluation.doctor import Diagnosis, Finding
from varifocal.evaluation.suites import Case
from varifocal.request import ask

TOKENS = 24


def case(number: int = 0, tokens: int = TOKENS) -> Case:
    request = ask("what is it?", [picture(number)], max_new_tokens=tokens)
    return Case(id=f"c{number}", family="noise", request=request)


def found(diagnosis: Diagnosis, check: str) -> Finding:
    (finding,) = [f for f in diagnosis.findings if f.check == check]
    return finding


def faults(diagnosis: Diagnosis) -> list[str]:
    return [f.check for f in diagnosis.findings if f.verdict == "fault"]
