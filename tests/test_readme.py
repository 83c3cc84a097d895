"""The README says the truth about settings, commands and files."""

from __future__ import annotations

import re
from pathlib import Path

from crag_dspy.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_settings_table_is_the_settings() -> None:
    rows = dict(re.findall(r"^\| `CRAG_(\w+)` \| (.*?) \|$", README, re.M))
    assert {name.lower() for name in rows} == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert rows[name.upper()].startswith(field.description or "?"), name


def test_the_two_commands_start_from_a_bare_clone() -> None:
    for marker, extra, runs in (("main", "'.[local]'", "python -m optimize --quick"), ("tests", "'.[local,test]'", "pytest")):
        found = re.search(rf"<!-- {marker} -->\n```sh\n(.+)\n```", README)
        assert found and "\n" not in found.group(1), marker
        assert "venv" in found.group(1) and extra in found.group(1) and runs in found.group(1)


def test_every_file_it_names_exists() -> None:
    listed = re.search(r"## Files\n\n```\n(.*?)```", README, re.S)
    assert listed
    for folder, names in re.findall(r"^(\w+/)((?: +[\w.]+)+)", listed.group(1), re.M):
        for name in names.split():
            assert (ROOT / folder / name).exists(), f"{folder}{name}"
