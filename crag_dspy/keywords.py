"""Keyword ranking of the index: BM25 over words, codes and numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

import bm25s
import numpy as np
import regex

# Letters and digits, and what joins them inside a code, a version, a path or a compound: TW-4410, v2.1, docs/leave.md.
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:[-._/:'+][\p{L}\p{M}\p{N}]+)*")
_PART = regex.compile(r"\p{N}+(?:\.\p{N}+)*|[\p{L}\p{M}]+")
# Scripts that put no space between words.
_RUN = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]+")
_THOUSANDS = regex.compile(r"(?<=\p{N})[,\u202f\u00a0'](?=\p{N}{3}(?!\p{N}))")
_ACCENTS = regex.compile(r"(?<=[\p{Latin}\p{Greek}])[\u0300-\u036f]+")
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-") | {0x2019: "'"}
_JOINTS = str.maketrans("", "", "-_/:'+")


def tokens(text: str) -> Iterator[str]:
    """Give the words of a text, as the ranking compares them: without case, accents and thousands separators.

    A code or version counts as a whole and by its parts, so that `TW-4410`, `TW4410` and `4410` meet, and `v2.1` and `2.1`. Text
    written without spaces counts by pairs of characters, as in Lucene's CJKAnalyzer.
    """
    text = _THOUSANDS.sub("", text)
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text.translate(_DASHES)).casefold())
    text = unicodedata.normalize("NFC", _ACCENTS.sub("", text))
    for word in _WORD.findall(text):
        if _RUN.search(word):
            yield from _pairs(word)
            continue
        parts = _PART.findall(word)
        if len(parts) > 1:
            yield word.translate(_JOINTS)
        yield from parts


def _pairs(word: str) -> Iterator[str]:
    end = 0
    for run in _RUN.finditer(word):
        yield from _PART.findall(word[end : run.start()])
        characters = run.group()
        yield from (characters[i : i + 2] for i in range(max(1, len(characters) - 1)))
        end = run.end()
    yield from _PART.findall(word[end:])


class Keywords:
    """Texts by id, ranked for a question by BM25 (Robertson and Zaragoza 2009, as in Lucene). Never changes; see `updated`."""

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._texts: dict[str, list[int]] = {}

    def updated(self, added: Mapping[str, str], removed: Collection[str]) -> Keywords:
        """Return a ranking with texts added and others removed; texts that stay are not read again."""
        new = Keywords()
        new._vocabulary = dict(self._vocabulary)
        number = new._vocabulary
        new._texts = {key: text for key, text in self._texts.items() if key not in removed}
        for key, text in added.items():
            new._texts[key] = [number.setdefault(token, len(number)) for token in tokens(text)]
        return new

    def rank(self, question: str, n: int, among: Collection[str] | None = None) -> list[str]:
        """Return the ids of the `n` texts that match best, best first, ties by id; those that share no word are left out."""
        asked = [self._vocabulary[token] for token in tokens(question) if token in self._vocabulary]
        if not asked or n < 1 or not any(self._texts.values()):
            return []
        ids, place, bm25 = self._ranking
        scores = bm25.get_scores(asked)
        if among is not None:
            admitted = np.zeros(len(ids), dtype=bool)
            admitted[[place[key] for key in among if key in place]] = True
            scores = np.where(admitted, scores, 0.0)
        least = np.partition(scores, -n)[-n] if n < len(ids) else 0.0
        best = np.flatnonzero((scores > 0) & (scores >= least))
        best = best[np.argsort(-scores[best], kind="stable")]  # stable: equal scores stay in the order of ids
        return [ids[i] for i in best[:n]]

    @cached_property
    def _ranking(self) -> tuple[list[str], dict[str, int], bm25s.BM25]:
        ids = sorted(self._texts)
        bm25 = bm25s.BM25()
        bm25.index(([self._texts[key] for key in ids], self._vocabulary), create_empty_token=False, show_progress=False)
        return ids, {key: i for i, key in enumerate(ids)}, bm25
