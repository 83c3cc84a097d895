"""Settings: read from CRAG_ variables; a misspelt name or an impossible value is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from crag_dspy.errors import SettingsError
from crag_dspy.settings import Settings, load_settings


def test_without_variables_the_defaults_hold() -> None:
    assert load_settings() == Settings.model_construct()
    assert (load_settings().lm, load_settings().web, load_settings().home) == ("local", None, Path(".crag"))


@pytest.mark.parametrize(
    ("name", "value", "field", "wanted"),
    [
        ("CRAG_HOME", "/srv/crag", "home", Path("/srv/crag")),
        ("CRAG_LM", "openai/gpt-4o-mini", "lm", "openai/gpt-4o-mini"),
        ("CRAG_WEB", "none", "web", "none"),
        ("CRAG_TOP_K", "12", "top_k", 12),
        ("crag_max_seconds", "2.5", "max_seconds", 2.5),
        ("CRAG_SANDBOX", "pages", "sandbox", Path("pages")),
    ],
)
def test_a_variable_is_read_and_an_argument_wins(monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, wanted: Any) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load_settings(), field) == wanted
    argument = Settings.model_fields[field].default
    assert getattr(load_settings(**{field: argument}), field) == argument


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CRAG_TOPK", "CRAG_TOP_K"),
        ("CRAG_MAX_EVIDENCES", "CRAG_MAX_EVIDENCE"),
        ("CRAG_COLECTION", "CRAG_COLLECTION"),
        ("CRAG_LM_MAXTOKENS", "CRAG_LM_MAX_TOKENS"),
        ("crag_webb", "CRAG_WEB"),
        ("CRAG_CROMA", "CRAG_CHROMA"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_name_that_was_meant(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    monkeypatch.setenv(name, "5")
    with pytest.raises(SettingsError, match=rf"'{name}': did you mean {meant}\?"):
        load_settings()


def test_a_variable_like_no_other_is_refused_with_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAG_XYZZY_PLUGH_QUUX_FROBNICATE", "5")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert all(f"CRAG_{name.upper()}" in str(refused.value) for name in Settings.model_fields)


def test_variables_of_others_are_none_of_our_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAGGY_TOPK", "5")
    monkeypatch.setenv("TOP_K", "5")
    assert load_settings().top_k == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CRAG_TOP_K", "many"),
        ("CRAG_TOP_K", "0"),
        ("CRAG_TOP_K", "51"),
        ("CRAG_TOP_K", ""),
        ("CRAG_MAX_SECONDS", "nan"),
        ("CRAG_MAX_SECONDS", "-1"),
        ("CRAG_WORKERS", "1.5"),
        ("CRAG_WEB", "google"),
        ("CRAG_WEB", "Tavily"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=rf"{name}='{value}' does not fit: "):
        load_settings()


def test_an_argument_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match="CRAG_TOPK"):
        load_settings(topk=5)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_settings().top_k = 3  # type: ignore[misc]


def test_every_setting_says_what_it_is_and_none_holds_a_key() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description
        assert not {"key", "token", "secret", "password"} & set(name.split("_"))
