"""Documents into passages, passages into strips: every piece knows where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import sentencex
from markdown_it import MarkdownIt
from semantic_text_splitter import MarkdownSplitter

from crag_dspy.index import passage_id
from crag_dspy.types import Document, Passage, Strip

# Characters. About a paragraph or a short section: enough to be judged alone, and cheap to score and to read.
PASSAGE_CHARS = (350, 800)
STRIP_SENTENCES = 2
SHORT_SENTENCE = 60  # characters; a shorter one rarely stands alone and joins its neighbour

_splitter = MarkdownSplitter(PASSAGE_CHARS, trim=True)
_markdown = MarkdownIt("commonmark")


def split(document: Document) -> list[Passage]:
    """Return the document's passages, in order, each with its heading path and offsets."""
    headings = _headings(document.text)
    passages = []
    for start, text in _splitter.chunk_indices(document.text):
        if not text.strip():
            continue
        # A passage that begins with headings belongs below them.
        body = start + _leading_headings(text)
        section = " > ".join(_path(headings, body))
        passages.append(
            Passage(
                id=passage_id(document, section, start, text),
                document_id=document.id,
                title=document.title,
                text=text,
                section=section,
                start=start,
                end=start + len(text),
                source_type=document.source_type,
                url=document.url,
                published_at=document.published_at,
                retrieved_at=document.retrieved_at,
                snippet=document.snippet,
            )
        )
    return passages


def strips(passage: Passage) -> list[Strip]:
    """Return the passage's strips: table rows and list items alone, prose in one or two sentences.

    A sentence shorter than 60 characters is joined to the one before it in its paragraph. Headings are no strips.
    """
    found: list[Strip] = []
    for start, end in _blocks(passage.text):
        sentences = _sentences(passage.text, start, end)
        group: list[tuple[int, int]] = []
        for sentence in sentences:
            joins = (
                group
                and len(group) < STRIP_SENTENCES
                and (sentence[1] - sentence[0] < SHORT_SENTENCE or group[-1][1] - group[-1][0] < SHORT_SENTENCE)
            )
            if group and not joins:
                found.append(Strip(passage=passage, start=group[0][0], end=group[-1][1]))
                group = []
            group.append(sentence)
        if group:
            found.append(Strip(passage=passage, start=group[0][0], end=group[-1][1]))
    return found


_LINE = re.compile(r"[^\n]+")
_OWN_LINE = re.compile(r"\s*(?:[-*+•]\s|\d+[.)]\s|\|)")
_HEADING = re.compile(r"\s*#{1,6}\s")
_RULE = re.compile(r"[\s|:\-=*_`~]*")


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of paragraphs, list items, table rows and fenced code."""
    open_start: int | None = None
    open_end = 0
    previous_end = 0
    fence: int | None = None
    for line in _LINE.finditer(text):
        blank_before = text.count("\n", previous_end, line.start()) > 1
        previous_end = line.end()
        if line.group().lstrip().startswith("```"):
            if fence is None:
                fence = line.end()
            else:
                yield fence, line.start()
                fence = None
            continue
        if fence is not None:
            continue
        own = _OWN_LINE.match(line.group()) or _HEADING.match(line.group()) or _RULE.fullmatch(line.group())
        if open_start is not None and (own or blank_before):
            yield open_start, open_end
            open_start = None
        if _HEADING.match(line.group()) or _RULE.fullmatch(line.group()):
            continue
        if open_start is None:
            open_start = line.start()
        open_end = line.end()
    if fence is not None and fence < len(text):
        yield fence, len(text)
    if open_start is not None:
        yield open_start, open_end


def _sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans = []
    position = start
    for sentence in sentencex.segment("en", text[start:end]):
        stripped = sentence.strip()
        if stripped:
            at = text.index(stripped, position, end)
            spans.append((at, at + len(stripped)))
            position = at + len(stripped)
    return spans


def _headings(text: str) -> list[tuple[int, int, str]]:
    """Return (offset, level, title) of every Markdown heading outside code."""
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    tokens = _markdown.parse(text)
    return [
        (line_starts[token.map[0]], int(token.tag[1:]), tokens[i + 1].content.strip())
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and token.map
    ]


def _path(headings: list[tuple[int, int, str]], offset: int) -> list[str]:
    path: list[tuple[int, str]] = []
    for at, level, title in headings:
        if at >= offset:
            break
        path = [entry for entry in path if entry[0] < level] + [(level, title)]
    return [title for _, title in path]


def _leading_headings(text: str) -> int:
    """Return the offset of the first line that is neither blank nor a heading."""
    for line in _LINE.finditer(text):
        if line.group().strip() and not _HEADING.match(line.group()):
            return line.start()
    return len(text)
