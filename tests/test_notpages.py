"""Pages that are no articles are told apart from articles that speak of such pages."""

from __future__ import annotations

from datetime import date

import pytest
from worst_pages import PROSE, page

from crag_dspy.errors import SourceFailure
from crag_dspy.extract import extract_page

URL = "https://harbour.example/gate"
LONG = "".join(f"<p>Berth {n} has a bollard, a ladder and a lamp, and its key hangs in box {n * 7} of the office.</p>" for n in range(20))


def outcome(html: str) -> str:
    try:
        extract_page(html, id=URL, url=URL, today=date(2026, 3, 2))
    except SourceFailure as exc:
        assert URL in str(exc)
        return exc.code
    return "article"


def notice(title: str, body: str) -> str:
    menu = "".join(f"<li><a href='/{n}'>Section {n} of this site</a></li>" for n in range(30))
    head, footer = f"<head><title>{title}</title></head>", "<footer>© Harbour 2026</footer>"
    return f"<html>{head}<body><nav><ul>{menu}</ul></nav><main>{body}</main>{footer}</body></html>"


@pytest.mark.parametrize(
    ("code", "title", "body"),
    [
        ("page_challenge", "Just a moment...", "<h1>harbour.example</h1><p>Checking if the site connection is secure</p>"),
        (
            "page_challenge",
            "Attention Required! | Cloudnine",
            "<h1>Sorry, you have been blocked</h1><p>Please complete the security check.</p>",
        ),
        ("page_challenge", "harbour.example", "<p>Please verify you are a human.</p><div id='px-captcha'></div>"),
        ("page_challenge", "Harbour", "<p>Please enable JavaScript to view this page.</p>"),
        ("page_challenge", "Harbour", "<p>This site requires JavaScript. Your browser has it switched off.</p>"),
        (
            "page_challenge",
            "Pardon Our Interruption",
            "<p>Something made us think you might be a bot: unusual activity.</p>",
        ),
        ("page_challenge", "Un instant", "<p>Veuillez activer JavaScript et les cookies pour continuer.</p>"),
        ("page_challenge", "请稍候", "<p>请启用 JavaScript,以确认您不是机器人。</p>"),
        ("page_error", "404 Not Found", "<h1>Not Found</h1><p>The requested URL was not found on this server.</p>"),
        ("page_error", "Harbour | Page not found", "<h1>Nothing here</h1><p>Try the search.</p>"),
        ("page_error", "Harbour", "<h1>Sorry, this page isn't available.</h1><p>The link may be broken.</p>"),
        ("page_error", "Harbour", "<h1>404</h1><h2>We looked everywhere.</h2>"),
        ("page_error", "Error 503: Service Unavailable", "<p>Guru meditation.</p>"),
        ("page_error", "Seite nicht gefunden – Hafen", "<p>Die angeforderte Seite existiert nicht.</p>"),
        ("page_error", "403 Forbidden", "<h1>403 Forbidden</h1>"),
        ("page_error", "Página no encontrada", "<p>La página que busca no existe.</p>"),
        ("page_login", "Log in", "<h1>Log in</h1><form><input name=u><input type=password name=p><button>Log in</button></form>"),
        ("page_login", "Berths", "<h1>Berths</h1><p>The list of berths is out.</p><p>Please log in to continue reading.</p>"),
        ("page_login", "Berths", "<h1>Berths</h1><p>A teaser.</p><div>This article is for subscribers only.</div>"),
        ("page_login", "Liegeplätze", "<h1>Liegeplätze</h1><p>Nur für Abonnenten</p><p>Jetzt abonnieren und weiterlesen</p>"),
        ("page_empty", "Harbour", "<div id=root></div>"),
        ("page_empty", "Harbour", "<div id=root><p>Loading...</p></div>"),
    ],
)
def test_a_notice_is_no_article(code: str, title: str, body: str) -> None:
    assert outcome(notice(title, body)) == code


CONSENT = """<div class="cmp"><h2>Your choice</h2><p>We and our 120 partners use cookies to store and access information on your device.</p>
<p>With your consent we process personal data to show personalised ads. You can change your choice in the privacy settings at any time.</p>
<button>Accept all</button><button>Reject all</button></div>"""


def test_a_consent_wall_is_no_article_and_a_consent_banner_no_part_of_one() -> None:
    assert outcome(notice("Harbour", CONSENT)) == "page_consent"
    document, _ = extract_page(page("").replace("<body>", f"<body>{CONSENT}"), id=URL, url=URL)
    assert "forty stands" in document.text
    assert "partners" not in document.text


@pytest.mark.parametrize(
    ("title", "body"),
    [
        ("404 Not Found", PROSE + LONG),
        ("Access denied: a film about a border", PROSE + LONG),
        ("Just a moment", f"<h1>Just a moment</h1>{PROSE}{LONG}<p>Enable JavaScript to see the captcha.</p>"),
        (
            "How to enable JavaScript",
            "<h1>How to enable JavaScript</h1><ol><li>Open the menu at the top right of the window and choose Settings.</li>"
            "<li>Choose Privacy and Security, then Site settings, then Content.</li>"
            "<li>Move the switch beside JavaScript to the right.</li>"
            "<li>Close the tab and reload the page that you came from; it should now be shown in full.</li></ol>",
        ),
        ("Cookies", f"<h1>Oat cookies</h1>{PROSE}<p>Our cookies keep for two weeks. Accept all compliments.</p>"),
        ("Berths", f"<h1>Berths</h1>{PROSE}<p>You must log in to reply.</p>"),
        ("Berths", f"<h1>Berths</h1>{PROSE}{LONG}<form><input type=password></form><p>Subscribe to continue reading our letters.</p>"),
        ("Gate", f"<h1>Gate</h1>{PROSE}<form class='g-recaptcha'><textarea></textarea><button>Comment</button></form>"),
        ("Route 404", f"<h1>Route 404</h1>{PROSE}"),
        ("A short one", "<p>The gate opens at seven.</p>"),
        ("Loading times", "<h1>Loading times</h1><p>Loading a lorry takes forty minutes.</p>"),
    ],
)
def test_an_article_that_speaks_of_notices_is_one(title: str, body: str) -> None:
    assert outcome(notice(title, body)) == "article"


def test_an_article_that_is_drawn_by_scripts_but_carried_along_is_read() -> None:
    text = "The gate opens at seven. " * 30
    html = (
        f'<html><head><script type="application/ld+json">{{"@type": "Article", "articleBody": "{text}"}}</script></head>'
        "<body><div id=root></div><p>Please enable JavaScript.</p></body></html>"
    )
    assert outcome(html) == "article"
    assert outcome(html.replace("articleBody", "other")) == "page_challenge"
