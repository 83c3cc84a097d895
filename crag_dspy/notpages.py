"""Pages that stand where an article was expected: challenges, consent walls, logins, errors."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

from lxml import etree

from crag_dspy.markup import BLOCK, HEADINGS, drop

Refusal = Literal["page_challenge", "page_login", "page_consent", "page_error", "page_empty"]

MAX_TEXT = 1_500
"""Characters. A page with more text outside links and headings is an article, whatever it mentions."""
MAX_REST = 250
"""Characters that a notice may hold beside the sentences by which it is known."""
MAX_TEASER = 600
"""As MAX_REST, where the page itself says that the article is for subscribers."""


def _any(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.I)


_ERROR_NAME = _any(
    r"(?:http |error |erreur |fehler |errore )?(?:4\d\d|5\d\d)",
    r"(?:the |this |that )?(?:requested )?(?:page|article|document|file|content|url|link|resource) (?:you (?:are"
    r"|were) looking for |you requested )?"
    r"(?:(?:was|is|could|can|has)? ?(?:not|n['’]t|['’]t)(?: be| been)?|do(?:es)?(?: not|n['’]t)|no longer|has been|is) "
    r"(?:found|exists?|available|unavailable|deleted|removed|displayed)(?: any ?more)?",
    r"(?:nothing |not )found|access (?:to this page )?(?:has been |was )?denied|forbidden|bad gateway|bad request",
    r"unauthorized|gone|unavailable",
    r"internal server error|service (?:temporarily )?unavailable|gateway time-?out|too many requests|rate limit(?:ed)?(?: exceeded)?",
    r"unavailable (?:due to|for) legal reasons|(?:this )?(?:account|site|website) (?:has been |is )?suspended",
    r"domain (?:for sale|parked|expired)",
    r"(?:site )?(?:under|down for|undergoing) maintenance|we['’]ll be (?:right )?back(?: soon)?|something went wrong",
    r"an? (?:unexpected )?error (?:has )?occurr?ed|page (?:introuvable|non trouvée)|accès refusé|(?:die )?seite (?:wurde )?nicht gefunden",
    r"zugriff verweigert|p[áa]gina no encontrada|pagina non trovata|pagina niet gevonden|página não encontrada|strona nie istnieje",
    r"sidan hittades inte|siden (?:ble |blev )?ikke funnet|страница не найдена|доступ запрещ[её]н|ページが見つかりません(?:でした)?",
    r"页面不存在|页面未找到|找不到页面|페이지를 찾을 수 없습니다|الصفحة غير موجودة",
)
_EXCUSE = re.compile(r"^(?:oops|sorry|uh[ -]?oh|whoops|error|http)?[\s!,.:…–—-]+", re.I)
_ERROR = _any(
    r"nothing was found|(?:page|article).{0,40}(?:does not exist|no longer (?:exists|available)|(?:been|was) (?:moved|removed|deleted))",
    r"too many requests|don['’]t have permission to access|n['’]existe (?:pas|plus)|existiert nicht|no existe|non esiste|не существует",
    r"from a country to which|reference #|try again (?:later|in a few)",
)
_CHALLENGE_NAME = _any(
    r"(?:just a|one) moment(?:,? please)?|attention required|robot check|security (?:check|verification)|human verification|captcha",
    r"are you (?:a )?(?:robot|human)|verify(?:ing)? (?:that )?you(?:['’]re| are) (?:a )?human|checking your browser.*|ddos[- ]guard",
    r"pardon our interruption|please verify.*|einen moment,? bitte|sicherheits(?:über)?prüfung|un instant",
    r"vérification de sécurité|un momento",
    r"подождите.*|请稍候|安全验证|しばらくお待ちください|잠시만.{0,10}",
)
_CHALLENGE = _any(
    r"verify(?:ing)? (?:that )?(?:you|that)(?:['’]re| are)?.{0,12}(?:human|robot)",
    r"(?:you['’]?re|you are) not a (?:ro)?bot|kein roboter|ein mensch",
    r"checking (?:if )?(?:your browser|the site connection)|security of your connection|enable (?:javascript|cookies)",
    r"captcha|security check",
    r"javascript(?: and cookies)? (?:is|are|must|to|aktiv|deaktiv|ist)|(?:requires?|needs?|without|turn on|activate) javascript",
    r"unusual (?:traffic|activity)|automated (?:requests|access)|suspicious activity|browser is accepting cookies",
    r"enter the characters|ray id",
    r"supported browser|press (?:&|and) hold|takes? a few seconds|aktivieren sie (?:bitte )?javascript",
    r"activer javascript|activez javascript",
    r"(?:pas|plus) un robot|(?:active|habilite|activa) javascript|no (?:eres|soy|es) un robot|abilita(?:re)? javascript|не робот",
    r"включите javascript|启用 ?javascript|不是机器人|javascriptを有効|ロボットではありません|자바스크립트",
)
_WIDGET = _any(r"re-?captcha|h-captcha|cf-turnstile|cf-chl|challenge-platform|validatecaptcha|datadome|px-captcha")
_CONSENT = _any(
    r"cookies?\b|\bconsent|personal(?:i[sz]ed)? (?:data|content|ads?)|privacy|(?:our|\d+) partners|accept all|reject all|more options",
    r"legitimate interest|einwillig|datenschutz|zustimm|akzeptier|consentement|vie privée|accepter|privacidad|aceptar",
    r"consentimiento|consenso",
    r"同意|クッキー|согла",
)
_BANNER = _any(r"cookie|consent|gdpr|\bcmp\b|\bcc[-_]|privacy[-_ ]?(?:banner|notice|popup|layer)|didomi|onetrust")
_CHOICE = _any(
    r"^(?:i )?(?:accept|agree|reject|allow|decline|consent|got it|ok$|akzeptier|zustimm|einverstanden|ablehn"
    r"|tout accepter|refuser|aceptar)",
    r"^(?:rechazar|accett|rifiut|godta|akceptuj|alle akzeptieren|принять|同意|接受)",
)
_LOGIN = _any(
    r"(?:subscribe|sign (?:in|up)|log ?in|register|create (?:a free |an )?account)(?: now| or \w+)? to (?:continue|keep"
    r"|read|view|see|access|unlock)",
    r"subscribers? only|for (?:paid |paying )?(?:subscribers|members)\b|already a (?:paid )?(?:subscriber|member)|session (?:has )?expired",
    r"(?:must|need to|have to|please) (?:be )?(?:signed|logged|sign|log) ?in|(?:continue|keep) reading (?:with|by)",
    r"remaining (?:free )?articles",
    r"nur für abonnenten|weiterlesen mit|jetzt abonnieren|bitte (?:melden sie sich|einloggen|anmelden)|réservé aux abonnés|connectez-vous",
    r"solo (?:para )?suscriptores|inicia sesión|riservato agli abbonati|только для подписчиков|войдите|登录后|会員限定|ログインして",
)
_TO_TAKE_PART = _any(r"to (?:reply|comment|post|vote|answer|rate|participate|leave a)")
_NOT_YET = _any(r"loading|please wait|wird geladen|chargement|cargando|caricamento|загрузка|読み込み中|加载中")


class _Sentence(NamedTuple):
    text: str
    prose: bool
    """False in headings, links, buttons, menus and footers."""


def refusal(tree: Any, text: str = "", paid: bool = False) -> Refusal | None:
    """Return what a page is if it is no article, else None.

    A page is a notice where its title, a heading or a sentence says so *and* hardly any other text is left.

    Args:
        tree: The page as an lxml tree, without what is hidden.
        text: An article that the page carries beside its elements (JSON-LD).
        paid: Whether the page says that only subscribers may read it.
    """
    sentences = list(_sentences(tree))
    prose = [sentence.text for sentence in sentences if sentence.prose]
    if sum(map(len, prose)) + len(text) > MAX_TEXT:
        return None
    names = _names(tree)

    def said(matter: re.Pattern[str]) -> int:
        return sum(len(sentence.text) for sentence in sentences if matter.search(sentence.text) and not _TO_TAKE_PART.search(sentence.text))

    def rest(matter: re.Pattern[str]) -> int:
        return sum(len(sentence) for sentence in prose if not matter.search(sentence)) + len(text)

    def only(matter: re.Pattern[str]) -> bool:
        return said(matter) > 0 and rest(matter) <= min(MAX_REST, 2 * said(matter))

    password = any(element.get("type", "").lower() == "password" for element in tree.iter("input"))
    if not password and (only(_CHALLENGE) or (_named(_CHALLENGE_NAME, names) and rest(_CHALLENGE) <= MAX_REST)):
        return "page_challenge"
    if not password and rest(_CHALLENGE) <= MAX_REST // 3 and _has_widget(tree):
        return "page_challenge"
    if _named(_ERROR_NAME, names) and rest(_ERROR) <= MAX_REST:
        return "page_error"
    if said(_CONSENT) > MAX_REST // 2 and only(_CONSENT) and _offers_choice(tree):
        return "page_consent"
    if only(_LOGIN) or (password and rest(_LOGIN) <= MAX_REST) or (paid and rest(_LOGIN) <= MAX_TEASER):
        return "page_login"
    return None if text or any(not _named(_NOT_YET, [sentence]) for sentence in prose) else "page_empty"


def drop_consent(tree: Any) -> None:
    """Remove consent banners, unless they are all there is on the page."""
    banners = [
        element for element in tree.iter("*") if element.tag not in ("html", "head", "body", "main", "article") and _is_banner(element)
    ]
    if banners and sum(len(sentence.text) for sentence in _sentences(tree, set(banners)) if sentence.prose) >= MAX_REST // 4:
        for banner in banners:
            drop(banner)


def _has_widget(tree: Any) -> bool:
    return any(_WIDGET.search(value) for element in islice(tree.iter("*"), 3_000) for value in element.attrib.values())


def _is_banner(element: Any) -> bool:
    named = _BANNER.search(f"{element.get('id', '')} {element.get('class', '')} {element.get('aria-label', '')}")
    dialog = element.get("role") in ("dialog", "alertdialog") or element.get("aria-modal") == "true" or element.tag == "dialog"
    if not (named or dialog) or next(element.iter("article", "main", "h1"), None) is not None:
        return False
    text = " ".join(element.itertext())
    return len(text) < 20_000 and bool(_CONSENT.search(text)) and _offers_choice(element)


def _offers_choice(element: Any) -> bool:
    buttons = element.iter("button", "a", "input")
    choices = (button.get("value") or "" if button.tag == "input" else " ".join(button.itertext()) for button in buttons)
    return any(len(choice) < 40 and _CHOICE.search(choice.strip()) for choice in choices)


def _names(tree: Any) -> list[str]:
    """Return what the page calls itself: its title, the title's first and last part, and its first headings."""
    title, *_ = *("".join(element.itertext())[:300] for element in islice(tree.iter("title"), 1)), ""
    headings = ["".join(element.itertext())[:300] for element in islice(tree.iter("h1", "h2"), 3)]
    parts = re.split(r"\s+[|·–—-]\s+", title)
    return [" ".join(name.split()) for name in (title, parts[0], parts[-1], *headings)]


