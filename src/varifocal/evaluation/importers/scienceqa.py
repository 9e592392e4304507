"""ScienceQA: multiple-choice questions of school science, half of them with a picture.

Questions without a picture are left out and counted. [arXiv 2209.09513]
"""

from string import ascii_uppercase

from varifocal.evaluation.importers._layout import Form, Layout, Row


def _letter(value: object, row: Row) -> str:
    return ascii_uppercase[value] if isinstance(value, int) and 0 <= value < 26 else ""


def _place(name: str, row: Row) -> str:
    return f"images/{row['split']}/{row['pid']}/{name}"


def _leave_out(row: Row) -> str:
    return "" if row["image"] else "without a picture"


LAYOUT = Layout(
    title="ScienceQA",
    verified="the card of the hub's derek-thomas/ScienceQA, and public code that reads the "
    "authors' problems.json with its pictures",
    forms=(
        Form(
            name="derek-thomas/ScienceQA",
            files=("**/*.parquet",),
            context="hint",
            question="question",
            options=("choices",),
            answer="answer",
            picture="image",
        ),
        Form(
            name="the authors' problems.json",
            files=("**/problems.json",),
            records="*",
            id="pid",
            context="hint",
            question="question",
            options=("choices",),
            answer="answer",
            picture="image",
            part="split",
        ),
    ),
    split="official",
    answer=_letter,
    place=_place,
    leave_out=_leave_out,
    looks_at_pictures=True,
)
