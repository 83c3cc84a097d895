"""Question files: what is wrong is named by file, line and field; splits are disjoint, samples balanced and always the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.errors import DatasetError
from optimize.dataset import MOST_PROBLEMS, Row, disjoint, load_rows, same_question, sample
from optimize.splits import load_splits, near_duplicates, split, split_file

GOOD: dict[str, Any] = {"question": "How long does it last?", "answer": "26 months"}


def written(folder: Path, *lines: str | dict[str, Any], encoding: str = "utf-8", end: str = "\n") -> Path:
    path = folder / "own.jsonl"
    text = end.join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_bytes((text + end).encode(encoding))
    return path


def test_question_and_answer_are_enough(tmp_path: Path) -> None:
    (row,) = load_rows(written(tmp_path, GOOD))
    assert (row.id, row.answerable, row.facts, row.need) == ("own-001", True, (("26 months",),), None)


@pytest.mark.parametrize(
    ("aliases", "facts"),
    [
        ([], (("26 months",),)),
        (["26 months", "two years"], (("26 months", "two years"),)),  # a flat list is one fact
        ([["26 months", "two years"], ["yearly"]], (("26 months", "two years"), ("yearly",))),
    ],
)
def test_aliases_are_facts_in_their_spellings(tmp_path: Path, aliases: list[Any], facts: tuple[tuple[str, ...], ...]) -> None:
    assert load_rows(written(tmp_path, GOOD | {"aliases": aliases}))[0].facts == facts


@pytest.mark.parametrize(("encoding", "end"), [("utf-8", "\r\n"), ("utf-8-sig", "\n"), ("utf-8", "\n\n  \n")])
def test_files_of_any_editor_are_read(tmp_path: Path, encoding: str, end: str) -> None:
    path = written(tmp_path, GOOD, GOOD | {"question": "Wie groß ist er\u2028wirklich?"}, encoding=encoding, end=end)
    assert [row.question for row in load_rows(path)] == [GOOD["question"], "Wie groß ist er\u2028wirklich?"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"question": "a", "answer"', "not JSON"),
        ("null", "field 'row'"),
        ("[1]", "field 'row'"),
        ({"question": "What?"}, "field 'answer'"),
        ({"answer": "x"}, "field 'question'"),
        (GOOD | {"question": ""}, "field 'question'"),
        (GOOD | {"question": " \n"}, "field 'question'"),
        (GOOD | {"question": 7}, "field 'question'"),
        (GOOD | {"answer": None}, "field 'answer'"),
        (GOOD | {"need": "index"}, "field 'need'"),
        (GOOD | {"kind": "weather"}, "field 'kind'"),
        (GOOD | {"aliases": "26 months"}, "field 'aliases'"),
        (GOOD | {"aliases": [["26 months"], 26]}, "field 'aliases.1'"),
        (GOOD | {"gold_docs": [None]}, "field 'gold_docs.0'"),
        (GOOD | {"need": "none"}, "need 'none' has an answer"),
        (GOOD | {"need": "web", "answer": " "}, "need 'web' has no answer"),
        (GOOD | {"id": "q0", "question": "Another?"}, "field 'id': 'q0' stands already in line 1"),
        (GOOD | {"question": "  which COLOUR is\tit? "}, "stands already in line 1"),
        (GOOD | {"question": "Which colour\u00a0is it ?!"}, "field 'question': 'Which colour\\xa0is it ?!' stands already in line 1"),
        (GOOD | {"golds_docs": ["a.md"]}, "field 'golds_docs': there is no such field, did you mean 'gold_docs'?"),
        (GOOD | {"goldUrls": ["http://a.example/"]}, "field 'goldUrls': there is no such field, did you mean 'gold_urls'?"),
        ({"Question": "What?", "answer": "x"}, "field 'question'"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"question": "\\ud800", "answer": "x"}', "field 'question'"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_field(tmp_path: Path, line: Any, names: str) -> None:
    path = written(tmp_path, {"id": "q0", "question": "Which colour is it?", "answer": "Red"}, "", line)
    with pytest.raises(DatasetError, match=re.escape(names)) as caught:
        load_rows(path)
    assert str(caught.value).startswith(f"{path}, line 3")


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    bad = written(tmp_path, GOOD, {"question": 7, "anwser": "x"}, "{", GOOD | {"question": "Else?", "need": "x", "kind": "y"}, GOOD)
    with pytest.raises(DatasetError) as caught:
        load_rows(bad)
    assert [re.sub(r"^\S+, ", "", problem).split(":")[0] for problem in str(caught.value).splitlines()] == [
        *(f"line 2, field '{name}'" for name in ("question", "answer", "anwser")),
        "line 3",
        "line 4, field 'need'",
        "line 4, field 'kind'",
        "line 5, field 'question'",
    ]


def test_more_problems_than_a_person_reads_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        load_rows(written(tmp_path, *["{"] * (MOST_PROBLEMS + 7)))
    said = str(caught.value).splitlines()
    assert len(said) == MOST_PROBLEMS + 1 and said[-1] == "… and 7 more problems."


def test_fields_that_mean_nothing_are_named_once(tmp_path: Path) -> None:
    told: list[str] = []
    path = written(tmp_path, GOOD, GOOD | {"question": "Else?", "question_id": 7, "ü": 1}, GOOD | {"question": "Who?", "question_id": 8})
    assert len(load_rows(path, told.append)) == 3
    assert [text.split(":")[0] for text in told] == [f"{path}, line 2, field 'question_id'", f"{path}, line 2, field 'ü'"]
    with pytest.warns(UserWarning, match="question_id"):  # nor does it pass silently where nobody asked
        load_rows(path)


@pytest.mark.parametrize("body", [b"", b"\n \n", "Größe".encode("latin-1")])
def test_a_file_without_questions_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(body)
    for bad in (path, tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(DatasetError, match=re.escape(str(bad))):
            load_rows(bad)


@pytest.mark.parametrize(
    ("source", "gold"),
    [
        ("a.md", True),
        ("docs/a.md", True),
        ("aa.md", False),
        ("docs/a.md.txt", False),
        ("http://x.example/a", True),
        ("http://x.example/", False),
    ],
)
def test_gold_sources_are_known_by_url_or_end_of_path(source: str, gold: bool) -> None:
    assert Row(**GOOD, gold_docs=("a.md",), gold_urls=("http://x.example/a",)).is_gold(source) is gold


def rows(*questions: str, need: Any = None) -> list[Row]:
    return [Row(id=question, question=question, answer="" if need == "none" else "x", need=need) for question in questions]


def test_splits_that_share_a_question_are_refused() -> None:
    disjoint(train=rows("One?", "Two?", "Two?"), dev=rows("Three?"))
    disjoint()
    with pytest.raises(DatasetError, match=r"'two ?\?'.* in train and in test"):
        disjoint(train=rows("One?", "Two ?"), dev=rows("Three?"), test=rows("two ?"))


FOUR = [*rows("i1", "i2", "i3", need="internal"), *rows("w1", need="web"), *rows("b1", "b2", need="both"), *rows("n1", "n2", need="none")]


@pytest.mark.parametrize(
    ("size", "ids"),
    [
        (0, []),
        (-1, []),
        (3, ["i1", "w1", "b1"]),
        (4, ["i1", "w1", "b1", "n1"]),
        (6, ["i1", "w1", "b1", "n1", "i2", "b2"]),
        (99, ["i1", "w1", "b1", "n1", "i2", "b2", "n2", "i3"]),
    ],
)
def test_a_sample_takes_the_needs_in_turn(size: int, ids: list[str]) -> None:
    assert [row.id for row in sample(FOUR, size)] == ids
    assert len(FOUR) == 8 and sample([], size) == []


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["internal", "web", "both", "none", None]), max_size=30), st.integers(0, 35))
def test_a_sample_is_balanced_stable_and_without_repetition(needs: list[Any], size: int) -> None:
    pool = [row for i, need in enumerate(needs) for row in rows(f"q{i}", need=need)]
    chosen = sample(pool, size)
    assert len(chosen) == len({row.id for row in chosen}) == min(size, len(pool)) and chosen == sample(pool, size)
    counts, all_counts = Counter(row.need for row in chosen), Counter(needs)
    most = max(counts.values(), default=0)
    assert all(counts[need] >= min(most - 1, all_counts[need]) for need in all_counts)
    for need in all_counts:
        mine = [row.id for row in chosen if row.need == need]
        assert mine == [row.id for row in pool if row.need == need][: len(mine)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What does it cost?", "  what DOES it\ncost ", True),
        ("What does it cost?", "What does it cost\u200b ?", True),
        ("Ｗhat does it cost?", "What does it cost", True),
        ("What is C?", "What is C++?", False),
        ("Is it 5 V?", "Is it -5 V?", False),
        ("?", "!", False),
    ],
)
def test_spellings_of_one_question(one: str, other: str, same: bool) -> None:
    assert (same_question(one) == same_question(other)) is same


def test_near_duplicates_are_warned_of_unless_a_number_differs(tmp_path: Path) -> None:
    splits = {
        "train": rows("How long does the Corvane S2 battery last in winter?", "Who approves travel to Norway?"),
        "dev": rows(
            "How long does the Corvane S2 battery last in the winter?",
            "How long does the Corvane S3 battery last in winter?",
            "Who approves leave?",
        ),
    }
    assert [(first, one.id[-8:], second, other.id[-11:]) for first, one, second, other in near_duplicates(splits)] == [
        ("train", " winter?", "dev", "the winter?")
    ]


MIXED = [row for i in range(20) for need in ("internal", "web", "both", "none", None) for row in rows(f"{need} {i}?", need=need)]


def test_a_split_is_the_seeds_stratified_and_whole() -> None:
    parts = split(MIXED, 3)
    assert parts == split(MIXED, 3) != split(MIXED, 4)
    assert sorted(row.id for mine in parts.values() for row in mine) == sorted(row.id for row in MIXED)
    for need in ("internal", "web", "both", "none", None):
        assert [sum(row.need == need for row in parts[name]) for name in ("train", "dev", "test")] == [12, 4, 4]


@pytest.mark.parametrize("size", [10, 11, 13, 47])
def test_every_part_gets_its_share(size: int) -> None:
    parts = split([row.model_copy(update={"need": None}) for row in MIXED[:size]], 0)
    assert [round(len(parts[name]) / size, 1) for name in ("dev", "test")] == [0.2, 0.2] and sum(map(len, parts.values())) == size


def test_one_file_is_split_and_its_last_part_given_only_when_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, *(GOOD | {"question": f"What about {i}?"} for i in range(10)))
    told: list[str] = []
    assert {name: len(mine) for name, mine in split_file(path, "", 0, told.append).items()} == {"train": 6, "dev": 2}
    whole = split_file(path, "split", 0, told.append)
    assert {name: len(mine) for name, mine in whole.items()} == {"train": 6, "dev": 2, "test": 2} and not told
    with pytest.raises(DatasetError, match=r"in (train|dev) and in test"):
        split_file(path, str(path), 0, told.append)
    few = written(tmp_path, *(GOOD | {"question": f"What about {i}?"} for i in range(9)))
    with pytest.raises(DatasetError, match="holds 9 questions: 10 at least"):
        split_file(few, "", 0, told.append)


def test_three_files_are_read_and_must_not_overlap(tmp_path: Path) -> None:
    paths = []
    for i, question in enumerate(("Which colour?", "Which size?", "which  COLOUR")):
        (tmp_path / str(i)).mkdir()
        paths.append(written(tmp_path / str(i), GOOD | {"question": question, "note": "x"}))
    told: list[str] = []
    assert load_splits(paths[0], paths[1], "", told.append).keys() == {"train", "dev"} and len(told) == 2
    with pytest.raises(DatasetError, match="in train and in test"):
        load_splits(paths[0], paths[1], str(paths[2]), told.append)


def test_the_questions_in_data_have_no_near_duplicates_across_splits() -> None:
    data = Path(__file__).parent.parent / "data"
    assert not near_duplicates({name: load_rows(data / f"{name}.jsonl") for name in ("train", "dev", "test")})
