"""Load a server with questions and print throughput against what the LM allows, errors, and memory over time.

    python tests/load_serve.py [--server crag|mlflow] [--questions 3000] [--latency 0.2]

The LM is a stub of fixed latency on loopback; each question takes one call to it, so at `n` in flight it allows n / latency questions
a second. What is below that is this program's own work (embedding, scoring) on the machine's cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import httpx
from fake_lm import fake_lm_server
from served_model import DAY, QUESTIONS, Server, crag_serve, free_port, make_home, mlflow_serve, publish, serving


def load(server: Server, kind: str, questions: int, in_flight: int, latency: float) -> None:
    """Send questions, `in_flight` at a time, and print a line for each tenth of them."""
    done, statuses, times, lock = [0], Counter[int](), list[float](), threading.Lock()
    began = time.monotonic()
    print(f"{in_flight} in flight, {questions} questions; the LM allows {in_flight / latency:.0f} a second")
    with httpx.Client(limits=httpx.Limits(max_connections=in_flight), timeout=300) as client:

        def ask(i: int) -> None:
            row = {"question": QUESTIONS[i % len(QUESTIONS)], "as_of": DAY}
            start = time.monotonic()
            if kind == "crag":
                reply = client.post(f"{server.url}/ask", json=row)
            else:
                reply = client.post(f"{server.url}/invocations", json={"dataframe_records": [row]})
            with lock:
                statuses[reply.status_code] += 1
                times.append(time.monotonic() - start)
                done[0] += 1
                if done[0] % max(1, questions // 10) == 0:
                    rate = done[0] / (time.monotonic() - began)
                    print(f"  {done[0]:6} done, {rate:6.1f}/s, {server.rss():6.0f} MB", flush=True)

        with ThreadPoolExecutor(in_flight) as pool:
            list(pool.map(ask, range(questions)))
    seconds = time.monotonic() - began
    share = questions / seconds / (in_flight / latency)
    middle, late = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    print(f"  {questions / seconds:.1f}/s, {share:.0%} of what the LM allows; median {middle:.2f} s, 95 % within {late:.2f} s")
    print(f"  statuses {dict(statuses)}")


def main() -> None:
    """Run at 8 and at 32 in flight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["crag", "mlflow"], default="crag")
    parser.add_argument("--questions", type=int, default=3000)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--top-k", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fake_lm_server() as fake:
        folder, port = Path(name), free_port()
        home = make_home(folder, fake)
        uri = publish(home).uri
        rule = fake.rules["answer"]

        def late(inputs: dict[str, str]) -> str:
            time.sleep(given.latency)
            return rule(inputs)

        fake.rules["answer"] = late
        env = home.env(CRAG_TOP_K=str(given.top_k), CRAG_SERVE_WORKERS="64")
        command, path = (crag_serve(uri, port), "/health") if given.server == "crag" else (mlflow_serve(uri, port), "/ping")
        with serving(command, env, folder, port, path=path) as server:
            for in_flight in (8, 32):
                fake.calls.clear()
                load(server, given.server, given.questions // 2, in_flight, given.latency)


if __name__ == "__main__":
    main()
