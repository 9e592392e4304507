"""MME: 2,374 questions that are answered by yes or no, two a picture. [arXiv 2306.13394]

The authors' folder has a folder for each of 14 categories: a text file a picture, each line a
question, a tab and the answer. The pictures lie beside them, or in `images` with the texts in
`questions_answers_YN`.
"""

from collections.abc import Iterator
from pathlib import Path

from varifocal.errors import BadArtifact
from varifocal.evaluation.importers._layout import Form, Layout, Row

_TEXTS = "questions_answers_YN"
_SUFFIXES = (".jpg", ".png", ".jpeg")


def _read(path: Path) -> Iterator[Row]:
    folder = path.parent
    category = folder.parent if folder.name == _TEXTS else folder
    pictures = category / "images" if folder.name == _TEXTS else folder
    named = [pictures / f"{path.stem}{suffix}" for suffix in _SUFFIXES]
    picture = next((p for p in named if p.is_file()), named[0])
    for line in path.read_text(encoding="utf-8-sig").split("\n"):
        question, tab, answer = line.strip().partition("\t")
        if not question:
            continue
        if not tab or "\t" in answer:
            raise BadArtifact(
                f"{path}: wanted a question, a tab and an answer a line, got {line[:80]!r}. Name "
                "the folder MME_Benchmark, whose folders are the categories"
            )
        yield {
            "id": f"{category.name}/{path.stem}",
            "question": question,
            "answer": answer,
            "picture": picture,
        }


LAYOUT = Layout(
    title="MME",
    verified="the card of the hub's lmms-lab/MME, and a public description of the authors' folder",
    forms=(
        Form(
            name="lmms-lab/MME",
            files=("**/*.parquet",),
            id="question_id",
            question="question",
            answer="answer",
            picture="image",
        ),
        Form(
            name="the authors' MME_Benchmark",
            files=("*/*.txt", f"*/{_TEXTS}/*.txt"),
            id="id",
            question="question",
            answer="answer",
            picture="picture",
            read=_read,
        ),
    ),
    split="whole",
    parts={"test": ("test",)},
)
