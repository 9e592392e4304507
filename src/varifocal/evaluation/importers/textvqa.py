"""TextVQA: questions that need the text in a picture. [arXiv 1904.08920]

Ten people answered each; the most frequent answer is the reference. Measured on are the 5,000
questions of the validation part, because the answers of the test part are not published.
"""

from collections import Counter

from varifocal.evaluation.importers._layout import Form, Layout, Row, listed, text_of


def _most_frequent(value: object, row: Row) -> str:
    answers = Counter(text_of(answer) for answer in listed(value))
    return answers.most_common(1)[0][0] if answers else ""


def _place(name: str, row: Row) -> str:
    return f"train_images/{name}.jpg"  # of the validation part too


LAYOUT = Layout(
    title="TextVQA",
    verified="the card of the hub's lmms-lab/textvqa, and public code that reads the authors' "
    "TextVQA_0.5.1_val.json with its pictures",
    forms=(
        Form(
            name="lmms-lab/textvqa",
            files=("**/*.parquet",),
            id="question_id",
            question="question",
            answer="answers",
            picture="image",
        ),
        Form(
            name="the authors' TextVQA_0.5.1_val.json",
            files=("**/TextVQA_0.5.1_*.json",),
            records="data",
            id="question_id",
            question="question",
            answer="answers",
            picture="image_id",
            optional=("answers",),
        ),
    ),
    split="whole",
    parts={"test": ("validation", "val")},
    answer=_most_frequent,
    place=_place,
)
