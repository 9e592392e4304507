"""The answer that a provisional text holds, and where it stands."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An answer found in a text, with the canvas positions that make it that answer."""

    value: str  # normalised: two candidates with one value are the same answer to the scorer
    span: tuple[int, ...]  # canvas positions of the marker, the answer and its closer, ascending
    closed: bool  # whether something ends the answer, so that it cannot grow any more
    marker: int  # the first canvas position of the span
    ids: tuple[int, ...]  # tokens at `span`
    answer: tuple[int, ...] = ()  # canvas positions of the answer alone: a part of `span`
