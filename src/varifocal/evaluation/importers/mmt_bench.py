"""MMT-Bench: 31,325 multiple-choice questions of 162 tasks. [arXiv 2404.16006]

The files ALL_MI and VAL_MI, and the hub's MMT_MI-Benchmark, hold several pictures a record; the
others hold one. A TSV may not name another record's picture instead of holding its own.
"""

from varifocal.evaluation.importers._layout import Form, Layout

_OPTIONS = tuple("ABCDEFGHI")

LAYOUT = Layout(
    title="MMT-Bench",
    verified="the cards of the hub's lmms-lab/MMT-Benchmark and lmms-lab/MMT_MI-Benchmark; of the "
    "authors' TSV only question and image, which published code reads, the others being the card's",
    forms=(
        Form(
            name="lmms-lab/MMT-Benchmark and lmms-lab/MMT_MI-Benchmark",
            files=("**/*.parquet",),
            id="index",
            question="question",
            options=_OPTIONS,
            answer="answer",
            picture="image",
        ),
        Form(
            name="OpenGVLab/MMT-Bench and Kaining/MMT-Bench",
            files=("**/MMT-Bench_*.tsv",),
            id="index",
            question="question",
            options=_OPTIONS,
            answer="answer",
            picture="image",
            optional=("answer",),  # published late for all but the validation part
            is_single=True,
        ),
    ),
    split="drawn",
)
