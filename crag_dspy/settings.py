"""Settings: values only, from `CRAG_…` environment variables; nothing is built here."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from crag_dspy.errors import SettingsError

Web = Literal["tavily", "duckduckgo", "sandbox", "none"]
SearchDepth = Literal["basic", "advanced"]
SearchTopic = Literal["general", "news", "finance"]
TimeRange = Literal["day", "week", "month", "year"]

SECRETS = frozenset({"CRAG_WEBHOOK_SECRET"})  # no settings, though named like them: read by what uses them, when it opens


class Settings(BaseSettings):
    """How the parts are chosen. Keys and tokens are not settings: each client reads its own when it opens."""

    model_config = SettingsConfigDict(env_prefix="CRAG_", extra="forbid", frozen=True)

    home: Path = Field(default=Path(".crag"), description="Folder of the index and the caches.")
    lm: str = Field(default="local", description="`local` (the embedded LM) or any model string that DSPy takes.")
    lm_api_base: str | None = Field(default=None, description="Address of an OpenAI-compatible endpoint, if not the provider's own.")
    lm_max_tokens: int = Field(default=400, gt=0, description="Most tokens that one LM call may write.")
    reflection_lm: str | None = Field(default=None, description="LM that writes instructions while compiling. Unset: the LM itself.")
    reflection_lm_api_base: str | None = Field(
        default=None, description="Address of the reflection LM's endpoint, if not the provider's own."
    )
    judge_lm: str | None = Field(default=None, description="LM that judges answers under `--judge`; another one than the LM itself.")
    judge_lm_api_base: str | None = Field(default=None, description="Address of the judge's endpoint, if not the provider's own.")
    local_model: Path | None = Field(default=None, description="A GGUF file to use instead of the embedded LM's weights.")
    web: Web | None = Field(
        default=None,
        description="Web search. Unset: tavily if TAVILY_API_KEY is set, else the sandbox if its pages are found, else none.",
    )
    sandbox: Path | None = Field(
        default=None, description="Folder of pages for the sandbox web. Unset: data/web, here or beside the package."
    )
    search_depth: SearchDepth = Field(default="basic", description="Tavily's depth: `basic`, or `advanced` for two credits a search.")
    search_topic: SearchTopic = Field(default="general", description="Tavily's topic: `general`, `news` or `finance`.")
    search_time_range: TimeRange | None = Field(
        default=None, description="How old search results may be: `day`, `week`, `month` or `year`. Unset: any age."
    )
    search_raw_content: bool = Field(default=False, description="Use pages' text as Tavily read it, where it has any, instead of fetching.")
    allow_domains: str = Field(default="", description="The only domains whose pages are used, subdomains included, e.g. `gov.uk,w3.org`.")
    deny_domains: str = Field(default="", description="Domains whose pages are never used, subdomains included.")
    robots: bool = Field(default=True, description="Whether pages that a site's robots.txt forbids are left alone.")
    page_cache: Path | None = Field(default=None, description="Folder of fetched pages. Unset: <home>/pages.")
    page_cache_hours: float = Field(
        default=24.0,
        ge=0,
        allow_inf_nan=False,
        description="Hours that a fetched page is used before its site is asked whether it changed.",
    )
    refresh_days: float = Field(
        default=7.0, ge=0, allow_inf_nan=False, description="Days after which `crag refresh` asks whether a page of the index changed."
    )
    documents: Path | None = Field(
        default=None, description="Folder whose files the webhook may add to the index. Unset: only files that are in the index."
    )
    chroma: str | None = Field(default=None, description="Folder, or http(s):// address, of the Chroma index. Unset: <home>/chroma.")
    collection: str = Field(default="crag", description="Name of the Chroma collection.")
    top_k: int = Field(default=8, gt=0, le=50, description="Passages retrieved from the index.")
    pages_per_search: int = Field(default=4, gt=0, le=20, description="Web pages read per search.")
    max_evidence: int = Field(default=8, gt=0, le=20, description="Numbered sources given to the generator.")
    max_rounds: int = Field(default=2, gt=0, le=5, description="Rounds of web searches for one answer: the first, and follow-ups.")
    max_searches: int = Field(default=4, ge=0, description="Web searches for one answer, at most.")
    max_pages: int = Field(default=12, ge=0, description="Web pages read for one answer, at most.")
    max_lm_calls: int = Field(default=24, ge=0, description="LM calls for one answer, at most.")
    max_tokens: int = Field(default=60_000, ge=0, description="Tokens for one answer, prompts and replies together, at most.")
    max_seconds: float = Field(default=120.0, gt=0, description="Time for one answer, at most.")
    max_usd: float | None = Field(default=None, ge=0, description="Price of the LM calls for one answer, at most. Unset: no limit.")
    remember: bool = Field(default=True, description="Whether useful web pages are written to the index, for the next question.")
    tracing: Literal["off", "on", "redacted"] = Field(
        default="off", description="An MLflow trace per question; `redacted` keeps texts out of it."
    )
    planner: Literal["rules", "lm"] = Field(default="rules", description="Who plans a question: rules, or the LM beside the retrieval.")
    claim_check: Literal["scores", "lm"] = Field(default="scores", description="Who checks claims: words and scores, or the LM as well.")
    unsupported: Literal["drop", "abstain"] = Field(default="drop", description="What an unsupported claim costs: itself, or the answer.")
    workers: int = Field(default=4, gt=0, le=64, description="LM and web calls in flight at once for one question.")
    serve_workers: int = Field(default=32, gt=0, le=256, description="Questions answered at once when served.")
    serve_max_rows: int = Field(default=256, gt=0, description="Questions in one request to a served model, at most.")
    pack_index: bool = Field(default=False, description="Whether a version carries a copy of the index (a folder, not a server).")


def load_settings(**overrides: object) -> Settings:
    """Read the settings from the environment; keyword arguments win.

    Raises:
        SettingsError: a `CRAG_…` variable that does not exist, or a value that does not fit.
    """
    known = {f"CRAG_{name}".upper() for name in Settings.model_fields} | SECRETS
    # pydantic-settings ignores unknown environment variables even with extra="forbid", so a typo would go unnoticed.
    for name in sorted(os.environ):
        if name.upper().startswith("CRAG_") and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}."
            raise SettingsError(f"There is no setting {name!r}: {hint}")
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as exc:
        first = exc.errors()[0]
        name = "CRAG_" + str(first["loc"][0]).upper()
        raise SettingsError(f"{name}={first.get('input')!r} does not fit: {first['msg']}.") from exc
