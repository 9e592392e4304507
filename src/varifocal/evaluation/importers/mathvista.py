"""MathVista: 6,141 mathematical questions about pictures. [arXiv 2310.02255]

The answers of its 5,141 test questions are not published. The question is asked with its options;
the longer `query` of the hub's files, with a hint on the form of the answer, is not used.
"""

from varifocal.evaluation.importers._layout import Form, Layout

LAYOUT = Layout(
    title="MathVista",
    verified="the card of the hub's AI4Math/MathVista and the authors' testmini.json",
    forms=(
        Form(
            name="AI4Math/MathVista",
            files=("**/*.parquet",),
            id="pid",
            question="question",
            options=("choices",),
            answer="answer",
            picture="decoded_image",
        ),
        Form(
            name="the authors' folder",
            files=("**/test.json", "**/testmini.json"),
            records="*",
            id="pid",
            question="question",
            options=("choices",),
            answer="answer",
            picture="image",
            optional=("answer",),
        ),
    ),
    split="drawn",
)
