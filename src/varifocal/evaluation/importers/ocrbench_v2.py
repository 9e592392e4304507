"""OCRBench v2: 10,000 questions about text in pictures. [arXiv 2501.00321]

The first OCRBench has 1,000 questions in all, so that 1,000 for training leave none to measure on:
what papers split in that way must be this one.
"""

from varifocal.evaluation.importers._layout import Form, Layout

LAYOUT = Layout(
    title="OCRBench v2",
    verified="the card of the hub's ling99/OCRBench_v2, and the authors' description of "
    "OCRBench_v2.json with the script that made the card's files of it",
    forms=(
        Form(
            name="ling99/OCRBench_v2",
            files=("**/*.parquet",),
            id="id",
            question="question",
            answer="answers",
            picture="image",
        ),
        Form(
            name="the authors' OCRBench_v2.json",
            files=("**/OCRBench_v2.json",),
            id="id",
            question="question",
            answer="answers",
            picture="image_path",
            optional=("answers",),  # some records have none
        ),
    ),
    split="drawn",
)
