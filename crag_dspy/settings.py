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


class Settings(BaseSettings):
    """How the parts are chosen. Keys and tokens are not settings: each client reads its own when it opens."""

    model_config = SettingsConfigDict(env_prefix="CRAG_", extra="forbid", frozen=True)

    home: Path = Field(default=Path(".crag"), description="Folder of the index and the caches.")
    lm: str = Field(default="local", description="`local` (the embedded LM) or any model string that DSPy takes.")
    lm_api_base: str | None = Field(default=None, description="Address of an OpenAI-compatible endpoint, if not the provider's own.")
    lm_max_tokens: int = Field(default=400, gt=0, description="Most tokens that one LM call may write.")
    local_model: Path | None = Field(default=None, description="A GGUF file to use instead of the embedded LM's weights.")
    web: Web | None = Field(
        default=None,
        description="Web search. Unset: tavily if TAVILY_API_KEY is set, else the sandbox if its pages are found, else none.",
    )
    sandbox: Path | None = Field(
        default=None, description="Folder of pages for the sandbox web. Unset: data/web, here or beside the package."
    )
    chroma: str | None = Field(default=None, description="Folder, or http(s):// address, of the Chroma index. Unset: <home>/chroma.")
    collection: str = Field(default="crag", description="Name of the Chroma collection.")
    top_k: int = Field(default=8, gt=0, le=50, description="Passages retrieved from the index.")
    max_pages: int = Field(default=4, gt=0, le=20, description="Web pages read per search.")
    max_evidence: int = Field(default=6, gt=0, le=20, description="Numbered sources given to the generator.")
    max_seconds: float = Field(default=120.0, gt=0, description="Time for one answer; past it no web search is begun.")
    workers: int = Field(default=4, gt=0, le=64, description="LM and web calls in flight at once for one question.")


def load_settings(**overrides: object) -> Settings:
    """Read the settings from the environment; keyword arguments win.

    Raises:
        SettingsError: a `CRAG_…` variable that does not exist, or a value that does not fit.
    """
    known = {f"CRAG_{name}".upper() for name in Settings.model_fields}
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
