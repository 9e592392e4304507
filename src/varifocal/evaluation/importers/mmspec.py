"""MMSpec: 600 requests on six topics, made to compare speculative decoding. [arXiv 2603.14989]

Of a conversation of several turns the first is asked: the others follow on answers of the model,
which no file holds. They are counted.
"""

from varifocal.evaluation.importers._layout import Form, Layout, Row


def _place(name: str, row: Row) -> str:
    return f"images/{name}"


LAYOUT = Layout(
    title="MMSpec",
    verified="the authors' description and a published copy of testmini/mmspec.jsonl",
    forms=(
        Form(
            name="the authors' folder",
            files=("**/mmspec.jsonl",),
            id="id",
            question="turns",
            has_turns=True,
            picture="image",
            family="topic",
        ),
    ),
    split="whole",
    parts={"test": ("test",)},
    max_new_tokens=1024,  # the authors' own; FOVEA's paper has 200
    place=_place,
)
