"""Allow and deny lists, and what an address is known by."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from crag_dspy.domains import Domains, canonical_url, host_of, registrable, shown_url
from crag_dspy.errors import SettingsError


@pytest.mark.parametrize(
    ("host", "permitted"),
    [
        ("gov.uk", True),
        ("www.gov.uk", True),
        ("a.b.service.gov.uk", True),
        ("GOV.UK.", True),
        ("www.GOV.uk", True),
        ("gov。uk", True),
        ("evilgov.uk", False),
        ("gov.uk.evil.com", False),
        ("gov.uk.", True),
        ("gov.ukraine.test", False),
        ("uk", False),
        ("gov", False),
        ("", False),
        ("gov.uk@evil.com", False),
        ("gov.uk:80@evil.com", False),
        ("evil.com/gov.uk", False),
        ("evil.com#.gov.uk", False),
        ("evil.com\\.gov.uk", False),
        ("evil.com%2f.gov.uk", False),
        ("gоv.uk", False),  # a Cyrillic o
        ("127.0.0.1", False),
        ("::1", False),
    ],
)
def test_an_allowed_domain_stands_for_itself_and_its_subdomains(host: str, permitted: bool) -> None:
    assert Domains(allow=("gov.uk",)).permits(host) is permitted


@pytest.mark.parametrize(
    ("url", "permitted"),
    [
        ("https://www.gov.uk/browse", True),
        ("https://GOV.UK./", True),
        ("https://gov.uk:443/", True),
        ("https://gov.uk@evil.com/", False),
        ("https://gov.uk:pw@evil.com/", False),
        ("https://evil.com/https://gov.uk/", False),
        ("https://evil.com?gov.uk", False),
        ("https://evil.com#@gov.uk/", False),
        ("https://gov.uk\\@evil.com/", False),
        ("https://gov.uk.evil.com/", False),
        ("https://evilgov.uk/", False),
        ("https://[::1]/gov.uk", False),
        ("https://[gov.uk/", False),
        ("gov.uk", False),
        ("", False),
    ],
)
def test_the_host_that_would_be_connected_to_is_what_counts(url: str, permitted: bool) -> None:
    assert Domains(allow=("gov.uk",)).permits_url(url) is permitted


@pytest.mark.parametrize(
    "entry", ["gov.uk", " GOV.UK. ", "*.gov.uk", ".gov.uk", "https://www.gov.uk/x".replace("www.", ""), "gov.uk/path", "gov。uk"]
)
def test_entries_are_read_tolerantly(entry: str) -> None:
    assert Domains(allow=[entry]).allow == ("gov.uk",)  # type: ignore[arg-type]


def test_international_names_are_one_name() -> None:
    assert Domains(deny=("münchen.de",)).permits("xn--mnchen-3ya.de") is False
    assert Domains(deny=("xn--mnchen-3ya.de",)).permits("rathaus.MÜNCHEN.de") is False


@pytest.mark.parametrize("entry", ["", " ", ".", "*", "a b", "gov uk", "http://", "ex%61mple.com"])
def test_what_is_no_domain_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError):
        Domains(deny=(entry,))


def test_a_denied_site_stays_denied_whatever_is_allowed() -> None:
    lists = Domains(allow=("gov.uk", "x.org"), deny=("tax.gov.uk",))
    assert [lists.permits(host) for host in ("www.gov.uk", "tax.gov.uk", "a.tax.gov.uk", "x.org", "y.org")] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_without_lists_every_site_is_permitted() -> None:
    assert all(Domains().permits(host) for host in ("evil.com", "127.0.0.1", "no host"))
    assert not Domains(deny=("evil.com",)).permits("no host"), "what cannot be compared with a list does not pass one"


def test_an_address_is_only_itself() -> None:
    assert not Domains(allow=("0.0.1",)).permits("127.0.0.1")
    assert Domains(allow=("93.184.216.34",)).permits("93.184.216.34")


def test_lists_come_as_text_separated_by_commas() -> None:
    assert Domains.parse(" gov.uk, ,w3.org ,", "") == Domains(allow=("gov.uk", "w3.org"))
    with pytest.raises(SettingsError, match="gov uk"):
        Domains.parse("gov uk")
    with pytest.raises(ValidationError):
        Domains(allow="gov.uk")  # type: ignore[arg-type]


def test_a_value_can_be_a_key_and_does_not_change() -> None:
    assert {Domains(allow=("a.org",)): 1}[Domains(allow=("A.org.",))] == 1
    with pytest.raises(ValidationError):
        Domains().allow = ("a.org",)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("www.bbc.co.uk", "bbc.co.uk"),
        ("a.b.example.com", "example.com"),
        ("example.com", "example.com"),
        ("www.service.gov.uk", "service.gov.uk"),
        ("evilgov.uk", "evilgov.uk"),
        ("blog.tidewarden.example", "tidewarden.example"),
        ("93.184.216.34", "93.184.216.34"),
        ("::1", "::1"),
        ("localhost", "localhost"),
        ("", ""),
    ],
)
def test_the_registrable_domain_is_what_its_owner_registered(host: str, owner: str) -> None:
    assert registrable(host) == owner


def test_messages_carry_no_secrets_of_an_address() -> None:
    assert shown_url("https://reader:secret@Pages.example/a/b?token=SENTINEL#key=SENTINEL") == "https://pages.example/a/b"
    assert shown_url("http://[::1") == "an address without a host"
    assert len(shown_url("http://a.example/" + "x" * 900)) <= 200
    assert host_of("nonsense") == ""


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTPS://Harbour.Example./gate/", "https://harbour.example/gate"),
        ("https://harbour.example", "https://harbour.example/"),
        ("https://harbour.example:443/gate#times", "https://harbour.example/gate"),
        ("http://harbour.example:80/gate", "http://harbour.example/gate"),
        ("http://harbour.example:8080/gate", "http://harbour.example:8080/gate"),
        ("https://harbour.example/gate?utm_source=x&day=1&fbclid=y&gclid=z&", "https://harbour.example/gate?day=1"),
        ("https://harbour.example/Gate?Day=1", "https://harbour.example/Gate?Day=1"),
        ("http://reader@harbour.example/gate", "http://reader@harbour.example/gate"),
        ("http://[2606:4700::1111]:8080/gate", "http://[2606:4700::1111]:8080/gate"),
    ],
)
def test_canonical_addresses(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical
