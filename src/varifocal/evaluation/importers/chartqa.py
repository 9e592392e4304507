"""ChartQA: questions about charts, of people and of a model. [Findings of ACL 2022, 177]"""

from varifocal.evaluation.importers._layout import Form, Layout, Row


def _place(name: str, row: Row) -> str:
    return f"png/{name}"


LAYOUT = Layout(
    title="ChartQA",
    verified="the cards of the hub's HuggingFaceM4/ChartQA, ahmed-masry/ChartQA and "
    "lmms-lab/ChartQA, and the script that made the last of the authors' files",
    forms=(
        Form(
            name="HuggingFaceM4/ChartQA and ahmed-masry/ChartQA",
            files=("**/*.parquet",),
            question="query",
            answer="label",
            picture="image",
        ),
        Form(
            name="lmms-lab/ChartQA",
            files=("**/*.parquet",),
            question="question",
            answer="answer",
            picture="image",
        ),
        Form(
            name="the authors' ChartQA Dataset",
            files=("**/*_human.json", "**/*_augmented.json"),
            question="query",
            answer="label",
            picture="imgname",
        ),
    ),
    split="official",
    place=_place,
)
