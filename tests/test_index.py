"""The index: what is stored is found again, nothing stale is, and an index made with other parts is refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromadb.api import ClientAPI
from conftest import TODAY, WordEmbedder
from pydantic import ValidationError

from crag_dspy.errors import IndexUnusable, SourceFailure
from crag_dspy.index import BATCH, Change, Index, Where, fuse, in_context, open_client
from crag_dspy.split import split
from crag_dspy.types import Document, Passage


class Coordinates:
    """The vector is written in the text's last line."""

    name = "coordinates"

    def __init__(self, dimension: int = 2) -> None:
        self.dimension = dimension

    def passages(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(number) for number in text.splitlines()[-1].split()] for text in texts]

    def query(self, text: str) -> list[float]:
        return self.passages([text])[0]


class Fails:
    """Embeds one batch, then fails."""

    name, dimension = "coordinates", 2

    def __init__(self) -> None:
        self.calls = 0

    def passages(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls += 1
        if self.calls > 1:
            raise MemoryError
        return [[1.0, 0.0] for _ in texts]

    def query(self, text: str) -> list[float]:
        return [1.0, 0.0]


@pytest.fixture
def client(tmp_path: Path) -> ClientAPI:
    return open_client(tmp_path / "chroma")


def store(index: Index, text: str, **fields: Any) -> Change:
    document = Document(**{"id": "guide.md", "title": "Guide", **fields, "text": text})
    return index.upsert(document, split(document))


def points(document_id: str, *texts: str) -> list[Passage]:
    return [Passage(id=f"{document_id}-{i:05}", document_id=document_id, title="", text=text) for i, text in enumerate(texts)]


def found(index: Index, question: str, k: int = 5) -> list[str]:
    return [hit.passage.text for hit in index.search(question, k)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"url": "https://a.example/x", "source_type": "web", "published_at": date(2026, 1, 2), "snippet": True},
        {"retrieved_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)},
    ],
)
def test_a_passage_comes_back_as_it_was_stored(word_index: Index, fields: dict[str, Any]) -> None:
    document = Document(id="guide.md", title="Guide", text="# Mast\n\n## Height\n\nThe mast is nine metres high.", **fields)
    (passage,) = split(document)
    word_index.upsert(document, [passage])
    assert [hit.passage for hit in word_index.search("How high is the mast?", 3)] == [passage]


@pytest.mark.parametrize(
    ("name", "dimension", "says"),
    [("other-model", 64, "'other-model' (64)"), ("words-64", 32, "'words-64' (32)")],
    ids=["embedder", "dimension"],
)
def test_an_index_of_another_embedder_is_refused_when_opened(client: ClientAPI, name: str, dimension: int, says: str) -> None:
    store(Index(client, "crag", WordEmbedder(), create=True), "The mast is nine metres high.")
    other = WordEmbedder()
    other.name, other.dimension = name, dimension
    with pytest.raises(IndexUnusable, match="crag ingest") as refused:
        Index(client, "crag", other, create=True)
    assert "'words-64' (64 dimensions)" in str(refused.value)
    assert says in str(refused.value)
    assert found(Index(client, "crag", WordEmbedder()), "mast") == ["The mast is nine metres high."]


def test_an_index_that_measures_another_distance_is_refused(client: ClientAPI) -> None:
    client.create_collection("crag", embedding_function=None, metadata={"embedder": "words-64", "dimension": 64})  # l2 by default
    with pytest.raises(IndexUnusable, match=r"'l2' distance, not 'cosine'.*crag ingest"):
        Index(client, "crag", WordEmbedder(), create=True)


def test_a_collection_of_another_tool_is_refused(client: ClientAPI) -> None:
    client.create_collection("crag")
    with pytest.raises(IndexUnusable, match="not with 'words-64'"):
        Index(client, "crag", WordEmbedder(), create=True)


