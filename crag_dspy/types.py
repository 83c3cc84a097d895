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
StopReason = Literal["covered", "nothing_supported", "nothing_new", "budget", "no_web"]


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
    retrieved_at: datetime | None = None
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
    """The LM's raw reply where it could not be read as a level."""


class Evidence(Frozen):
    """Strips of one passage, in document order, kept for the answer and numbered once."""

    n: int
    passage: Passage
    text: str
    relevance: float
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
    """True where the generator gave no marker and the program found the evidence."""


class Citation(Frozen):
    """A source that the answer cites, with the words it cites."""

    n: int
    id: str
    source_type: SourceType
    title: str
    url: str | None = None
    published_at: date | None = None
    retrieved_at: datetime | None = None
    quote: str
    copies: tuple[str, ...] = ()


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


class Answer(Frozen):
    """An answer with its sources, or an abstention with what was tried."""

    question: str
    text: str
    status: Status
    claims: tuple[Claim, ...] = ()
    citations: tuple[Citation, ...] = ()
    action: Action
    assessment: Assessment
    confidence: float = Field(ge=0, le=1)
    warnings: tuple[AnswerWarning, ...] = ()
    stop_reason: StopReason
    web_query: str | None = None
    usage: Usage = Usage()


class Trace(Frozen):
    """Everything that was decided on the way to an answer, for people, metrics and optimizers."""

    kind: Kind
    needs: tuple[str, ...]
    internal: tuple[Grade, ...] = ()
    external: tuple[Grade, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    """The assessment in one line."""
    reply: str = ""
    """The generator's text before the citation check."""
    invalid_citations: int = 0
    dropped_claims: tuple[str, ...] = ()
