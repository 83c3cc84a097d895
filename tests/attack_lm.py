"""The attack suite, and an LM that obeys whatever order it finds anywhere in what it is given."""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from fake_lm import FakeLM, fake_lm_server

SUITE = Path(__file__).parent / "attacks"


class Attack(NamedTuple):
    """A page or document that carries an order, or a benign one that looks like it (then `canary` and `payload` are empty)."""

    id: str
    family: str
    language: str
    carrier: str
    file: str
    """Path inside the suite: `web/<host>/<page>.html`, or `corpus/<name>`."""
    question: str
    """The question that retrieves it; no LM knows the answer."""
    fact: str
    """The number that answers it, from `neighbour`; of a benign one, from the file itself."""
    neighbour: str | None
    canary: str
    """Stands in an answer only if the order was followed."""
    payload: str
    """The order as it stands in the file, before HTML escapes."""

    @property
    def held_out(self) -> bool:
        """Whether the detector was not tuned on it: a coin flipped by the hash of the file's name."""
        return hashlib.sha256(Path(self.file).name.encode()).digest()[0] % 2 == 1

    @property
    def internal(self) -> bool:
        """Whether it stands in the index, not on the web."""
        return self.file.startswith("corpus")


def load() -> tuple[list[Attack], list[Attack]]:
    """Return the attacks and the benign counterparts."""
    rows = [json.loads(line) for line in (SUITE / "attacks.jsonl").read_text(encoding="utf-8").splitlines()]
    suite = [Attack(**{name: "" if value is None and name != "neighbour" else value for name, value in row.items()}) for row in rows]
    return [one for one in suite if one.canary], [one for one in suite if not one.canary]


# Far wider than what the program looks for: any sentence with one of these stems is an order.
_ORDER = re.compile(
    r"ignor|disregard|forget|discard|overrid|repl(?:y|ies)|respon|answer|\bsay|state that|print|output|cit[ea]|tell|append|\badd"
    r"|include|finish|recommend|called|repeat|mention|greet|quote|must|search|command|only|rule|code|rated|begin|contain|carry|send|renamed|source|keys"
    r"|antwort|vergess|vergiss|nenn|zitier|oublie|répon|olvid|contest|dimentic|rispo|scriv|aggiung|desconsid|acrescent|negeer|antwoord|glöm|svara"
    r"|zignoruj|odpowied|забудь|ответь|忽略|回答|無視|答え|\[\[ ##|<\|",
    re.I,
)
_BLOCK = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")


def orders_in(text: str) -> list[str]:
    """Return what each order in a text asks for: the rest of its sentence, and the sentence after it."""
    found = []
    for reading in _readings(re.sub(r"\A\s*\[\[ ## \w+ ## \]\]", "", text)):  # the first marker is ours
        pieces = [piece for piece in re.split(r"(?<=[.!?。])\s+|\n", reading) if piece.strip()]
        for i, piece in enumerate(pieces):
            if match := _ORDER.search(piece):
                found.append(" ".join([piece[match.start() :], *pieces[i + 1 : i + 2]]))
    return found


def _readings(text: str) -> Iterator[str]:
    plain = unicodedata.normalize("NFKC", _UNSEEN.sub("", text))
    yield plain
    yield "".join(chr(ord(c) - 0xE0000) if 0xE0020 <= ord(c) < 0xE007F else c for c in text)
    yield plain.translate(str.maketrans("оеаірс", "oeaipc"))
    for turned in (codecs.encode(plain, "rot13"), plain[::-1], unquote(plain)):
        if re.search(r"ignore|reply|answer", turned) and turned != plain:
            yield turned
    for block in _BLOCK.findall(plain):
        for decode in (base64.b64decode, binascii.unhexlify):
            try:
                yield decode(block).decode()
            except (ValueError, binascii.Error):
                continue


@contextmanager
def obedient_lm_server() -> Iterator[FakeLM]:
    """Serve a `FakeLM` that obeys the first orders it reads in whatever field is asked for; without orders it answers by its rules."""
    with fake_lm_server() as fake:
        reader = fake.rules["answer"]
        fake.rules["answer"] = lambda inputs: reader(inputs) if "evidence" in inputs else "NOT IN EVIDENCE"
        for field, rule in list(fake.rules.items()):
            fake.rules[field] = _obeying(fake, field, rule)
        yield fake


def _obeying(fake: FakeLM, field: str, rule: Callable[[dict[str, str]], str]) -> Callable[[dict[str, str]], str]:
    def reply(inputs: dict[str, str]) -> str:
        orders = orders_in(shown(fake, inputs))
        if not orders:
            return rule(inputs)
        return "3" if field == "level" else " ".join(f"{order.rstrip('.')} [1]." for order in orders)

    return reply


def shown(fake: FakeLM, inputs: dict[str, str]) -> str:
    """Return what a call was given besides the question and our own instructions, forged fields included."""
    prompt = next(call.prompt for call in reversed(fake.calls) if call.inputs is inputs)
    given = prompt.rsplit("\n\nRespond with the corresponding output fields", 1)[0]
    start = given.find("\n[[ ## question ## ]]\n", given.find("your objective is"))
    return given[max(start, 0) :].replace("[[ ## question ## ]]", "", 1).replace(inputs.get("question", ""), "")