def test_a_missing_index_names_the_command_that_makes_it(client: ClientAPI) -> None:
    with pytest.raises(IndexUnusable, match=r"no index 'crag' yet.*crag ingest"):
        Index(client, "crag", WordEmbedder())


@pytest.mark.parametrize("name", ["", "my documents", "é"])
def test_a_name_that_chroma_refuses_names_its_setting(client: ClientAPI, name: str) -> None:
    with pytest.raises(IndexUnusable, match="CRAG_COLLECTION="):
        Index(client, name, WordEmbedder(), create=True)


def test_a_folder_that_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chroma.sqlite3").write_text("no database " * 100)
    with pytest.raises(IndexUnusable, match=r"cannot be opened.*CRAG_CHROMA"):
        open_client(tmp_path)


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(IndexUnusable, match=r"No Chroma server answers at http://127\.0\.0\.1:9"):
        open_client("http://127.0.0.1:9")


def test_a_changed_document_leaves_nothing_of_its_old_text(word_index: Index) -> None:
    store(word_index, "The price is 10 euro.")
    assert store(word_index, "The price is 12 euro.") == Change(added=1, unchanged=0, removed=1)
    assert found(word_index, "What is the price?") == ["The price is 12 euro."]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"published_at": date(2024, 1, 1)}, {"published_at": date(2026, 1, 1)}),
        ({"published_at": date(2024, 1, 1)}, {}),
        ({"title": "Old guide"}, {"title": "New guide"}),
        ({"url": "https://a.example/old"}, {"url": "https://a.example/new"}),
        ({"snippet": True}, {}),
    ],
)
def test_the_same_text_with_other_facts_takes_the_new_ones(word_index: Index, before: dict[str, Any], after: dict[str, Any]) -> None:
    store(word_index, "The price is 10 euro.", **before)
    store(word_index, "The price is 10 euro.", **after)
    wanted = split(Document(**{"id": "guide.md", "title": "Guide", **after, "text": "The price is 10 euro."}))
    assert [hit.passage for hit in word_index.search("price", 5)] == wanted


def test_an_unchanged_document_is_not_embedded_again(client: ClientAPI) -> None:
    store(Index(client, "crag", Coordinates(), create=True), "1 0")
    failing = Fails()
    failing.calls = 1
    assert store(Index(client, "crag", failing), "1 0") == Change(added=0, unchanged=1, removed=0)


def test_a_document_is_changed_and_deleted_alone(word_index: Index) -> None:
    store(word_index, "The mast is nine metres high.", id="b.md")
    store(word_index, "The price is 10 euro.", id="a.md")
    store(word_index, "The price is 12 euro.", id="a.md")
    assert word_index.document_ids() == ["a.md", "b.md"]
    word_index.delete("a.md")
    assert (word_index.document_ids(), word_index.count()) == (["b.md"], 1)
    assert found(word_index, "price mast") == ["The mast is nine metres high."]


def test_more_passages_than_one_call_may_hold_go_in_and_out(client: ClientAPI) -> None:
    many = client.get_max_batch_size() + 1
    document = Document(id="new", title="", text="")
    index = Index(client, "crag", Coordinates(), create=True)
    new = points("new", *["1 0"] * many)
    assert index.upsert(document, new) == Change(added=many, unchanged=0, removed=0)
    assert len(index.search("1 0", 50)) == 50
    assert index.upsert(document, new[:1]) == Change(added=0, unchanged=1, removed=many - 1)
    assert [hit.passage.id for hit in index.search("1 0", 5)] == [new[0].id]


def test_a_run_cut_short_is_resumed(client: ClientAPI) -> None:
    document = Document(id="new", title="", text="")
    old, *new = points("new", "0 1", *["1 0"] * (BATCH + 1))
    index = Index(client, "crag", Coordinates(), create=True)
    index.upsert(document, [old])
    with pytest.raises(MemoryError):
        Index(client, "crag", Fails()).upsert(document, new)
    assert index.count() == BATCH + 1  # the first batch beside the old row
    assert index.upsert(document, new) == Change(added=1, unchanged=BATCH, removed=1)
    assert index.count() == BATCH + 1


