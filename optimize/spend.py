"""What a run's LM calls are and cost: counted where DSPy looks for a cached reply, replayed after an interruption, stopped at a limit."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dspy
from diskcache import Timeout as DiskTimeout
from dspy.clients.cache import Cache
from filelock import FileLock, Timeout

from crag_dspy.errors import CragError
from crag_dspy.lm import price

DISK_BYTES = 4 << 30  # of one run's replies; what DSPy would drop beyond could not be replayed
STALE_DAYS = 30
"""After so many days the folder of an interrupted run is deleted by the next run."""


class CostReached(CragError):
    """The money that a run may spend is spent."""

    code = "max_cost"


class Halt(BaseException):
    """Ends a run from inside DSPy, whose optimizers take any `Exception` for a score of 0; `recording` raises what it carries."""

    def __init__(self, error: CragError) -> None:
        super().__init__(str(error))
        self.error = error


class Replies(Cache):  # type: ignore[misc]
    """DSPy's cache of LM replies that keeps the books of a run.

    A reply is found again for the same request at the same endpoint in the same phase: two endpoints that give a model the same name
    share nothing, and a program that is measured is really asked, whatever another one was asked before. Keys stay out: request keys
    are hashed without the credential, and entries hold replies and token counts.
    """

    def __init__(self, folder: Path | None, *, max_usd: float | None = None, names: Mapping[str, str] | None = None) -> None:
        """Open the cache.

        Args:
            folder: Where replies are kept for a run that resumes this one; None: in memory only.
            max_usd: From here on no call is made.
            names: Endpoints under another name, by address: one whose port changes with each process.
        """
        self.phase = ""
        self.made = self.repeated = self.replayed = 0
        """LM calls: really made; answered by an earlier one of this run; answered by one of the run that this one resumes."""
        self.prompt_tokens = self.completion_tokens = 0
        self.usd = self.earlier_usd = 0.0
        """Spent by this run, and by the run that it resumes as far as its replies were used again."""
        self.priced = False
        """Whether the prices of any LM asked are known."""
        self._max_usd, self._names = max_usd, dict(names or {})
        self._run, self._seen = uuid.uuid4().hex, set[str]()
        self._books = threading.Lock()
        super().__init__(
            folder is not None,
            True,
            str(folder) if folder else None,
            DISK_BYTES,
            restrict_pickle=True,  # entries of a folder that anybody may write to
        )

    def cache_key(self, request: dict[str, Any], ignored_args_for_cache_key: list[str] | None = None) -> str:
        """Return the hash of a request with its endpoint and phase, without its credential."""
        base = str(request.get("api_base") or request.get("base_url"))
        return str(
            super().cache_key(
                {**request, "_endpoint": self._names.get(base, base), "_phase": self.phase}, ["api_key", "api_base", "base_url"]
            )
        )

    def get(self, request: dict[str, Any], ignored_args_for_cache_key: list[str] | None = None) -> Any:
        """Return the reply to a request, booked as repeated or replayed; None where it has to be asked.

        Raises:
            Halt: it would have to be asked, and the money is spent.
        """
        entry = super().get(request, ignored_args_for_cache_key)
        if entry is None:
            self._may_spend()
            return None
        usage, model = entry["usage"], str(request.get("model", ""))
        key = self.cache_key(request)
        with self._books:
            if entry["run"] == self._run or key in self._seen:
                self.repeated += 1
            else:
                self.replayed += 1
                self.earlier_usd += price(model, usage["prompt_tokens"], usage["completion_tokens"]) or 0.0
            self._seen.add(key)
        # What an answer used, and its limits, must not depend on whether the run was interrupted; DSPy books no tokens of a cached reply.
        if dspy.settings.usage_tracker:
            dspy.settings.usage_tracker.add_usage(model, dict(usage))
        return self._prepare_cached_response(entry["reply"])

    def put(
        self, request: dict[str, Any], value: Any, ignored_args_for_cache_key: list[str] | None = None, enable_memory_cache: bool = True
    ) -> None:
        """Keep a reply that was just paid for, and book it."""
        usage, model = _usage(value), str(request.get("model", ""))
        usd = price(model, usage["prompt_tokens"], usage["completion_tokens"])
        with self._books:
            self.made += 1
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
            self.usd += usd or 0.0
            self.priced = self.priced or usd is not None
        super().put(request, {"reply": value, "usage": usage, "run": self._run}, ignored_args_for_cache_key, enable_memory_cache)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Give what runs inside replies of its own."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def _may_spend(self) -> None:
        spent = self.usd + self.earlier_usd
        if self._max_usd is not None and spent >= self._max_usd:
            raise Halt(
                CostReached(
                    f"--max-cost {self._max_usd:g} is reached: USD {spent:.4f} were spent on {self.made + self.replayed} LM calls. "
                    "Run the same command with a higher --max-cost: it resumes from what was evaluated."
                )
            )

    def close(self) -> None:
        """Close the files."""
        if self.enable_disk_cache:
            self.disk_cache.close()

    @property
    def spent(self) -> dict[str, float]:
        """The books as metrics: calls, tokens and, where prices are known, USD."""
        found: dict[str, float] = {
            "lm_calls": self.made,
            "lm_calls_repeated": self.repeated,
            "lm_calls_replayed": self.replayed,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        return found | ({"usd": self.usd, "usd_before_the_interruption": self.earlier_usd} if self.priced or self.earlier_usd else {})


def _usage(reply: Any) -> dict[str, int]:
    """Return the tokens of a reply in either of the forms that DSPy caches."""
    given = reply.get("usage") if isinstance(reply, dict) else getattr(reply, "usage", None)
    known = dict(given or {})
    return {name: int(known.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")}


def run_folder(home: Path, *identity: object) -> Path:
    """Return the folder of a run: the same command on the same questions, LMs and endpoints resumes from it; no credential is in it."""
    return home / "compile" / hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


@contextmanager
def recording(
    folder: Path,
    *,
    max_usd: float | None = None,
    names: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[Replies]:
    """Keep the LM's replies while a run lasts: deleted when it succeeds, so that the next run measures afresh, kept when it does not.

    Raises:
        CragError: what a `Halt` inside carries.
    """
    _forget_stale(folder.parent)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"), timeout=0)
    replies = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        replies = Replies(folder, max_usd=max_usd, names=names)
    except Timeout:
        warn("the same run is going on in another process; if this one is interrupted it cannot be resumed")
    except (OSError, sqlite3.Error, DiskTimeout) as exc:
        warn(f"{folder} cannot be written ({type(exc).__name__}); if this run is interrupted it cannot be resumed")
    kept = replies is not None
    replies = replies or Replies(None, max_usd=max_usd, names=names)
    dspy.cache = replies
    try:
        yield replies
        replies.close()
        if kept:
            shutil.rmtree(folder, ignore_errors=True)
    except Halt as halt:
        raise halt.error from None
    finally:
        dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        replies.close()
        lock.release()
        if kept and not folder.exists():
            Path(lock.lock_file).unlink(missing_ok=True)


def _forget_stale(folder: Path) -> None:
    for path in folder.glob("*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_DAYS * 86_400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
