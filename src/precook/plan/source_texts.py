"""Texts of sources: captions and texts themselves, read once for all that lie in one file."""

from __future__ import annotations

from collections.abc import Sequence

from precook.plan.targets import Samples
from precook.sources.documents import DocumentText


class SourceTexts:
    """Finds texts of samples. What was read last is kept: ask for those of one file one after the other.

    A long text has thousands of passages, and a caption with its tags as many variations: to read it anew for each
    takes hours.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._file: tuple[int, int] | None = None
        self._texts: Sequence[DocumentText] = ()

    def file(self, sample: int) -> tuple[int, int]:
        """What is read for a sample: its concept's number, and the row of its file or of its table."""
        concept, number = self._samples.in_concept(sample)
        return int(self._samples.concepts[sample]), int(concept.rows[number])

    def find(self, sample: int, line: int) -> DocumentText | None:
        """One of a sample's captions, or the text that it is, as it stands there now; None where that is no more."""
        concept, number = self._samples.in_concept(sample)
        file = self.file(sample)
        if file != self._file:
            self._texts = concept.texts(number) if concept.passages is None else concept.document(number)
            self._file = file
        place = line if concept.passages is None else int(concept.passages[number])
        return self._texts[place] if place < len(self._texts) else None
