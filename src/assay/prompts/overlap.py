"""Is the held-out set really held out? Identical texts, and long shared passages.

Normalisation keeps whatever can change an answer (digits, operators, brackets) and drops case, spacing and sentence
punctuation. Shared 13-grams are the usual test for contamination (GPT-3, arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GRAM = 13
EXAMPLES = 3
# Scripts without spaces between words: there every character is a word.
WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+(?:[.,]\w+)*|[^\w\s.,;:?!'\"`]"
)


@dataclass(frozen=True)
class Overlap:
    """Indices of training texts equal to a held-out one, and how many held-out texts are affected.

    `shared_passage` counts held-out texts of which a 13-gram, common boilerplate aside, stands in a training text.
    `examples` are a few of them: (held-out text, training text, what they share), texts by their beginnings.
    """

    identical_train: tuple[int, ...]
    identical_heldout: int
    shared_passage: int
    examples: tuple[tuple[str, str, str], ...]


def words(text: str) -> list[str]:
    """The words of a text after normalisation.

    >>> words("What is  3 + 4?") == words("what is 3 + 4"), words("3 - 4") == words("3 + 4")
    (True, False)
    """
    return WORDS.findall(unicodedata.normalize("NFKC", text).lower())


def grams(text: str) -> Iterator[tuple[str, ...]]:
    tokens = words(text)
    return (tuple(tokens[start : start + GRAM]) for start in range(len(tokens) - GRAM + 1))


def find_overlap(train: Sequence[str], heldout: Sequence[str]) -> Overlap:
    """Compare two lists of texts; passages found in more than 1% (and more than ten) training texts are boilerplate."""
    held = [tuple(words(text)) for text in heldout]
    held_texts = set(held)
    identical = [index for index, text in enumerate(train) if tuple(words(text)) in held_texts]
    hit = {tuple(words(train[index])) for index in identical}
    identical_heldout = [index for index, text in enumerate(held) if text in hit]
    held_grams = {gram for text in heldout for gram in grams(text)}
    found: Counter[tuple[str, ...]] = Counter()
    place: dict[tuple[str, ...], int] = {}
    for index, text in enumerate(train):
        here = held_grams.intersection(grams(text))
        found.update(here)
        place.update({gram: index for gram in here if gram not in place})
    common = max(10, len(train) // 100)
    telling = {gram for gram, count in found.items() if count <= common}
    shared = [index for index, text in enumerate(heldout) if not telling.isdisjoint(grams(text))]
    examples = []
    for index in identical_heldout[:EXAMPLES]:
        twin = next(number for number in identical if tuple(words(train[number])) == held[index])
        examples.append((heldout[index][:120], train[twin][:120], "all of it"))
    for index in [index for index in shared if held[index] not in hit][: EXAMPLES - len(examples)]:
        gram = next(gram for gram in grams(heldout[index]) if gram in telling)
        examples.append((heldout[index][:120], train[place[gram]][:120], " ".join(gram)))
    return Overlap(tuple(identical), len(identical_heldout), len(shared), tuple(examples))