def test_similarity_falls_strictly_from_identical_to_opposite(client: ClientAPI) -> None:
    index = Index(client, "crag", Coordinates(), create=True)
    index.upsert(Document(id="d", title="", text=""), points("d", "-1 0", "0 5", "3 3", "7 0"))
    hits = index.nearest("2 0", 4)
    assert [hit.passage.text for hit in hits] == ["7 0", "3 3", "0 5", "-1 0"]
    assert [hit.score for hit in hits] == pytest.approx([1.0, 0.854, 0.5, 0.0], abs=1e-3)


def test_rounding_takes_no_similarity_out_of_its_range(client: ClientAPI) -> None:
    vectors = np.random.default_rng(0).normal(size=(100, 3))
    texts = [" ".join(map(str, vector)) for vector in np.concatenate([vectors, -vectors])]
    index = Index(client, "crag", Coordinates(3), create=True)
    index.upsert(Document(id="d", title="", text=""), points("d", *texts))
    similarities = [hit.score for text in texts for hit in index.nearest(text, len(texts))]
    assert min(similarities) >= 0.0
    assert max(similarities) <= 1.0


def test_ties_are_broken_by_id_and_k_cuts_last(client: ClientAPI) -> None:
    index = Index(client, "crag", Coordinates(), create=True)
    for document in ("c", "a", "d", "b"):
        index.upsert(Document(id=document, title="", text=""), points(document, "1 0"))
    assert [hit.passage.document_id for hit in index.search("1 0", 3)] == ["a", "b", "c"]


@pytest.mark.parametrize(("stored", "k", "wanted"), [(0, 3, 0), (2, 50, 2), (3, 1, 1)])
def test_search_returns_at_most_k_and_at_most_what_there_is(client: ClientAPI, stored: int, k: int, wanted: int) -> None:
    index = Index(client, "crag", Coordinates(), create=True)
    if stored:
        index.upsert(Document(id="d", title="", text=""), points("d", *[f"1 {i}" for i in range(stored)]))
    assert len(index.search("1 0", k)) == wanted


