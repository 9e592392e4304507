"""The text between <answer> and </answer>."""

from dataclasses import dataclass

from varifocal.diffusion.formats._boxes import last_box
from varifocal.diffusion.formats._format import Ending, Format, Match
from varifocal.diffusion.formats._numbers import plain, same


@dataclass(frozen=True, kw_only=True)
class Tag(Format):
    """What the last opening tag is followed by, up to the next closing tag or the stop token."""

    tag: str

    def locate(self, text: str) -> Match | None:
        r"""The inner text without white space around it or a \boxed{} in it; none if empty."""
        opening, closer = f"<{self.tag}>", f"</{self.tag}>"
        begin = text.rfind(opening)
        if begin < 0:
            return None
        inside = begin + len(opening)
        outside = text.find(closer, inside)
        is_closed = outside >= 0
        if not is_closed:
            outside = len(text)
        inner = text[inside:outside]
        if not inner.strip():
            return None
        first = inside + len(inner) - len(inner.lstrip())
        return Match(
            value=_plain(inner),
            begin=begin,
            answer=(first, first + len(inner.strip())),
            end=outside + len(closer) if is_closed else outside,
            ending=Ending.CLOSED if is_closed else Ending.OPEN,
            is_last=True,
        )

    def agrees(self, value: str, reference: str) -> bool:
        """The same text, white space aside, or numbers equal up to 1e-5."""
        return same(value, _plain(reference))


def _plain(inner: str) -> str:
    box = last_box(inner)
    if box is not None and box.ending is not Ending.BROKEN:
        inner = inner[slice(*box.content)]
    return plain(" ".join(inner.split()))


FORMATS = (
    Tag(name="tag", hint="Put the final answer between <answer> and </answer>.", tag="answer"),
)
