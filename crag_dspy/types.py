"""What flows through the program: passages, judged passages, strips, evidence, the answer."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["pricing", "technical", "factual", "general"]
SourceType = Literal["internal", "web"]
Verdict = Literal["correct", "ambiguous", "incorrect"]
Action = Literal["correct", "ambiguous", "incorrect"]
Assessment = Literal["sufficient", "partial", "irrelevant", "stale", "empty"]
Status = Literal["answered", "abstained"]
Limit = Literal["max_searches", "max_pages", "max_lm_calls", "max_tokens", "max_seconds", "max_usd"]
StopReason = Literal["covered", "nothing_supported", "nothing_new", "no_web", Limit]
"""`covered`: every need has support. `nothing_supported`: all was tried. `nothing_new`: no other query, or none that found another page."""


SearchReason = Literal["unsupported", "stale", "conflict", "new_term", "asked"]
"""Why a need goes to the web: nothing covers it, only old passages do, sources disagree, a name turned up, it is asked for."""


class Frozen(BaseModel):
    """An immutable value."""

    model_config = ConfigDict(frozen=True)


class Document(Frozen):
    """A whole source text, before it is split. `id` is its path or URL."""

    id: str
    title: str
    text: str
    source_type: SourceType = "internal"
    url: str | None = None
    published_at: date | None = None
    modified_at: date | None = None
    """Only where it is later than `published_at`."""
    retrieved_at: datetime | None = None
    author: str | None = None
    language: str | None = None
    """ISO 639-1, as the page names it."""
    canonical_url: str | None = None
    """The address that the page names as its own, only if its domain is that of `url`."""
    snippet: bool = False
    """True where the text is a search engine's excerpt, not the page."""


class Passage(Frozen):
    """A chunk of a document: `text == document.text[start:end]`."""

    id: str
    document_id: str
    title: str
    text: str
    section: str = ""
    """Heading path, e.g. `Installation > Mast`."""
    start: int = 0
    end: int = 0
    source_type: SourceType = "internal"
    url: str | None = None
    published_at: date | None = None
    retrieved_at: datetime | None = None
    snippet: bool = False

    @property
    def source(self) -> str:
        """The URL, or the document's id."""
        return self.url or self.document_id


class Strip(Frozen):
    """One or two consecutive sentences of a passage (knowledge strip, Yan et al. 2024, section 4.4).

    `start` and `end` are character offsets into the passage's text.
    """

    passage: Passage
    start: int
    end: int
    scores: tuple[float, ...] = ()
    """The cross-encoder's score per information need, 0-1."""
    copies: tuple[str, ...] = ()
    """URLs or ids of other sources that carry the same text."""

    @property
    def id(self) -> str:
        """The passage's id and the strip's place in it."""
        return f"{self.passage.id}:{self.start}-{self.end}"

    @property
    def text(self) -> str:
        """The strip as it stands in its passage."""
        return self.passage.text[self.start : self.end]


class Grade(Frozen):
    """How relevant one passage is, who said so, and why."""

    passage: Passage
    scores: tuple[float, ...]
    """The cross-encoder's score per information need, 0-1."""
    strips: tuple[Strip, ...]
    needs: tuple[float, ...]
    """Relevance per information need, 0-1, before freshness."""
    relevance: float
    """The best of `needs` after freshness, 0-1."""
    verdict: Verdict
    graded_by: Literal["cross-encoder", "lm"]
    stale: bool = False
    age_days: int | None = None
    why: str = ""
    reply: str | None = None
    """The LM's raw reply where it could not be read as a level: the passage is `ambiguous` then, whatever its scores."""


class Evidence(Frozen):
    """Strips of one passage, in document order, kept for the answer and numbered once."""

    n: int
    passage: Passage
    text: str
    strips: tuple[Strip, ...] = ()
    """What `text` is made of."""
    relevance: float
    quality: float = 1.0
    """The source's authority, freshness and independence, 0-1."""
    needs: tuple[float, ...] = ()
    """Relevance per information need, 0-1."""
    stale: bool = False
    copies: tuple[str, ...] = ()
    """URLs or ids of other sources that carry (some of) the same text."""


class Claim(Frozen):
    """One statement of the answer and the evidence numbers it cites."""

    text: str
    citations: tuple[int, ...]
    support: float = Field(default=0.0, ge=0, le=1)
    attributed: bool = False
    """True where the generator gave no marker, or a wrong one, and the program found the evidence."""
    unsupported: tuple[int, ...] = ()
    """Evidence that the generator cited for this and that does not support it."""


class Citation(Frozen):
    """A source, with the words that were taken from it."""

    n: int
    id: str
    source_type: SourceType
    title: str
    url: str | None = None
    published_at: date | None = None
    retrieved_at: datetime | None = None
    quote: str
    copies: tuple[str, ...] = ()


class Conflict(Frozen):
    """Two sources that give different values for one thing, by their evidence numbers; the newer is favoured."""

    need: str
    newer: int
    older: int
    newer_says: str
    older_says: str


class AnswerWarning(Frozen):
    """Something that went wrong, or that a reader should know, without ending the answer."""

    code: str
    message: str


class Usage(Frozen):
    """What an answer cost."""

    lm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    searches: int = 0
    pages: int = 0
    seconds: float = 0.0
    usd: float | None = None
    """Price of the LM calls, where the LM's prices are known."""


class Answer(Frozen):
    """An answer with its sources, or an abstention with what was tried."""

    question: str
    text: str
    status: Status
    claims: tuple[Claim, ...] = ()
    citations: tuple[Citation, ...] = ()
    """Every source that a claim cites."""
    consulted: tuple[Citation, ...] = ()
    """Evidence that was given to the generator and is not cited."""
    conflicts: tuple[Conflict, ...] = ()
    missing: tuple[str, ...] = ()
    """The information needs that nothing supported."""
    action: Action
    assessment: Assessment
    confidence: float = Field(ge=0, le=1)
    warnings: tuple[AnswerWarning, ...] = ()
    stop_reason: StopReason
    web_query: str | None = None
    """The first query sent to the web."""
    web_queries: tuple[str, ...] = ()
    usage: Usage = Usage()
    trace_id: str | None = None
    """The MLflow trace of this answer, where tracing is on."""


class WebSearch(Frozen):
    """One query sent to the web, for which need, and why."""

    query: str
    need: str
    reason: SearchReason
    results: int = 0


class Trace(Frozen):
    """Everything that was decided on the way to an answer, for people, metrics and optimizers."""

    kind: Kind
    needs: tuple[str, ...]
    time_sensitive: bool = True
    searches: tuple[WebSearch, ...] = ()
    internal: tuple[Grade, ...] = ()
    external: tuple[Grade, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    """The assessment in one line."""
    reply: str = ""
    """The generator's text before the citation check."""
    invalid_citations: int = 0
    """Markers that named no evidence."""
    parse_failures: int = 0
    """LM replies that broke the format."""
    dropped_claims: tuple[str, ...] = ()