def test_few_neighbours_are_missed_among_thousands(client: ClientAPI) -> None:
    vectors = np.random.default_rng(1).normal(size=(5000, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Index(client, "crag", Coordinates(16), create=True)
    index.upsert(Document(id="d", title="", text=""), points("d", *[" ".join(map(str, vector)) for vector in vectors]))
    right = 0
    for query in np.random.default_rng(2).normal(size=(25, 16)):
        nearest = {f"d-{i:05}" for i in np.argsort(-(vectors @ query))[:4]}
        right += len(nearest & {hit.passage.id for hit in index.nearest(" ".join(map(str, query)), 4)})
    assert right >= 0.95 * 100


@pytest.mark.parametrize("text", [None, "The mast is nine metres high."])
@pytest.mark.parametrize(
    "row",
    [
        None,
        {"page": 3},
        {"published_at": "2024/01/02", "retrieved_at": "yesterday", "start": "top", "end": 1.5},
        {"published_at": 20240102, "url": 5, "title": 7},
    ],
)
def test_rows_of_another_tool_are_read_with_defaults(word_index: Index, client: ClientAPI, text: str | None, row: Any) -> None:
    vector: Any = WordEmbedder().query("mast")
    client.get_collection("crag", embedding_function=None).add(
        ids=["foreign-1"], embeddings=[vector], documents=[text] if text else None, metadatas=[row] if row else None
    )
    (hit,) = word_index.search("mast", 3)
    assert (hit.passage.id, hit.passage.document_id, hit.passage.text) == ("foreign-1", "foreign-1", text or "")
    assert (hit.passage.published_at, hit.passage.retrieved_at, hit.passage.start) == (None, None, 0)
    assert hit.passage.end == len(text or "")
    assert hit.passage.title
    assert word_index.document_ids() == [""]


def test_lone_surrogates_are_stored_as_question_marks(word_index: Index) -> None:
    store(word_index, "The mast \ud83d is nine metres high.", title="Gui\udc00de")
    (hit,) = word_index.search("mast \ud83d", 3)
    assert (hit.passage.text, hit.passage.title) == ("The mast ? is nine metres high.", "Gui?de")


def test_a_passage_is_found_by_its_title_and_section(word_index: Index) -> None:
    store(word_index, "It costs 129 euro.", id="a.md", title="Tidewarden gateway")
    store(word_index, "It costs 349 euro.", id="b.md", title="Larkspur sensor")
    assert found(word_index, "What does the Larkspur sensor cost?", 1) == ["It costs 349 euro."]


def test_the_models_read_a_passage_under_its_title_and_section() -> None:
    passage = Passage(id="p", document_id="d", title="Guide", section="Mast > Height", text="Nine metres. No more.")
    assert in_context(passage) == "Guide > Mast > Height\nNine metres. No more."
    assert in_context(passage, "Nine metres.") == "Guide > Mast > Height\nNine metres."


def test_an_index_removed_under_a_running_program_is_a_named_failure(tmp_path: Path) -> None:
    client = open_client(tmp_path / "chroma")
    index = Index(client, "crag", WordEmbedder(), create=True)
    client.delete_collection("crag")
    with pytest.raises(SourceFailure, match="index cannot be read") as caught:
        index.search("anything", 3)
    assert caught.value.code == "index_unavailable"


@pytest.mark.parametrize(
    ("rankings", "order"),
    [
        ([[], []], []),
        ([["a", "b"], []], ["a", "b"]),
        ([["a", "b", "c"], ["b", "c", "a"]], ["b", "a", "c"]),
        ([["d", "a"], ["b", "c"]], ["b", "d", "a", "c"]),  # equal scores: by id
    ],
)
def test_rankings_are_fused_by_reciprocal_rank(rankings: list[list[str]], order: list[str]) -> None:
    assert [key for key, _ in fuse(*rankings)] == order


def test_fused_scores_are_those_of_the_paper() -> None:
    assert dict(fuse(["a", "b"], ["b"])) == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 1 / 61})


class Blind(WordEmbedder):
    """Finds all texts equally near: only keywords can tell them apart."""

    name = "blind"

    def _vector(self, text: str) -> list[float]:
        return [1.0, *[0.0] * 63]


@pytest.mark.parametrize(
    ("question", "document"),
    [
        ("Which gateway is TW4410?", "code.md"),
        ("what came with 2.1", "version.md"),
        ("Wie hoch ist die Strassengebühr?", "german.md"),
        ("東京本社の住所", "japanese.md"),
    ],
)
def test_what_the_vectors_cannot_tell_apart_the_keywords_find(client: ClientAPI, question: str, document: str) -> None:
    index = Index(client, "crag", Blind(), create=True)
    for name, text in {
        "a.md": "A gateway of another kind, which is sold with a cable.",
        "code.md": "The gateway TW-4410 takes two antennas.",
        "german.md": "Die Straßengebühr beträgt vier Euro.",
        "japanese.md": "本社は東京にあります。",
        "version.md": "Version v2.1 brought offline maps, version v2.4 took them away.",
    }.items():
        store(index, text, id=name, title="Notes")
    (best, *_) = index.search(question, 3)
    assert best.passage.document_id == document
    assert best.score > index.search(question, 3)[1].score


