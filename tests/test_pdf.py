"""PDF into text, title and dates; what is no PDF, locked or endless is told."""

from __future__ import annotations

import io
import time
import zlib
from datetime import date
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from crag_dspy import pdf as module
from crag_dspy.errors import SourceFailure
from crag_dspy.pdf import extract_pdf
from crag_dspy.types import Document

TODAY = date(2026, 3, 2)
URL = "https://harbour.example/fees.pdf"


def make(pages: list[str | bytes], info: str = "", catalog: str = "") -> bytes:
    """Write a PDF by hand; a page is its lines, or its packed instructions."""
    objects: list[bytes] = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>".encode(),
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for page in pages:
        if isinstance(page, str):
            lines = " ".join(f"({line}) Tj T*" for line in page.split("\n"))
            stream, packed = f"BT /F1 12 Tf 72 720 Td 14 TL {lines} ET".encode(), ""
        else:
            stream, packed = page, "/Filter /FlateDecode"
        objects.append(f"<< {packed} /Length {len(stream)} >>\nstream\n".encode() + stream + b"\nendstream")
        kids.append(f"{len(objects) + 1} 0 R")
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R {font} >>".encode())
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    objects.append(f"<< {info} >>".encode())
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"trailer << /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n{len(body)}\n%%EOF"
    return body + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def read(body: bytes, url: str | None = URL, today: date | None = TODAY) -> Document:
    document = extract_pdf(body, id="fees.pdf", url=url, today=today)
    assert document is not None
    return document


def test_text_title_and_whence() -> None:
    info = "/Title (Berth fees 2026) /Author (Ida Holm)"
    document = read(
        make(["A berth costs 1,480 crowns\nfor a season of six months.\nDogs are free.", "Second page."], info, "/Lang (en-GB)")
    )
    assert document.text == "A berth costs 1,480 crowns for a season of six months.\nDogs are free.\n\nSecond page."
    assert (document.title, document.author, document.language) == ("Berth fees 2026", "Ida Holm", "en")
    assert (document.url, document.source_type) == (URL, "web")
    assert read(make(["Hello."]), url=None).source_type == "internal"


@pytest.mark.parametrize("title", ["", "Microsoft Word - fees.docx", "untitled", "fees_v3.indd", "Document1"])
def test_a_title_that_is_none_is_replaced_by_the_first_line(title: str) -> None:
    assert read(make(["Berth fees\nA berth costs 9."], f"/Title ({title})")).title == "Berth fees"


@pytest.mark.parametrize(
    ("info", "published", "modified"),
    [
        ("/CreationDate (D:20260201093000+01'00')", date(2026, 2, 1), None),
        ("/CreationDate (D:20251201) /ModDate (D:20260201)", date(2025, 12, 1), date(2026, 2, 1)),
        ("/ModDate (D:20260201)", date(2026, 2, 1), None),
        ("/CreationDate (D:20260303)", None, None),
        ("/CreationDate (D:20251201) /ModDate (D:20910101)", date(2025, 12, 1), None),
        ("/CreationDate (D:19040101)", None, None),
        ("/CreationDate (yesterday)", None, None),
        ("/CreationDate 7", None, None),
        ("", None, None),
    ],
)
def test_dates(info: str, published: date | None, modified: date | None) -> None:
    document = read(make(["Hello."], info))
    assert (document.published_at, document.modified_at) == (published, modified)


def locked(password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(make(["Secret."]))))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    "body", [b"", b"%PDF-1.4", b"<html>no</html>", make(["Hello."])[:-300], locked("pw")], ids=["empty", "head", "html", "cut", "locked"]
)
def test_a_broken_or_locked_file_is_told_or_mended(body: bytes) -> None:
    try:
        document = extract_pdf(body, id=URL, url=URL)
    except SourceFailure as exc:
        assert exc.code == "page_broken" and URL in str(exc)
    else:
        assert document is None or document.text == "Hello."


def test_a_file_that_opens_without_a_password_is_read() -> None:
    assert read(locked("")).text == "Secret."


def test_a_scan_has_no_text() -> None:
    assert extract_pdf(make([""]), id=URL, url=URL) is None


def test_of_a_stranger_s_file_the_beginning_is_read_and_of_one_s_own_all() -> None:
    body = make([f"Page {n} of many." for n in range(module.MAX_PAGES + 20)])
    assert "Page 210 of" not in read(body).text
    assert "Page 210 of" in read(body, url=None).text


def test_a_page_that_unpacks_to_a_mountain_is_skipped() -> None:
    mountain = zlib.compress(b"BT /F1 12 Tf (x) Tj ET " * 500_000)
    start = time.process_time()
    assert read(make(["Before it.", mountain, "After it."])).text == "Before it.\n\nAfter it."
    assert time.process_time() - start < 3


def test_the_time_for_one_file_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.2)
    page = zlib.compress(b"BT /F1 12 Tf (x) Tj ET " * 60_000)
    start = time.process_time()
    extract_pdf(make(["Before it.", *[page] * 50]), id=URL, url=URL)
    assert time.process_time() - start < 5


def test_a_file_of_one_s_own_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "fees.pdf"
    path.write_bytes(make(["Hello."]))
    assert read(path.read_bytes(), url=None).id == "fees.pdf"
