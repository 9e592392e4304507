"""Any text: the answer is all of it, up to the stop token."""

from varifocal.diffusion.formats._format import Ending, Format, Match


class Free(Format):
    """The whole text, closed by nothing but a stop token. An empty text holds no answer."""

    def locate(self, text: str) -> Match | None:
        """The text without white space around it."""
        value = text.strip()
        if not value:
            return None
        begin = text.index(value)
        return Match(
            value=value,
            begin=0,
            answer=(begin, begin + len(value)),
            end=len(text),
            ending=Ending.OPEN,
        )

    def agrees(self, value: str, reference: str) -> bool:
        """Equal character by character, white space around them aside."""
        return value == reference.strip()


FORMATS = (Free(name="free", hint="Answer freely."),)
