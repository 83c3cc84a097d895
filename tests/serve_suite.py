"""Start `mlflow models serve` on a registered version, send it every kind of request, and print what came back.

    python tests/serve_suite.py

Everything is made in a temporary folder with a rule-following LM; exits with 1 where a status is not the one wanted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import httpx
from fake_lm import FakeLM, fake_lm_server
from rich.console import Console
from rich.table import Table
from served_model import DAY, KEY, QUESTIONS, Home, Server, free_port, make_home, mlflow_serve, publish, serving

ROW = {"question": QUESTIONS[0], "as_of": DAY}
LEAKS = ("Traceback", "stack_trace", KEY, "PATIENT-4711")


class Suite:
    """What was asked, what was wanted, what came."""

    def __init__(self) -> None:
        self.table = Table("request", "status", "wanted", "ms", "body", title="mlflow models serve")
        self.wrong = 0

    def note(self, name: str, reply: httpx.Response, wanted: int, seconds: float, *, holds: bool = True, shown: str = "") -> None:
        leaks = [word for word in LEAKS if word in reply.text]
        right = reply.status_code == wanted and holds and not leaks
        self.wrong += not right
        body = shown or _short(reply)
        style = None if right else "red"
        self.table.add_row(
            name if right else f"{name} (WRONG)",
            str(reply.status_code),
            str(wanted),
            f"{seconds * 1000:.0f}",
            f"{body} {leaks or ''}",
            style=style,
        )

    def ask(self, server: Server, name: str, body: Any, wanted: int = 200, holds: Callable[[list[Any]], bool] = lambda found: True) -> None:
        began = time.monotonic()
        reply = server.ask(body)
        seconds = time.monotonic() - began
        good = reply.status_code != 200 or holds(reply.json()["predictions"])
        self.note(name, reply, wanted, seconds, holds=good)


def _short(reply: httpx.Response) -> str:
    try:
        told = reply.json()
    except ValueError:
        return reply.text[:100]
    if "predictions" not in told:
        return json.dumps(told)[:160]
    found = told["predictions"]
    kinds = {status: sum(one["status"] == status for one in found) for status in sorted({one["status"] for one in found})}
    return f"{kinds} {found[0]['text'][:60]!r}" if found else "no predictions"


def forms(suite: Suite, server: Server) -> None:
    answered = lambda found: found[0]["text"].startswith("The warranty of the Corvane hygrometer lasts 12 months")  # noqa: E731
    suite.ask(server, "records", {"dataframe_records": [ROW]}, holds=answered)
    suite.ask(server, "split", {"dataframe_split": {"columns": list(ROW), "data": [list(ROW.values())]}}, holds=answered)
    suite.ask(server, "inputs, rows", {"inputs": [ROW]}, holds=answered)
    suite.ask(server, "inputs, columns", {"inputs": {name: [value] for name, value in ROW.items()}}, holds=answered)
    suite.ask(server, "instances", {"instances": [ROW]}, holds=answered)
    suite.ask(server, "parameters", {"inputs": [{"question": ROW["question"]}], "params": {"as_of": DAY, "max_lm_calls": 0}})
    hundred = [{"question": QUESTIONS[i % len(QUESTIONS)], "as_of": DAY, "max_lm_calls": 0} for i in range(100)]
    hundred[40]["question"] = ""
    in_order = lambda found: [one["question"] for one in found] == [row["question"] for row in hundred]  # noqa: E731
    suite.ask(server, "100 rows, one empty", {"dataframe_records": hundred}, holds=lambda found: in_order(found) and found[40]["error"])
    suite.ask(server, "0 rows", {"inputs": {"question": []}}, holds=lambda found: found == [])


def bad(suite: Suite, server: Server) -> None:
    marked = "PATIENT-4711"
    rows: dict[str, dict[str, Any]] = {
        "empty": {"question": ""},
        "null": {"question": None},
        "number": {"question": 3},
        "4,001 characters": {"question": "x" * 4001},
        "as_of": {"question": marked, "as_of": "soon"},
        "max_seconds": {"question": marked, "max_seconds": -1},
        "max_searches above the server's": {"question": marked, "max_searches": 99},
        "domains": {"question": marked, "allow_domains": "no domain"},
        "language": {"question": marked, "language": "de"},
    }
    for name, row in rows.items():
        suite.ask(server, f"bad: {name}", {"dataframe_records": [row]}, 400)
    suite.ask(server, "bad: 257 rows", {"dataframe_records": [ROW] * 257}, 400)
    suite.ask(server, "bad: parameter", {"inputs": [ROW], "params": {"max_seconds": "soon"}}, 400)
    suite.ask(server, "bad: no question", {"dataframe_records": [{"x": "y"}]}, 400)
    suite.ask(server, "bad: chat", {"messages": [{"role": "user", "content": "hi"}]}, 400)
    suite.ask(server, "bad: list", [ROW], 400)
    for name, content, kind, wanted in (("no JSON", "{bad", "application/json", 400), ("text/plain", "hi", "text/plain", 415)):
        began = time.monotonic()
        reply = httpx.post(f"{server.url}/invocations", content=content, headers={"Content-Type": kind})
        suite.note(f"bad: {name}", reply, wanted, time.monotonic() - began)


def lm_errors(suite: Suite, server: Server, fake: FakeLM) -> None:
    for status, wanted in ((429, 429), (500, 503), (401, 503)):
        fake.status = status
        suite.ask(server, f"LM answers {status}", {"dataframe_records": [ROW]}, wanted)
    fake.status = 200
    suite.ask(server, "LM is back", {"dataframe_records": [ROW]})


def parallel(suite: Suite, server: Server) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda i: server.ask({"dataframe_records": [{**ROW, "question": QUESTIONS[i % 8]}]}), range(20)))
    seconds = time.monotonic() - began
    rights = [QUESTIONS[i % 8] == reply.json()["predictions"][0]["question"] for i, reply in enumerate(replies) if reply.status_code == 200]
    worst = max(replies, key=lambda reply: reply.status_code)
    suite.note("20 at once, right after the start", worst, 200, seconds, holds=sum(rights) == 20, shown=f"{sum(rights)} right")


def first_and_tenth(suite: Suite, server: Server) -> None:
    times = []
    for i in range(10):
        began = time.monotonic()
        reply = server.ask({"dataframe_records": [{**ROW, "question": QUESTIONS[i % 8]}]})
        times.append(time.monotonic() - began)
    shown = f"first {times[0] * 1000:.0f} ms, tenth {times[9] * 1000:.0f} ms"
    suite.note("first against tenth", reply, 200, times[0], shown=shown)


def timeout(suite: Suite, home: Home, uri: str, folder: Path) -> None:
    rule, calls = home.fake.rules["answer"], len(home.fake.calls)

    def late(inputs: dict[str, str]) -> str:
        time.sleep(30)
        return rule(inputs)

    port = free_port()
    with serving(mlflow_serve(uri, port, "--timeout", "10"), home.env(), folder, port) as server:
        home.fake.rules["answer"] = late
        limited = lambda found: "max_seconds" in [warning["code"] for warning in found[0]["warnings"]]  # noqa: E731
        suite.ask(server, "LM of 30 s, --timeout 10", {"dataframe_records": [ROW]}, holds=limited)
        home.fake.rules["answer"] = rule
        suite.ask(server, "… and then", {"dataframe_records": [ROW]}, holds=lambda found: found[0]["status"] == "answered")
    print(f"LM calls around the timeout: {len(home.fake.calls) - calls}")


def main() -> int:
    """Run the suite; return the exit code."""
    suite = Suite()
    with tempfile.TemporaryDirectory() as name, fake_lm_server() as fake:
        folder = Path(name)
        home = make_home(folder, fake)
        old, new = publish(home), publish(home)
        port = free_port()
        for label, uri in (("old", old.uri), ("new", new.uri), ("old again", old.uri)):
            began = time.monotonic()
            with serving(mlflow_serve(uri, port), home.env(), folder, port) as server:
                up = httpx.get(f"{server.url}/ping")
                suite.note(f"{label} version up", up, 200, time.monotonic() - began, shown=uri)
                if label == "old":
                    first_and_tenth(suite, server)
                    forms(suite, server)
                    bad(suite, server)
                    lm_errors(suite, server, fake)
                    server.kill()  # the next starts on the same port and store
                else:
                    parallel(suite, server)
                log = server.log.read_text()
                if told := [word for word in (KEY, "PATIENT-4711") if word in log]:
                    suite.wrong += 1
                    print(f"The log of {label} holds {told}")
        timeout(suite, home, new.uri, folder)
    Console(width=200).print(suite.table)
    print(f"{suite.wrong} wrong")
    return int(suite.wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