def test_keywords_follow_what_is_added_changed_and_deleted(client: ClientAPI) -> None:
    index = Index(client, "crag", Blind(), create=True)

    def best(question: str) -> tuple[str, bool]:
        """Return the first hit's text, and whether a keyword found it."""
        hit = index.search(question, 1)[0]
        return hit.passage.text, hit.score > 1 / 61

    store(index, "An orange lantern.", id="a.md")
    store(index, "A violet lantern.", id="b.md")
    assert best("violet") == ("A violet lantern.", True)
    store(index, "A crimson lantern.", id="b.md")
    assert best("crimson") == ("A crimson lantern.", True)
    assert not best("violet")[1]
    index.delete("b.md")
    assert best("crimson") == ("An orange lantern.", False)


SOME = [
    ("http://a.example/1", {"source_type": "web", "published_at": date(2026, 1, 2)}),
    ("old.md", {"published_at": date(2020, 5, 5)}),
    ("new.md", {"published_at": date(2026, 2, 1)}),
    ("undated.md", {}),
]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (Where(), {"http://a.example/1", "old.md", "new.md", "undated.md"}),
        (Where(source_type="web"), {"http://a.example/1"}),
        (Where(source_type="internal"), {"old.md", "new.md", "undated.md"}),
        (Where(document_ids=("old.md", "undated.md", "unknown.md")), {"old.md", "undated.md"}),
        (Where(document_ids=()), set()),
        (Where(published_from=date(2026, 1, 2)), {"http://a.example/1", "new.md"}),
        (Where(published_to=date(2026, 1, 2)), {"http://a.example/1", "old.md"}),
        (Where(published_from=date(2026, 1, 3), published_to=date(2026, 2, 1)), {"new.md"}),
        (Where(published_from=date(2026, 1, 1), source_type="internal"), {"new.md"}),
    ],
)
def test_only_what_is_asked_for_is_found_by_either_ranking(word_index: Index, where: Where, wanted: set[str]) -> None:
    for name, fields in SOME:
        store(word_index, f"The mast of {name} is high.", id=name, **fields)
    assert {hit.passage.document_id for hit in word_index.search("how high is the mast", 10, where)} == wanted
    assert {hit.passage.document_id for hit in word_index.nearest("how high is the mast", 10, where)} == wanted


def test_k_passages_are_found_if_k_match_however_far_they_are(client: ClientAPI) -> None:
    index = Index(client, "crag", Coordinates(), create=True)
    index.upsert(Document(id="near", title="", text=""), points("near", *[f"1 0.{i:03}" for i in range(900)]))
    index.upsert(Document(id="far", title="", text=""), points("far", *[f"-1 0.{i:03}" for i in range(20)]))
    where = Where(document_ids=("far",))
    assert len(index.search("1 0", 15, where)) == len(index.nearest("1 0", 15, where)) == 15


def test_rows_of_another_tool_count_as_undated_and_internal(word_index: Index, client: ClientAPI) -> None:
    vector: Any = WordEmbedder().query("mast")
    client.get_collection("crag", embedding_function=None).add(ids=["foreign-1"], embeddings=[vector], documents=["mast"])
    assert [hit.passage.id for hit in word_index.search("mast", 3, Where(source_type="internal"))] == ["foreign-1"]
    assert [hit.passage.id for hit in word_index.search("mast", 3, Where(document_ids=("foreign-1",)))] == ["foreign-1"]
    assert word_index.search("mast", 3, Where(published_to=TODAY)) == []


def test_a_period_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValidationError, match="lies after"):
        Where(published_from=date(2026, 2, 1), published_to=date(2026, 1, 1))


def test_several_threads_search_while_another_changes_the_index(word_index: Index) -> None:
    store(word_index, "The mast is nine metres high.", id="stays.md")
    failures: list[object] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            hits = word_index.search("mast", 3)
            if "stays.md" not in {hit.passage.document_id for hit in hits}:
                failures.append(hits)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for i in range(8):
            store(word_index, f"The price is {i} euro.", id="changes.md")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert found(word_index, "price", 1) == ["The price is 7 euro."]
