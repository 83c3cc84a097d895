"""Plans: the kind of question, compound questions in parts that can stand alone, plain ones left whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.plan import kind_of, needs_of, plan


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What does the Corvane basic plan cost per month?", "pricing"),
        ("How much is a spare charger?", "pricing"),
        ("WHAT IS THE FEE?", "pricing"),
        ("Is there a discount for schools?", "pricing"),
        ("What discount applies to the firmware licence?", "pricing"),  # pricing goes before technical
        ("How much time does the update take?", "general"),
        ("Which port does the gateway use?", "technical"),
        ("How long does the battery last?", "technical"),
        ("Who wrote the firmware?", "technical"),  # technical goes before factual
        ("How accurate is the probe?", "technical"),
        ("Who painted the mural?", "factual"),
        ("When did the harbour open?", "factual"),
        ("How many people work there?", "factual"),
        ("Explain binary heaps", "general"),
        ("Why is the mast red?", "general"),
        ("What colour is Percost?", "general"),  # words, not letters
        ("", "general"),
    ],
)
def test_the_kind_follows_the_words(question: str, kind: str) -> None:
    assert kind_of(question) == kind


@pytest.mark.parametrize(
    ("question", "needs"),
    [
        (
            "What does the Corvane plan cost, and how long is its warranty?",
            ("What does the Corvane plan cost?", "how long is its warranty (Corvane)?"),
        ),
        (
            "Who approves lending a spare head? And how fast does the Port of Ravnsund answer?",
            ("Who approves lending a spare head?", "how fast does the Port of Ravnsund answer?"),
        ),
        (
            "How long do tapes of the Vaultmere Reef last; which drive reads the tapes?",
            ("How long do tapes of the Vaultmere Reef last?", "which drive reads the tapes (Vaultmere Reef)?"),
        ),
        ("How much do the seats cost and by when must I pay?", ("How much do the seats cost?", "by when must I pay?")),
        ("What is the warranty period? How much is the extension?", ("What is the warranty period?", "How much is the extension?")),
        ("Which firmware runs on the S2, and does it read IPv6?", ("Which firmware runs on the S2?", "does it read IPv6 (S2)?")),
        (
            "Can I work from abroad with Fennmark, and where is the yearly limit?",
            ("Can I work from abroad with Fennmark?", "where is the yearly limit (Fennmark)?"),
        ),
        (
            "What does a seat cost, plus what does a berth cost, and when does the ferry leave?",
            ("What does a seat cost?", "what does a berth cost?", "when does the ferry leave?"),
        ),
    ],
)
def test_a_compound_question_is_split_and_pronouns_get_names(question: str, needs: tuple[str, ...]) -> None:
    assert needs_of(question) == needs


@pytest.mark.parametrize(
    "question",
    [
        "What does the Corvane plan cost?",
        "What is the difference between the Corvane and the Tidewarden?",
        "Which ports and protocols does the gateway use?",
        "How do I install and configure the mast?",
        "What is the price of the Corvane plan and the Tidewarden plan?",
        "Can I return an item after 30 days and get a refund?",
        "What would we owe if a rented Ferry goes overboard and is never seen again?",
        "What should I do if the sensor does not start and is not visible?",
        "What happens when the power fails and the battery is empty?",
        "Who founded Corvane, and when was it founded?",  # the second part says nothing by itself
        "When was it sold and to whom?",
        "We already have a Vaultmere contract; what do we press to get the shorter term?",
        "A caller says their Corvane reports rain although it is dry; what should the desk request first?",
        "What does the plan cost? Thanks a lot for your help!",
        "Explain binary heaps",
        "warranty",
    ],
)
def test_a_plain_question_is_not_split(question: str) -> None:
    assert needs_of(f"  {question}\n") == (question,)


words = st.sampled_from(
    "what how when which is does and ; , ? also plus cost warranty Corvane Tidewarden it its the a mast hull years I not seen by".split()
)


@settings(max_examples=300)
@given(st.lists(words, min_size=1, max_size=20).map(" ".join) | st.text(min_size=1).filter(str.strip))
def test_every_plan_has_needs_that_can_be_asked(question: str) -> None:
    needs = plan(question).needs
    assert needs and all(need.strip() for need in needs)
    if len(needs) == 1:
        assert needs == (question.strip(),)
    else:
        assert all(need.endswith("?") and len(need.split()) >= 3 for need in needs)
        assert all(word in question or word.strip("(),?") in question for need in needs for word in need.split())
