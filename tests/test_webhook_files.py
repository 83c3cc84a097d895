"""What a webhook's delivery may have read again: the index's own files and pages, nothing else."""

from __future__ import annotations

import logging
import os

import pytest
from webhook_world import URL, Place, send, work_off

from crag_dspy import webhook
from crag_dspy.deliveries import Deliveries
from crag_dspy.ingest import ingest
from crag_dspy.signing import Refused

pytest_plugins = ["site_server", "webhook_world"]


# Files


@pytest.mark.parametrize("documents", [True, False], ids=["folder", "no-folder"])
@pytest.mark.parametrize(
    "path",
    ["../outside.md", "deep/../../outside.md", "deep/../leave.md", "..", "/etc/passwd", "//etc/passwd", "leave.md\0.png"],
)
def test_a_path_that_leads_out_is_refused_with_everything_beside_it(shared: Place, path: str, documents: bool) -> None:
    (shared.folder / "outside.md").write_text("A secret.")
    with pytest.raises(Refused) as refused:
        send(shared.webhook(documents), "msg_out", urls=[URL], paths=["leave.md", path])
    assert (refused.value.status, refused.value.code) == (400, "invalid_path")
    assert not Deliveries(shared.folder / "home" / "webhooks.sqlite3").holds("msg_out")


def test_a_link_that_leads_out_is_refused(place: Place) -> None:
    outside = place.folder / "outside"
    outside.mkdir()
    (outside / "outside.md").write_text("A secret.")
    (place.docs / "link.md").symlink_to(outside / "outside.md")
    (place.docs / "chain.md").symlink_to(place.docs / "link.md")
    (place.docs / "folder").symlink_to(outside)
    for path in ("link.md", "chain.md", "folder/outside.md", "folder/new.md"):
        with pytest.raises(Refused) as refused:
            send(place.webhook(), paths=[path])
        assert refused.value.status == 400, path


def test_a_file_that_becomes_a_link_after_it_was_accepted_is_not_read(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "RETRY_SECONDS", 0.01)
    (place.folder / "outside.md").write_text("A secret.")
    for documents, id in ((True, "msg_1"), (False, "msg_2")):
        to = place.webhook(documents)
        assert send(to, id, paths=["leave.md" if documents else "docs/leave.md"])[0] == 202
        (place.docs / "leave.md").unlink()
        (place.docs / "leave.md").symlink_to(place.folder / "outside.md")
        with to:
            assert place.settled()
        assert "secret" not in place.texts() and "Refused" in caplog.text
        (place.docs / "leave.md").unlink()
        place.write("leave.md", "Annual leave is thirty days.")


def test_links_inside_the_folder_and_links_in_circles_do_no_harm(place: Place) -> None:
    (place.docs / "same.md").symlink_to(place.docs / "leave.md")
    (place.docs / "circle.md").symlink_to(place.docs / "circle.md")
    place.write("leave.md", "Annual leave is forty days.")
    said = work_off(place, place.webhook(), paths=["same.md", "circle.md"])
    assert said["paths"] == ["same.md"] and said["ignored"] == ["circle.md"]
    assert "forty days" in place.texts() and "docs/leave.md" in place.index.document_ids() and len(place.index.files()) == 2


def test_what_crag_ingest_would_not_read_is_ignored(place: Place) -> None:
    for name in ("new.md", "deep/new.txt", "photo.png", ".hidden.md", ".git/config.md"):
        place.write(name, "The mast is nine metres high.")
    os.mkfifo(place.docs / "pipe.md")
    taken = ["new.md", "deep/new.txt", "leave.md", "docs/leave.md"]
    ignored = ["photo.png", ".hidden.md", ".git/config.md", "deep", ".", "missing.md", "x" * 300 + ".md", "pipe.md"]
    said = work_off(place, place.webhook(), paths=[*ignored, *taken])
    assert (said["paths"], said["ignored"]) == (taken, ignored)
    assert set(place.index.files()) == {"docs/leave.md", "docs/deep/canteen.md", "docs/new.md", "docs/deep/new.txt"}