def _named(pattern: re.Pattern[str], names: Iterable[str]) -> bool:
    """Whether a name is what the pattern says and nothing else, perhaps after a number or an excuse ("404: Page not found")."""
    for name in names:
        name = name.strip(" \n\t#*.!?…")
        shorter = _EXCUSE.sub("", re.sub(r"(?i)^(?:http )?(?:error )?[45]\d\d\b", "", name))
        if pattern.fullmatch(name) or (shorter and pattern.fullmatch(shorter)):
            return True
    return False


_ASIDE = HEADINGS - {"h5", "h6"} | {"nav", "footer", "a", "button", "label", "option", "select"}
_NO_TEXT = frozenset({"script", "style", "template", "noscript", "title"})


def _sentences(tree: Any, without: Container[Any] = ()) -> Iterator[_Sentence]:
    """Yield a page's sentences; those in the elements `without` count as no prose."""
    run: list[str] = []
    aside = 0
    for event, node in etree.iterwalk(tree, events=("start", "end")):
        beside = node.tag in _ASIDE or node in without
        if node.tag in BLOCK or beside:
            for sentence in re.split(r"(?<=[.!?…])\s+|(?<=[。!?])", " ".join("".join(run).split())):
                if sentence:
                    yield _Sentence(sentence, not aside)
            run.clear()
            aside += beside * (1 if event == "start" else -1)
        if event == "end":
            run.append(node.tail or "")
        elif node.tag not in _NO_TEXT:
            run.append(node.text or "")
    yield from (_Sentence(" ".join("".join(run).split()), True) for _ in filter(None, ["".join(run).strip()]))
