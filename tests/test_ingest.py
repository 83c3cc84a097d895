"""Ingestion: each file type is read with its title and date, what cannot be read is named, a second run brings up to date."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import docx
import pytest
from chromadb.api.models.Collection import Collection
from conftest import WordEmbedder
from filelock import FileLock
from kill_ingest import contents, differences
from pypdf import PdfReader, PdfWriter

from crag_dspy.errors import IngestError
from crag_dspy.index import Index, open_client
from crag_dspy.ingest import LOCK, IngestReport, ingest, read
from crag_dspy.split import split
from crag_dspy.types import Document


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_pdf(path: Path, lines: list[str], info: str = "") -> Path:
    """Write a one-page PDF by hand."""
    shown = "BT /F1 12 Tf 72 720 Td 14 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(shown)} >>\nstream\n{shown}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< {info} >>",
    ]
    body, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer << /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n{len(body)}\n%%EOF"
    return write(path, f"{body}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}")


def write_docx(path: Path, title: str = "", modified: datetime | None = None) -> Path:
    word = docx.Document()
    word.core_properties.title = title
    if modified:
        word.core_properties.modified = modified
    word.add_heading("Mast", level=1)
    word.add_paragraph("The mast is nine metres high.")
    word.add_heading("Parts", level=2)
    word.add_paragraph("Guy wires", style="List Bullet")
    table = word.add_table(rows=2, cols=2)
    for cell, text in zip([*table.rows[0].cells, *table.rows[1].cells], ["Part", "Price", "Wire\nsteel", "9 euro"], strict=True):
        cell.text = text
    word.add_paragraph("")
    word.add_paragraph("After it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    word.save(str(path))
    return path


HTML = """<html><head><title>Parking at Skarvholt</title><meta property="article:published_time" content="2025-11-04"></head>
<body><nav><a href="/">Home</a></nav><article><h1>Parking at Skarvholt</h1>
<p>Every employee may park in the northern garage from seven in the morning until ten in the evening.</p>
<h2>Price</h2><p>A space costs forty euro a month, which is taken from the salary at the end of each quarter.</p>
<table><tr><th>Garage</th><th>Spaces</th></tr><tr><td>North</td><td>120</td></tr></table></article></body></html>"""


@pytest.mark.parametrize(
    ("name", "content", "title", "published", "text"),
    [
        (
            "a.md",
            "---\ntitle: Annual leave\npublished: 2025-03-01\n---\n# Other\n\nBody.",
            "Annual leave",
            date(2025, 3, 1),
            "# Other\n\nBody.",
        ),
        ("a.md", "---\r\ndate: 2025-03-01 08:00:00\r\n---\r\n# Leave\r\n\r\nBody.", "Leave", date(2025, 3, 1), "# Leave\n\nBody."),
        ("a.md", "---\ntitle: 2024\npublished: spring\n---\nBody.", "2024", None, "Body."),
        ("a.markdown", "\ufeff# Leave\n\nBody.", "Leave", None, "# Leave\n\nBody."),
        ("a.md", "```\n# comment\n```\n\nLeave\n=====\n\nBody.", "Leave", None, "```\n# comment\n```\n\nLeave\n=====\n\nBody."),
        ("my-leave.MD", "## Only a section\n\nBody.", "my-leave", None, "## Only a section\n\nBody."),
        ("a.md", "---\n\nNo front matter.\n\n---\n\nBody.", "a", None, "---\n\nNo front matter.\n\n---\n\nBody."),
        ("a.txt", "Title: Canteen\nPublished: 2025-02-10\n\nBody: of text.", "Canteen", date(2025, 2, 10), "Body: of text."),
        ("a.txt", "\ufeffdate: 2025-02-10\r\nTITLE:  The   canteen \r\n\r\nBody.", "The canteen", date(2025, 2, 10), "Body."),
        ("a.txt", "Published: soon\nBody.\nTitle: not at the top", "a", None, "Body.\nTitle: not at the top"),
        ("canteen.txt", "Body.", "canteen", None, "Body."),
    ],
)
def test_text_is_read_with_its_title_and_date(
    tmp_path: Path, name: str, content: str, title: str, published: date | None, text: str
) -> None:
    document = read(write(tmp_path / name, content), id="people/leave")
    assert (document.id, document.title, document.published_at, document.text) == ("people/leave", title, published, text)
    assert (document.source_type, document.url) == ("internal", None)


def test_html_is_read_without_its_navigation(tmp_path: Path) -> None:
    document = read(write(tmp_path / "parking.html", HTML), id="parking.html")
    assert (document.title, document.published_at, document.source_type) == ("Parking at Skarvholt", date(2025, 11, 4), "internal")
    assert "forty euro a month" in document.text
    assert "## Price" in document.text
    assert "| North | 120 |" in document.text
    assert "Home" not in document.text


@pytest.mark.parametrize(
    ("info", "title", "published"),
    [
        ("/Title (Mast manual) /CreationDate (D:20240105120000Z) /ModDate (D:20250206120000Z)", "Mast manual", date(2025, 2, 6)),
        ("/CreationDate (D:20240105120000Z)", "mast", date(2024, 1, 5)),
        ("/CreationDate (last spring)", "mast", None),
        ("", "mast", None),
    ],
)
def test_pdf(tmp_path: Path, info: str, title: str, published: date | None) -> None:
    document = read(write_pdf(tmp_path / "mast.pdf", ["The mast is nine metres high.", "Raise it at noon."], info), id="mast.pdf")
    assert document.text.split() == "The mast is nine metres high. Raise it at noon.".split()
    assert (document.title, document.published_at) == (title, published)


def test_docx(tmp_path: Path) -> None:
    document = read(write_docx(tmp_path / "mast.docx", "Mast manual", datetime(2025, 4, 1)), id="mast.docx")
    assert (document.title, document.published_at) == ("Mast manual", date(2025, 4, 1))
    assert document.text == (
        "# Mast\n\nThe mast is nine metres high.\n\n## Parts\n\n- Guy wires\n\n| Part | Price |\n| Wire steel | 9 euro |\n\nAfter it."
    )
    assert read(write_docx(tmp_path / "untitled.docx"), id="x").title == "untitled"


def encrypted(path: Path) -> Path:
    writer = PdfWriter(clone_from=PdfReader(write_pdf(path, ["Secret."])))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(path)
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: write(folder / "x.png", b"\x89PNG"), "unsupported type '.png'"),
        (lambda folder: write(folder / "README", "text"), "unsupported type '(none)'"),
        (lambda folder: write(folder / "x.md", ""), "has no text"),
        (lambda folder: write(folder / "x.md", "---\ntitle: Only front matter\n---\n"), "has no text"),
        (lambda folder: write(folder / "x.md", "---\ntitle: a: b\n---\nBody."), "cannot be read as .md (ScannerError)"),
        (lambda folder: write(folder / "x.txt", "Title: Only a title\n"), "has no text"),
        (lambda folder: write(folder / "x.txt", " \n\t\n"), "has no text"),
        (lambda folder: write(folder / "x.txt", "caf\xe9".encode("latin-1")), "is not UTF-8 text"),
        (lambda folder: write(folder / "x.html", "<html><body></body></html>"), "has no main text"),
        (lambda folder: write(folder / "x.html", ""), "has no main text"),
        (lambda folder: write(folder / "x.pdf", "%PDF-1.4 broken"), "cannot be read as .pdf ("),
        (lambda folder: write(folder / "x.pdf", ""), "cannot be read as .pdf ("),
        (lambda folder: write_pdf(folder / "x.pdf", []), "has no text"),
        (lambda folder: encrypted(folder / "x.pdf"), "cannot be read as .pdf ("),
        (lambda folder: write(folder / "x.docx", "no archive"), "cannot be read as .docx ("),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_in(
    word_index: Index, tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    docs = tmp_path / "docs"
    write(docs / "a.md", "The mast is nine metres high.")
    bad = make(docs)
    write(docs / "z.txt", "The price is 12 euro.")
    report = ingest([docs], word_index, base=docs)
    assert [skipped.path for skipped in report.skipped] == [bad]
    assert report.skipped[0].reason.startswith(reason)
    assert report[:4] == (2, 2, 0, 0)
    assert word_index.document_ids() == ["a.md", "z.txt"]


def test_every_type_goes_in_and_is_found(word_index: Index, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    write(docs / "leave.md", "Annual leave is thirty days.")
    write(docs / "deep" / "er" / "canteen.txt", "The canteen opens at noon.")
    write(docs / "parking.htm", HTML)
    write_pdf(docs / "wifi.PDF", ["The wireless network is called Skarv."])
    write_docx(docs / "mast.docx")
    report = ingest([docs], word_index, base=tmp_path)
    assert (report.documents, report.skipped) == (5, [])
    for question, id in [
        ("annual leave days", "docs/leave.md"),
        ("when does the canteen open at noon", "docs/deep/er/canteen.txt"),
        ("park in the northern garage", "docs/parking.htm"),
        ("wireless network called", "docs/wifi.PDF"),
        ("mast nine metres high", "docs/mast.docx"),
    ]:
        assert word_index.search(question, 1)[0].passage.document_id == id


def test_hidden_files_are_left_out_and_a_file_named_twice_goes_in_once(word_index: Index, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    first = write(docs / "a.md", "The mast.")
    write(docs / ".git" / "config.md", "hidden")
    write(docs / ".hidden.md", "hidden")
    write(docs / "b.md", "The price.")
    (docs / "link.md").symlink_to(first)
    assert ingest([first, docs, first], word_index, base=docs) == IngestReport(documents=2, added=2, unchanged=0, removed=0, skipped=[])
    assert word_index.document_ids() == ["a.md", "b.md"]


def test_ids_are_paths_from_the_current_folder(word_index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "docs" / "a.md", "The mast.")
    monkeypatch.chdir(tmp_path)
    ingest([Path("docs")], word_index)
    ingest([tmp_path / "docs" / "a.md"], word_index)
    assert word_index.document_ids() == ["docs/a.md"]


def test_a_file_name_that_is_not_utf8_goes_in(word_index: Index, tmp_path: Path) -> None:
    name = tmp_path / "docs" / os.fsdecode(b"caf\xe9.txt")
    try:
        write(name, "The price is 12 euro.")
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")  # macOS: there such a file cannot exist; on Linux this runs
    ingest([name], word_index, base=name.parent)
    (hit,) = word_index.search("price", 1)
    assert (hit.passage.document_id, hit.passage.title) == ("caf?.txt", "caf?")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "the folders hold no files"),
        (["a.png"], "a.png: unsupported type '.png'"),
        (["a.md", "b.txt"], "a.md: has no text; b.txt: has no text"),
    ],
)
def test_nothing_usable_is_an_error_that_says_why(word_index: Index, tmp_path: Path, names: list[str], says: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in names:
        write(docs / name, "")
    with pytest.raises(IngestError) as refused:
        ingest([docs], word_index)
    assert says in str(refused.value)
    assert ".docx, .htm, .html, .markdown, .md, .pdf, .txt" in str(refused.value)


def test_a_path_that_does_not_exist_is_refused_before_anything_goes_in(word_index: Index, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=r"no file or folder '.*typo\.md'"):
        ingest([write(tmp_path / "a.md", "The mast."), tmp_path / "typo.md"], word_index)
    assert word_index.count() == 0


SECTIONS = [
    "# Leave\n\n" + "Annual leave is thirty days. " * 15,
    "## Sick\n\n" + "Call before nine. " * 25,
    "## Pay\n\n" + "Paid monthly. " * 30,
]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (SECTIONS, SECTIONS, (0, 3, 0)),
        (SECTIONS, SECTIONS[:2], (0, 2, 1)),
        (SECTIONS[:2], SECTIONS, (1, 2, 0)),
        (SECTIONS, [*SECTIONS[:2], SECTIONS[2].replace("monthly", "every week")], (1, 2, 1)),
        (SECTIONS, ["Moved."], (1, 0, 3)),
        (SECTIONS[:1], ["---\npublished: 2026-01-01\n---\n" + SECTIONS[0]], (1, 0, 1)),
    ],
    ids=["same", "shorter", "longer", "changed", "replaced", "dated"],
)
def test_a_second_run_brings_the_index_up_to_date(
    word_index: Index, tmp_path: Path, before: list[str], after: list[str], wanted: tuple[int, int, int]
) -> None:
    write(tmp_path / "docs" / "other.md", "The mast is nine metres high.")
    path = write(tmp_path / "docs" / "leave.md", "\n\n".join(before))
    ingest([tmp_path / "docs"], word_index)
    write(path, "\n\n".join(after))
    report = ingest([path], word_index)
    assert (report.added, report.unchanged, report.removed) == wanted
    stored = {hit.passage.text for hit in word_index.search("leave", 50)} - {"The mast is nine metres high."}
    body = "\n\n".join(after).split("---\n")[-1]
    assert len(stored) == wanted[0] + wanted[1]
    assert all(text in body for text in stored)


def test_progress_names_each_file_and_ends_at_all_of_them(word_index: Index, tmp_path: Path) -> None:
    paths = [write(tmp_path / name, "The mast.") for name in ("b.md", "a.md", "c.png")]
    seen: list[tuple[int, int, str]] = []
    ingest(paths, word_index, progress=lambda done, total, name: seen.append((done, total, name)))
    assert seen == [(0, 3, "b.md"), (1, 3, "a.md"), (2, 3, "c.png"), (3, 3, "")]


def test_a_file_that_is_gone_takes_its_passages_along_and_nothing_else(word_index: Index, tmp_path: Path) -> None:
    docs, elsewhere = tmp_path / "docs", write(tmp_path / "elsewhere" / "c.md", "The canteen opens at noon.")
    write(docs / "a.md", "The mast is nine metres high.")
    gone = write(docs / "deep" / "b.md", "The price is 12 euro.")
    for document in (
        Document(id="http://a.example/1", title="Page", text="A page of the web.", source_type="web"),
        Document(id="docs/note.md", title="Note", text="A note that no file holds."),
    ):
        word_index.upsert(document, split(document))
    ingest([docs, elsewhere], word_index, base=tmp_path)
    gone.unlink()
    elsewhere.unlink()
    report = ingest([docs], word_index, base=tmp_path)
    assert (report.documents, report.unchanged, report.removed) == (1, 1, 1)
    assert word_index.document_ids() == ["docs/a.md", "docs/note.md", "elsewhere/c.md", "http://a.example/1"]
    assert "The price is 12 euro." not in {hit.passage.text for hit in word_index.search("price", 9)}


def test_a_folder_that_was_emptied_empties_its_part_of_the_index(word_index: Index, tmp_path: Path) -> None:
    path = write(tmp_path / "docs" / "a.md", "The mast.")
    ingest([tmp_path / "docs"], word_index, base=tmp_path)
    path.unlink()
    assert ingest([tmp_path / "docs"], word_index, base=tmp_path) == IngestReport(0, 0, 0, 1, [])
    assert word_index.count() == 0
    with pytest.raises(IngestError, match="hold no files"):
        ingest([tmp_path / "docs"], word_index, base=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "kept"),
    [
        ("a.txt", b"", False),
        ("a.txt", b" \n", False),
        ("a.md", b"---\ntitle: T\n---\n", False),
        ("a.txt", b"\xff\xfe broken", True),
        ("a.docx", b"", True),
    ],
)
def test_a_file_that_says_nothing_loses_its_passages_and_one_that_cannot_be_read_keeps_them(
    word_index: Index, tmp_path: Path, name: str, content: bytes, kept: bool
) -> None:
    docs = tmp_path / "docs"
    write(docs / "other.md", "The price is 12 euro.")
    path = write_docx(docs / name) if name.endswith("docx") else write(docs / name, "The mast is nine metres high.")
    ingest([docs], word_index, base=docs)
    before = word_index.count()
    path.write_bytes(content)
    report = ingest([docs], word_index, base=docs)
    assert [skipped.path for skipped in report.skipped] == [path]
    assert (word_index.count(), report.removed) == ((before, 0) if kept else (before - 1, 1))
    assert word_index.document_ids() == ([name, "other.md"] if kept else ["other.md"])


def test_a_folder_that_was_moved_is_followed(word_index: Index, tmp_path: Path) -> None:
    write(tmp_path / "one" / "docs" / "a.md", "The mast.")
    write(tmp_path / "one" / "docs" / "b.md", "The price.")
    ingest([tmp_path / "one" / "docs"], word_index, base=tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert ingest([tmp_path / "two" / "docs"], word_index, base=tmp_path / "two").unchanged == 2
    (tmp_path / "two" / "docs" / "b.md").unlink()
    assert ingest([tmp_path / "two" / "docs"], word_index, base=tmp_path / "two").removed == 1
    assert word_index.document_ids() == ["docs/a.md"]


def test_what_did_not_change_is_not_embedded_again(tmp_path: Path) -> None:
    class Counting(WordEmbedder):
        embedded = 0

        def passages(self, texts: Sequence[str]) -> list[list[float]]:
            self.embedded += len(texts)
            return super().passages(texts)

    embedder = Counting()
    path = write(tmp_path / "docs" / "leave.md", "\n\n".join(SECTIONS))
    write(tmp_path / "docs" / "mast.md", "The mast.")
    ingest([tmp_path / "docs"], Index(open_client(tmp_path / "chroma"), "crag", embedder, create=True))
    write(path, "\n\n".join([*SECTIONS[:2], "## Pay\n\nPaid in advance."]))
    index = Index(open_client(tmp_path / "chroma"), "crag", embedder)
    ingest([tmp_path / "docs"], index)
    assert embedder.embedded == 3 + 1 + 1
    ingest([tmp_path / "docs"], index)
    assert embedder.embedded == 5


def test_only_one_ingestion_runs_at_a_time(word_index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.md", "The mast.")
    monkeypatch.setattr("crag_dspy.ingest.WAIT_SECONDS", 0.1)
    with FileLock(tmp_path / "chroma" / LOCK), pytest.raises(IngestError, match="Another crag ingest, or the webhook, is writing"):
        ingest([path], word_index)
    assert ingest([path], word_index).added == 1


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["crag_dspy.ingest", "conftest"])


def _die_at(place: str, call: int) -> None:
    """Have this process killed at the nth call of something that an ingestion passes through."""
    owner: Any = {"passages": WordEmbedder, "upsert": Collection, "modify": Collection, "delete": Collection, "unlink": Path}[place]
    whole, calls = getattr(owner, place), itertools.count(1)

    def dies(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **kwargs)

    setattr(owner, place, dies)


def _ingest(chroma: Path, docs: Path, place: str, call: int) -> None:
    index = Index(open_client(chroma), "crag", WordEmbedder(), create=True)
    _die_at(place, call)
    ingest([docs], index, base=docs)


def test_killed_at_any_point_and_run_again_it_ends_with_the_index_of_an_undisturbed_run(tmp_path: Path) -> None:
    docs, killed, clean = tmp_path / "docs", tmp_path / "killed", tmp_path / "clean"
    for i in range(9):
        write(docs / f"{i}.md", "\n\n".join(f"## Part {j}\n\n" + f"Machine {i}{j} has {j} wheels. " * 30 for j in range(20)))
    write(docs / "old.md", "It was here before.")
    ingest([docs], Index(open_client(killed), "crag", WordEmbedder(), create=True), base=docs)
    (docs / "old.md").unlink()
    for i in range(9):
        path = docs / f"{i}.md"
        write(path, path.read_text().replace("wheels", "gears"))
    for place, call in [("passages", 1), ("upsert", 1), ("modify", 2), ("unlink", 2), ("delete", 1), ("passages", 2), ("delete", 2)]:
        child = processes.Process(target=_ingest, args=(killed, docs, place, call))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, (place, call)
    ingest([docs], Index(open_client(killed), "crag", WordEmbedder()), base=docs)
    ingest([docs], Index(open_client(clean), "crag", WordEmbedder(), create=True), base=docs)
    differ = differences(contents(clean, WordEmbedder()), contents(killed, WordEmbedder()))
    assert differ == dict.fromkeys(["ids", "texts", "metadata", "vectors", "searches"], 0)
