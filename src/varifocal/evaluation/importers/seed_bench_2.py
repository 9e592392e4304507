"""SEED-Bench-2: 24,371 multiple-choice questions of 27 dimensions. [arXiv 2311.17092]

Taken are the questions about a single picture (dimensions 1 to 16). Those about several pictures,
frames of videos or pictures to be chosen from are left out before the split is drawn, and counted.
"""

from varifocal.evaluation.importers._layout import Form, Layout, Row

_OPTIONS = ("choice_a", "choice_b", "choice_c", "choice_d")
_FOLDERS = {"cc3m": "cc3m-image", "SEED-Bench v2": "SEED-Bench-2-image"}  # as unzipped


def _place(name: str, row: Row) -> str:
    return f"{_FOLDERS.get(row['data_source'], row['data_source'])}/{name}"


def _leave_out(row: Row) -> str:
    kind = row["data_type"]
    return "" if kind == "Single Image" else f"of the type {kind}"


LAYOUT = Layout(
    title="SEED-Bench-2",
    verified="the authors' DATASET.md and eval.py, and the card of the hub's lmms-lab/SEED-Bench-2",
    forms=(
        Form(
            name="lmms-lab/SEED-Bench-2",
            files=("**/*.parquet",),
            id="question_id",
            question="question",
            options=_OPTIONS,
            answer="answer",
            picture="image",
            others=("data_type",),
        ),
        Form(
            name="AILab-CVC/SEED-Bench-2",
            files=("**/SEED-Bench_v2_level1_2_3.json",),
            records="questions",
            id="question_id",
            question="question",
            options=_OPTIONS,
            answer="answer",
            picture="data_id",
            others=("data_type", "data_source"),
        ),
    ),
    split="drawn",
    place=_place,
    leave_out=_leave_out,
)
