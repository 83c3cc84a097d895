"""An HTTP service of its own: plain JSON, server-sent events, and readiness told from health, which `mlflow models serve` does not have."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from crag_dspy.crag import Crag
from crag_dspy.feedback import FeedbackError, keep
from crag_dspy.ready import Readiness, warm
from crag_dspy.requests import Failure, RequestError, failure, known, read
from crag_dspy.signing import Refused
from crag_dspy.types import Answer
from crag_dspy.watch import Event
from crag_dspy.webhook import Webhook

MAX_BODY = 100_000  # bytes; a question has at most 4,000 characters


def create_app(crag: Crag, workers: int, webhook: Webhook | None = None) -> Starlette:
    """Return the service of a ready program.

    `GET /health`: the process lives. `GET /ready`: index and LM can be reached (else 503). `POST /ask`: an object with `question` and
    what may be said beside it, an `Answer` back. `POST /ask/stream`: the same as events: `stage`, `text` and `answer`, or `error`.
    `POST /feedback`: an object with what `crag_dspy.feedback` takes. `POST /webhooks/content-changed`, only with a webhook: see
    `Webhook.accept`.

    Args:
        crag: Answers.
        workers: Requests answered at once; others wait.
        webhook: Takes what others say has changed; works while the service runs.
    """
    readiness = Readiness(crag)
    probes = anyio.CapacityLimiter(1)  # of their own: asked while all workers are busy, too

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # Each stream holds a thread of its own besides.
        anyio.to_thread.current_default_thread_limiter().total_tokens = workers
        await run_in_threadpool(warm, crag)
        with webhook or contextlib.nullcontext():
            yield

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        found = await anyio.to_thread.run_sync(readiness, limiter=probes)
        return JSONResponse(found, status_code=200 if found["ready"] else 503)

    async def ask(request: Request) -> Response:
        try:
            row = await _row(request)
            answer = await run_in_threadpool(lambda: _answer(crag, row))
        except Exception as exc:  # the last resort: nobody is shown a traceback
            return _refusal(failure(exc))
        return JSONResponse(answer.model_dump(mode="json"))

    async def stream(request: Request) -> Response:
        try:
            row = await _row(request)
            read(row, {}, crag)  # what does not fit is refused with its status, before the stream begins
        except Exception as exc:  # as above
            return _refusal(failure(exc))
        return StreamingResponse(_events(crag, row), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def refused(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed", 413: "too_long"}.get(exc.status_code, "http_error")
        return _refusal(Failure(exc.status_code, code, exc.detail))

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/ask", ask, methods=["POST"]),
            Route("/ask/stream", stream, methods=["POST"]),
            _feedback(),
            *([_content_changed(webhook)] if webhook else []),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: refused},
    )


def serve(crag: Crag, host: str, port: int, workers: int, webhook: Webhook | None = None) -> None:
    """Run the service until it is stopped."""
    import uvicorn

    uvicorn.run(create_app(crag, workers, webhook), host=host, port=port, log_level="warning")


def _feedback() -> Route:
    people = anyio.CapacityLimiter(1)  # of their own: heard while all workers are busy, too

    async def feedback(request: Request) -> Response:
        try:
            said = await _object(request)
            kept = await anyio.to_thread.run_sync(keep, said, limiter=people)
        except FeedbackError as exc:
            return _refusal(Failure(exc.status, exc.code, str(exc)))
        except Exception as exc:  # the last resort: nobody is shown a traceback
            return _refusal(failure(exc))
        return JSONResponse(kept.model_dump(exclude_defaults=True))

    return Route("/feedback", feedback, methods=["POST"])


def _content_changed(webhook: Webhook) -> Route:
    senders = anyio.CapacityLimiter(1)  # of their own: heard while all workers are busy, too

    async def content_changed(request: Request) -> Response:
        try:
            body = await _body(request)
            if body is None:
                raise Refused(413, "too_long", f"The request has more than {MAX_BODY:,} bytes. Name fewer pages and files at once.")
            status, said = await anyio.to_thread.run_sync(webhook.accept, request.headers, body, limiter=senders)
        except Refused as exc:
            return _refusal(Failure(exc.status, exc.code, str(exc)))
        except Exception as exc:  # the last resort: nobody is shown a traceback
            return _refusal(failure(exc))
        return JSONResponse(said, status_code=status)

    return Route("/webhooks/content-changed", content_changed, methods=["POST"])


async def _body(request: Request) -> bytes | None:
    """Return the body as it was sent; None where it is too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return body


async def _row(request: Request) -> dict[str, Any]:
    return known(await _object(request, '{"question": "…"}'))


async def _object(request: Request, like: str = '{"trace_id": "…", "thumbs": "up"}') -> dict[str, Any]:
    body = await _body(request)
    if body is None:
        raise RequestError(f"The request has more than {MAX_BODY:,} bytes. Shorten its texts.")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"The request is no JSON. Send an object like {like}.") from exc
    if not isinstance(said, dict):
        raise RequestError(f"The request is no object. Send one like {like}.")
    return said


def _answer(crag: Crag, row: dict[str, Any]) -> Answer:
    question, options = read(row, {}, crag)
    return crag(question, **options)


def _events(crag: Crag, row: dict[str, Any]) -> Iterator[str]:
    try:
        question, options = read(row, {}, crag)
        for step in crag.stream(question, **options):
            if isinstance(step, Event):
                yield _event("stage", step.model_dump())
            elif isinstance(step, str):
                yield _event("text", {"text": step})
            else:
                yield _event("answer", step.model_dump(mode="json"))
    except Exception as exc:  # the status was sent long ago
        yield _event("error", failure(exc)._asdict())


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _refusal(why: Failure) -> Response:
    return JSONResponse(why._asdict(), status_code=why.status)
