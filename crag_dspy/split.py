"""Documents into passages, passages into strips: every piece knows where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

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


def storable(document: Document) -> Document:
    """Return the document with a "?" for every lone surrogate, which UTF-8 cannot carry; all offsets stay."""
    fields = {"id": document.id, "title": document.title, "text": document.text}
    return document.model_copy(update={name: value.encode("utf-8", "replace").decode() for name, value in fields.items()})


def split(document: Document) -> list[Passage]:
    """Return the document's passages, in order, each with its heading path and offsets."""
    document = storable(document)
    outline = headings(document.text)
    passages = []
    for start, text in _splitter.chunk_indices(document.text):
        if not text.strip():
            continue
        # A passage that begins with headings belongs below them.
        body = _after_headings(document.text, outline, start, start + len(text))
        section = " > ".join(_path(outline, body))
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


_LINE = re.compile(r"[^\r\n]+")
_LINE_END = re.compile(r"\r\n?|\n")
_SPACE = re.compile(r"[^\S\n]")
_OWN_LINE = re.compile(r"\s*(?:[-*+•]\s|\d+[.)]\s|\|)")
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)\s*")
_RULE = re.compile(r"[\s|:\-=*_`~]*")
_CODE = re.compile(r"^[ \t]*(?P<mark>```+|~~~+)[^`\r\n]*(?=[\r\n]|\Z)(?P<body>.*?)(?:^[ \t]*(?P=mark)[^\r\n]*|\Z)", re.M | re.S)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of paragraphs, list items, table rows and fenced code, in order."""
    position = 0
    for code in _CODE.finditer(text):
        yield from _prose(text, position, code.start())
        yield code.span("body")
        position = code.end()
    yield from _prose(text, position, len(text))


def _prose(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    block: tuple[int, int] | None = None
    previous_end = start
    for line in _LINE.finditer(text, start, end):
        content = line.group()
        blank_before = len(_LINE_END.findall(text, previous_end, line.start())) > 1
        previous_end = line.end()
        no_text = _HEADING.match(content) or _RULE.fullmatch(content)
        if block and (blank_before or no_text or _OWN_LINE.match(content)):
            if blank_before or not (_UNDERLINE.fullmatch(content) and _is_one_line(text[slice(*block)])):
                yield block  # else it is an underlined heading
            block = None
        if not no_text:
            block = (block[0] if block else line.start(), line.end())
    if block:
        yield block


def _is_one_line(block: str) -> bool:
    return not _LINE_END.search(block) and not _OWN_LINE.match(block)


def _sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans = []
    position = start
    # sentencex 1.0.32 panics on a capital letter, a space outside ASCII and a full stop ("J\xa0. "), so all spaces become " ".
    for sentence in sentencex.segment("en", _SPACE.sub(" ", text[start:end])):
        stripped = sentence.strip()
        if stripped:
            at = position + len(sentence) - len(sentence.lstrip())
            spans.append((at, at + len(stripped)))
        position += len(sentence)
    return spans


class Heading(NamedTuple):
    """A heading and the offsets of its lines."""

    start: int
    end: int
    level: int
    title: str


def headings(text: str) -> list[Heading]:
    """Return every Markdown heading outside code."""
    # The parser ends lines at \r, \n and \r\n alike.
    line_starts = [0, *(match.end() for match in _LINE_END.finditer(text)), len(text)]
    tokens = _markdown.parse(text)
    return [
        Heading(line_starts[token.map[0]], line_starts[token.map[1]], int(token.tag[1:]), tokens[i + 1].content.strip())
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and token.map
    ]


def _path(outline: list[Heading], offset: int) -> list[str]:
    path: list[Heading] = []
    for heading in outline:
        if heading.start >= offset:
            break
        path = [above for above in path if above.level < heading.level] + [heading]
    return [heading.title for heading in path]


def _after_headings(text: str, outline: list[Heading], start: int, end: int) -> int:
    """Return the offset behind the headings that `text[start:end]` begins with."""
    for heading in outline:
        if start <= heading.start < end and not text[start : heading.start].strip():
            start = heading.end
    return start
