"""A small world to compile on: documents, pages and questions about instruments, and an LM whose replies depend on its prompt."""

from __future__ import annotations

from typing import Any

import dspy
from conftest import TODAY
from fake_lm import FakeLM
from whole_program import POLICY, Web, build

from crag_dspy.program import CRAG
from crag_dspy.types import Document
from optimize.dataset import Row

THINGS = ("hygrometer", "anemometer", "barometer", "pyranometer", "thermometer", "ceilometer")
DOCUMENTS = [
    Document(
        id=f"{thing}.md",
        title=thing,
        text=(
            f"The warranty of the {thing} lasts {20 + i} months in all countries.\n\n"
            f"The {thing} is painted grey and leaves the works with a printed manual for the owner.\n\n"
            f"Owners of the {thing} who register get a calendar about the warranty and about the months of the year."
        ),
        published_at=TODAY,
    )
    for i, thing in enumerate(THINGS)
]
PAGES = {
    f"http://{thing}.example/": f"The current list price of the {thing} is {300 + i} euros before tax." for i, thing in enumerate(THINGS)
}


def rows(web: bool = True) -> list[Row]:
    """Return questions that the index answers, that the web answers, and that nobody can answer, in turn."""
    made = []
    for i, thing in enumerate(THINGS):
        made.append(
            Row(
                id=f"i{i}",
                question=f"How many months does the warranty of the {thing} last?",
                answer=f"{20 + i} months",
                need="internal",
                gold_docs=(f"{thing}.md",),
                support=(f"The warranty of the {thing} lasts {20 + i} months in all countries.",),
            )
        )
        if web:
            made.append(
                Row(
                    id=f"w{i}",
                    question=f"What is the current list price of the {thing} in euros?",
                    answer=f"{300 + i} euros",
                    need="web",
                    gold_urls=(f"http://{thing}.example/",),
                    support=(PAGES[f"http://{thing}.example/"],),
                )
            )
        made.append(Row(id=f"n{i}", question=f"Which engineer designed the housing of the {thing}?", answer="", need="none"))
    return made


def find(query: str) -> list[str]:
    """Return the pages whose thing a query names, if it also says what about it."""
    return [url for url in PAGES if url.split("/")[2].split(".")[0] in query.lower() and "price" in query.lower()]


def program(lm: dspy.LM, **options: Any) -> CRAG:
    """Return the uncompiled program in this world."""
    return build(lm, *DOCUMENTS, web=Web(dict(PAGES), find), policy=POLICY, **options).program


def teach(fake: FakeLM) -> FakeLM:
    """Let the LM write instructions, and do worse without one: it picks all strips and leaves markers out."""

    def instruction(inputs: dict[str, str]) -> str:
        return "Be exact and give only what is needed, with its number."

    plain = dict(fake.rules)

    def exact(rule: Any, careless: Any) -> Any:
        return lambda inputs: rule(inputs) if "Be exact" in fake.calls[-1].prompt else careless(inputs)

    fake.rules |= {
        "observations": lambda inputs: "Questions about instruments.",
        "summary": lambda inputs: "Short questions about instruments.",
        "proposed_instruction": instruction,
        "new_instruction": instruction,
        "numbers": exact(plain["numbers"], lambda inputs: ", ".join(str(n) for n in range(1, 1 + len(inputs["strips"].splitlines())))),
        "query": exact(
            plain["query"], lambda inputs: inputs["question"].split()[-1] if "barometer" in inputs["question"] else plain["query"](inputs)
        ),
        "answer": exact(plain["answer"], lambda inputs: plain["answer"](inputs).split(" [")[0] + "."),
    }
    return fake


def prompts(program: CRAG) -> dict[str, tuple[str, list[Any]]]:
    """Return what a compile can change, to compare."""
    return {name: (p.signature.instructions, [dict(demo) for demo in p.demos]) for name, p in program.named_predictors()}
