"""What tracing costs: the whole program on fake backends, untraced against traced; `python tests/bench_tracing.py`.

Per question: the time until the answer is there, the processor time of the thread that asks, and that of the whole process, in which
another thread writes the traces to SQLite. Of all rounds the cheapest counts: the others measure what else the machine had to do.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

import dspy
import mlflow
from fake_lm import FakeLM, fake_lm_server
from whole_program import NEWS, QUESTION, STALE, Web, build

from crag_dspy.crag import Crag
from crag_dspy.watch import Tracing

MODES: tuple[Tracing, ...] = ("off", "on", "redacted")
ROUNDS, BLOCK = 6, 8  # how often each mode has its turn, and with how many questions
LATENCIES = (0, 50)  # of the LM, in milliseconds
Costs = tuple[float, float, float]


@contextmanager
def slow_lm(seconds: float) -> Iterator[FakeLM]:
    """Serve an LM that takes its time."""
    with fake_lm_server() as fake:
        for field, rule in list(fake.rules.items()):
            fake.rules[field] = lambda inputs, rule=rule: (time.sleep(seconds), rule(inputs))[1]  # type: ignore[misc]
        yield fake


def block(crag: Crag) -> Costs:
    """Ask a few questions one after another, wait until their traces are written, and return what each took."""
    mlflow.flush_trace_async_logging()
    began, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(BLOCK):
        crag(QUESTION)
    wall, thread = time.perf_counter() - began, time.thread_time() - thread
    if crag.tracing != "off":
        mlflow.flush_trace_async_logging()
    return wall / BLOCK, thread / BLOCK, (time.process_time() - process) / BLOCK


def measure(crag: Crag) -> dict[Tracing, Costs]:
    """Return by mode the least that a question took, in seconds."""
    found: dict[Tracing, list[Costs]] = {mode: [] for mode in MODES}
    for turn in range(ROUNDS + 1):
        for mode in random.sample(MODES, len(MODES)):
            crag.tracing = mode
            costs = block(crag)
            if turn:  # the first one loads libraries
                found[mode].append(costs)
    return {mode: (min(c[0] for c in costs), min(c[1] for c in costs), min(c[2] for c in costs)) for mode, costs in found.items()}


def main() -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    print(f"{'LM':>5} {'tracing':>9}{'answer after':>22}{'asking thread':>22}{'whole process':>22}")
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        for milliseconds in LATENCIES:
            with slow_lm(milliseconds / 1000) as fake:
                found = measure(build(fake.lm(), STALE, web=Web(NEWS)))
            for mode, costs in found.items():
                shown = [f"{1e3 * cost:.1f} ms ({cost / base - 1:+.0%})" for cost, base in zip(costs, found["off"], strict=True)]
                print(f"{milliseconds:2} ms {mode:>9}" + "".join(f"{text:>22}" for text in shown), flush=True)


if __name__ == "__main__":
    main()