def test_without_a_folder_only_files_that_were_ingested_are_read(place: Place) -> None:
    place.write("new.md", "The mast is nine metres high.")
    place.write("leave.md", "Annual leave is forty days.")
    said = work_off(place, place.webhook(documents=False), paths=["docs/leave.md", "docs/new.md", "leave.md"])
    assert said["paths"] == ["docs/leave.md"] and said["ignored"] == ["docs/new.md", "leave.md"]
    assert "forty days" in place.texts() and "mast" not in place.texts()


def test_a_new_file_has_the_id_that_crag_ingest_gives_it(place: Place) -> None:
    place.write("deep/new.md", "The mast is nine metres high.")
    work_off(place, place.webhook(), paths=["deep/new.md"])
    before = place.index.count()
    assert "docs/deep/new.md" in place.index.document_ids()
    assert ingest([place.docs], place.index).added == 0 and place.index.count() == before


def test_a_file_that_did_not_change_costs_no_embedding(place: Place) -> None:
    before = place.texts()
    work_off(place, place.webhook(), paths=["leave.md"])
    assert place.embedder.embedded == 0 and place.texts() == before


@pytest.mark.parametrize("documents", [True, False], ids=["folder", "no-folder"])
def test_a_file_that_is_gone_or_empty_goes_and_a_broken_one_stays(place: Place, documents: bool, caplog: pytest.LogCaptureFixture) -> None:
    place.write("broken.md", "The mast is nine metres high.")
    place.write("empty.md", "The lift stands still.")
    ingest([place.docs], place.index)
    (place.docs / "leave.md").unlink()
    (place.docs / "broken.md").write_bytes(b"\xff\xfe")
    (place.docs / "empty.md").write_bytes(b"")
    paths = ["leave.md", "broken.md", "empty.md"]
    work_off(place, place.webhook(documents), paths=paths if documents else [f"docs/{path}" for path in paths])
    assert place.index.document_ids() == ["docs/broken.md", "docs/deep/canteen.md", URL]
    assert "broken.md" in caplog.text and "not UTF-8" in caplog.text


def test_of_a_folder_that_is_gone_everything_goes(place: Place) -> None:
    (place.docs / "deep" / "canteen.md").unlink()
    (place.docs / "deep").rmdir()
    work_off(place, place.webhook(), paths=["deep"])
    assert place.index.document_ids() == ["docs/leave.md", URL]


def test_where_the_whole_folder_is_not_there_nothing_is_removed(place: Place) -> None:
    place.docs.rename(place.folder / "elsewhere")
    with pytest.raises(Refused) as refused:
        send(place.webhook(), paths=["leave.md"])
    assert refused.value.status == 503 and len(place.index.files()) == 2


# Pages


def test_only_pages_of_the_index_are_fetched(place: Place) -> None:
    place.show("The gate opens at noon.")
    known = [URL, "HTTP://Pages.Example:80/gate/?utm_source=mail#top"]
    unknown = [
        "http://pages.example/other",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "gate",
        "http://[",
        "http://x.example:99999/",
    ]
    said = work_off(place, place.webhook(), urls=[*known, *unknown])
    assert said["urls"] == known and said["ignored"] == unknown
    assert {head.split()[1] for head in place.site.heads} == {"/gate"} and "noon" in place.texts()


@pytest.mark.parametrize(("status", "stays"), [("404 Not Found", False), ("410 Gone", False), ("503 Busy", True)])
def test_a_page_that_is_gone_goes_and_one_that_cannot_be_had_stays(
    place: Place, status: str, stays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    place.show("", status)
    work_off(place, place.webhook(), urls=[URL])
    assert (URL in place.index.document_ids()) is stays and ("page_unavailable" in caplog.text) is stays
