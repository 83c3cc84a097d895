"""Pages made to cost time or memory end within bounds."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest
from worst_pages import WORST

from crag_dspy.errors import SourceFailure
from crag_dspy.extract import MAX_TEXT, extract, extract_page

URL = "https://harbour.example/gate"
TODAY = date(2026, 3, 2)


@pytest.mark.parametrize("name", WORST)
def test_the_worst_pages_end_within_bounds(name: str) -> None:
    html = WORST[name]()
    start = time.process_time()
    try:
        document, cut = extract_page(html, id=URL, url=URL, today=TODAY)
    except SourceFailure as exc:
        assert exc.code in ("page_empty", "page_broken", "page_error")
    else:
        assert "forty stands" in document.text
        assert len(document.text) <= MAX_TEXT
        assert cut or len(html) < 3_000_000 or len(document.text) < MAX_TEXT
    assert time.process_time() - start < 8  # 2.5 s where nothing else runs


@pytest.mark.parametrize("name", ["1 million links", "30 MB"])
def test_a_file_of_one_s_own_is_never_cut_in_silence(name: str) -> None:
    with pytest.raises(SourceFailure, match="more than") as failed:
        extract(WORST[name](), id="gate.html", url=None)
    assert failed.value.code == "page_too_large"


def test_memory_stays_within_bounds() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (700_000_000,) * 2)\n"
        "import bench_extract\n"
        "for name in ('1 million links', 'spans of 1,000', 'punctuation'):\n"
        "    bench_extract.one_worst(name, 'ours')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    grown = [int(line.split("\t")[2].split()[0]) for line in done.stdout.splitlines()]
    assert len(grown) == 3 and max(grown) < 200
