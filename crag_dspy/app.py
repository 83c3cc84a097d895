"""Wiring: settings in, a ready program out. The one place where parts are built."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Literal

# Before the first LM call, or litellm fetches its price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")

import dspy
from chromadb.api import ClientAPI

from crag_dspy.budget import Limits
from crag_dspy.cite import CheckClaim
from crag_dspy.crag import Crag, context
from crag_dspy.deliveries import Deliveries
from crag_dspy.domains import Domains
from crag_dspy.errors import SettingsError
from crag_dspy.experiment import experiment
from crag_dspy.fetch import Fetcher
from crag_dspy.index import Index, open_client
from crag_dspy.local_lm import EMBEDDED_KEY, MODEL_NAME, join_parts, part_files, running
from crag_dspy.models import CrossEncoder, Embedder
from crag_dspy.pagecache import PageCache
from crag_dspy.parts import Parts
from crag_dspy.plan import PlanQuestion
from crag_dspy.program import CRAG
from crag_dspy.robots import Robots
from crag_dspy.sandbox import KEY, SUFFIX, Sandbox
from crag_dspy.search import DuckDuckGoSearch, Search, TavilySearch
from crag_dspy.settings import Settings, Web
from crag_dspy.webhook import Webhook

__all__ = ["Crag", "build", "build_lm", "build_parts", "build_web", "context", "open_index"]

Role = Literal["task", "reflection", "judge"]

embedder = cache(Embedder)
cross_encoder = cache(CrossEncoder)
sandbox = cache(Sandbox)


def build(settings: Settings, *, lm: dspy.BaseLM | None = None, today: Callable[[], date] | None = None) -> Crag:
    """Build an uncompiled program from settings.

    Args:
        settings: What to use.
        lm: An LM to use instead of the one in the settings.
        today: The clock. Default: the day in UTC.

    Raises:
        SettingsError, IndexUnusable, LocalLMError, ModelFileError: a part cannot be had; nothing was asked of an LM yet.
    """
    if settings.tracing != "off":
        experiment()  # now: see there
    return Crag(CRAG(build_parts(settings, today=today)), lm or build_lm(settings), tracing=settings.tracing)


def build_parts(settings: Settings, *, today: Callable[[], date] | None = None) -> Parts:
    """Build everything but the LM."""
    search, fetch = build_web(settings)
    return Parts(
        index=open_index(settings),
        cross_encoder=cross_encoder(),
        search=search,
        fetch=fetch,
        today=today or (lambda: datetime.now(UTC).date()),
        top_k=settings.top_k,
        pages_per_search=settings.pages_per_search,
        max_rounds=settings.max_rounds,
        max_evidence=settings.max_evidence,
        workers=settings.workers,
        limits=Limits(**{name: getattr(settings, name) for name in Limits.model_fields}),
        remember=settings.remember,
        planner=dspy.Predict(PlanQuestion) if settings.planner == "lm" else None,
        claim_check=dspy.Predict(CheckClaim) if settings.claim_check == "lm" else None,
        unsupported=settings.unsupported,
    )


def open_chroma(settings: Settings, *, create: bool = False) -> ClientAPI:
    """Open the Chroma folder or server that the settings name.

    Raises:
        SettingsError: there is no such folder yet.
    """
    where = settings.chroma or str(settings.home / "chroma")
    if not create and "://" not in where and not Path(where, "chroma.sqlite3").exists():
        raise SettingsError(f"There is no index in {where!r} yet. Make it with: crag ingest PATH…")
    return open_client(where)


def index_folder(settings: Settings) -> Path | None:
    """Return the folder of the index; None where it is on a Chroma server."""
    where = settings.chroma or str(settings.home / "chroma")
    return None if "://" in where else Path(where)


def open_index(settings: Settings, *, create: bool = False) -> Index:
    """Open the index that the settings name."""
    return Index(open_chroma(settings, create=create), settings.collection, embedder(), create=create)


def build_lm(settings: Settings, role: Role = "task") -> dspy.LM:
    """Build the LM of a role. A hosted one reads its key from its provider's own variable when it is called.

    The reflection LM is the task LM where the settings name none.

    Raises:
        SettingsError: no provider of that name, or no judge is named.
        LocalLMError, ModelFileError: the embedded LM is not installed, or its weights are damaged.
    """
    if role == "reflection" and not settings.reflection_lm:
        role = "task"
    variable = {"task": "CRAG_LM", "reflection": "CRAG_REFLECTION_LM", "judge": "CRAG_JUDGE_LM"}[role]
    model, api_base = {
        "task": (settings.lm, settings.lm_api_base),
        "reflection": (settings.reflection_lm or "", settings.reflection_lm_api_base),
        "judge": (settings.judge_lm or "", settings.judge_lm_api_base),
    }[role]
    if not model:
        raise SettingsError(f"{variable} is not set. Name an LM, e.g. openai/gpt-4o-mini; one that judges its own answers prefers them.")
    if model == "local":
        weights = settings.local_model or join_parts(part_files(), settings.home / "models" / f"{MODEL_NAME}.gguf")
        return dspy.LM(
            f"openai/{Path(weights).stem}",
            api_base=running(Path(weights)).address,
            api_key=EMBEDDED_KEY,
            temperature=0.0,
            max_tokens=settings.lm_max_tokens,
            num_retries=2,
            cache=False,
            logprobs=True,
            top_logprobs=20,
            stop=["[[ ## completed"],  # the rest of the marker says nothing
        )
    import litellm

    try:
        litellm.get_llm_provider(model, api_base=api_base)
    except litellm.exceptions.BadRequestError as exc:
        raise SettingsError(
            f"{variable}={model!r} names no known provider. Use local, or provider/model, e.g. openai/gpt-4o-mini."
        ) from exc
    extra = {"api_base": api_base} if api_base else {}
    return dspy.LM(model, temperature=0.0, max_tokens=settings.lm_max_tokens, num_retries=3, cache=False, **extra)


def build_web(settings: Settings) -> tuple[Search | None, Fetcher]:
    """Build the web search and the fetcher."""
    web = settings.web or _default_web(settings)
    domains = Domains.parse(settings.allow_domains, settings.deny_domains)
    robots = Robots() if settings.robots else None
    cache = PageCache(settings.page_cache or settings.home / "pages", fresh=timedelta(hours=settings.page_cache_hours))
    fetch = Fetcher(domains=domains, robots=robots, cache=cache)
    if web == "tavily":
        search = TavilySearch(
            depth=settings.search_depth,
            topic=settings.search_topic,
            time_range=settings.search_time_range,
            raw_content=settings.search_raw_content,
            domains=domains,
        )
        return search, fetch
    if web == "duckduckgo":
        return DuckDuckGoSearch(time_range=settings.search_time_range, domains=domains), fetch
    if web == "sandbox":
        pages = sandbox_pages(settings)
        if pages is None:
            raise SettingsError(
                "The sandbox web finds no data/web folder. Set CRAG_SANDBOX to a folder of <host>/<page>.html, or CRAG_WEB=none."
            )
        local = sandbox(pages)
        # Nothing is cached: the folder may change at any time, and costs nothing to read.
        fetch = Fetcher(routes={SUFFIX: local.address}, domains=domains, robots=robots)
        return TavilySearch(api_key=KEY, api_base_url=local.search_url, domains=domains), fetch
    return None, fetch


def build_asking_fetcher(settings: Settings) -> Fetcher:
    """Build a fetcher that uses no page of the cache before its site has said that it did not change."""
    return build_web(settings.model_copy(update={"page_cache_hours": 0.0}))[1]


def open_webhook(settings: Settings) -> Webhook | None:
    """Open the webhook with the secret in CRAG_WEBHOOK_SECRET; None without one.

    Raises:
        SettingsError: the secret is none.
    """
    secret = os.environ.get("CRAG_WEBHOOK_SECRET", "").strip()
    if not secret:
        return None
    deliveries = Deliveries(settings.home / "webhooks.sqlite3")
    return Webhook(secret, open_index(settings), build_asking_fetcher(settings), deliveries, documents=settings.documents)


def sandbox_pages(settings: Settings) -> Path | None:
    """Return the folder of the sandbox web's pages: the setting, or data/web in the current folder or beside the package."""
    if settings.sandbox:
        return settings.sandbox
    candidates = (Path("data/web"), Path(__file__).resolve().parent.parent / "data" / "web")
    return next((path for path in candidates if path.is_dir()), None)


def _default_web(settings: Settings) -> Web:
    if os.environ.get("TAVILY_API_KEY", "").strip():
        return "tavily"
    return "sandbox" if sandbox_pages(settings) else "none"
