"""What evaluation sets hold, as hashes: which row of theirs a row of the data shares text with."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charter.feedback.prepare_rows import Candidate
from charter.feedback.prepare_words import Hashes, runs_of, words_of


@dataclass(frozen=True)
class HeldOut:
    """The runs of words of all evaluation sets, sorted, each with the row that it comes from."""

    run_words: int
    runs: Hashes
    rows: NDArray[np.uint32]
    """Index of the first evaluation row that has the run."""

    def first_shared(self, candidate: Candidate, words: tuple[Hashes, ...]) -> int | None:
        """The evaluation row that a row shares a run of words with, None when there is none.

        `words` are those of the candidate's prompt and of each answer. A prompt that is shorter than a run is compared
        whole, and so is the opening turn of a conversation; a short answer ("Yes.") says nothing.
        """
        if not len(self.runs):
            return None
        own = [runs_of(part, self.run_words) for part in words if len(part) >= self.run_words]
        own += [runs_of(short, self.run_words) for short in (words[0], words_of(candidate.opening))]
        found = np.concatenate(own)
        places = np.searchsorted(self.runs, found)
        places[places == len(self.runs)] = 0
        hits = places[self.runs[places] == found]
        return int(self.rows[hits].min()) if len(hits) else None


def held_out_of(candidates: Iterable[Candidate], *, run_words: int) -> HeldOut:
    """The runs of all rows of the evaluation sets; twelve bytes each are held."""
    runs, rows = array("Q"), array("I")
    for index, candidate in enumerate(candidates):
        for part, text in enumerate((candidate.prompt, *candidate.answers)):
            words = words_of(text)
            if part and len(words) < run_words:
                continue
            own = np.unique(runs_of(words, run_words))
            runs.frombytes(own.tobytes())
            rows.extend([index] * len(own))
    unique, first = np.unique(np.frombuffer(runs, dtype=np.uint64), return_index=True)
    return HeldOut(run_words, unique, np.frombuffer(rows, dtype=np.uint32)[first])
