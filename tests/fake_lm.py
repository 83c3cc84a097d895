"""An OpenAI-compatible LM on loopback that answers by rules, records what it was asked, and can be told to misbehave."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import dspy

_FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\n\nRespond with|\Z)", re.S)
_WORD = re.compile(r"[a-z0-9]+")
_STOP = {"what", "when", "which", "who", "how", "does", "the", "and", "for", "are", "was", "can", "much", "many", "its", "with", "from"}


class Call(NamedTuple):
    """One request: which field was asked for, the input fields, the whole prompt and the headers by lower-case name."""

    field: str
    inputs: dict[str, str]
    prompt: str
    headers: dict[str, str]


class FakeLM:
    """Replies by `rules` (field → function of the inputs); the defaults read the evidence by word overlap."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/v1"
        self.calls: list[Call] = []
        self.rules: dict[str, Callable[[dict[str, str]], str]] = {
            "level": lambda i: "3" if _overlap(i["question"], i["passage"]) >= 0.6 else "1",
            "query": lambda i: " ".join(_words(i["question"])),
            "numbers": lambda i: ", ".join(_best_lines(i["question"], i["strips"])),
            "answer": _answer,
        }
        self.raw: Callable[[str, str], str] | None = None
        """Turns (field, reply) into the raw text sent, in place of the format asked for."""
        self.status = 200

    def lm(self, **kwargs: Any) -> dspy.LM:
        """Return a client of this LM."""
        defaults = {"api_key": "not-a-real-key", "temperature": 0.0, "max_tokens": 300, "num_retries": 0, "cache": False}
        return dspy.LM("openai/fake", api_base=self.address, **(defaults | kwargs))

    def asked(self, field: str) -> list[Call]:
        """Return the calls that asked for a field."""
        return [call for call in self.calls if call.field == field]


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if len(word) > 2 and word not in _STOP]


def _overlap(question: str, text: str) -> float:
    wanted = set(_words(question))
    return len(wanted & set(_words(text))) / len(wanted) if wanted else 0.0


def _best_lines(question: str, lines: str) -> list[str]:
    ranked = sorted(lines.splitlines(), key=lambda line: -_overlap(question, line))
    return [line.split(".")[0] for line in ranked[:2]]


def _answer(inputs: dict[str, str]) -> str:
    pieces = []
    for line in inputs["evidence"].splitlines():
        if match := re.match(r"\[(\d+)\] \([^)]*\) [^:]*: ?(.*)", line):
            pieces += [(match.group(1), sentence) for sentence in re.split(r"(?<=[.!?])\s+", match.group(2)) if sentence]
    if not pieces:
        return "NOT IN EVIDENCE"
    number, sentence = max(pieces, key=lambda piece: _overlap(inputs["question"], piece[1]))
    return f"{sentence.rstrip('.')} [{number}]."


@contextmanager
def fake_lm_server() -> Iterator[FakeLM]:
    """Serve a `FakeLM` on a free loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            begun = asked["messages"][-1]["role"] == "assistant"
            where = r"\A" if begun else "starting with the field `"
            wanted = re.search(where + r"\[\[ ## (\w+) ## \]\]", asked["messages"][-1]["content"])
            field = wanted.group(1) if wanted else ""
            inputs = dict(_FIELD.findall(asked["messages"][-2 if begun else -1]["content"]))
            prompt = "\n".join(message["content"] for message in asked["messages"])
            fake.calls.append(Call(field, inputs, prompt, {name.lower(): value for name, value in self.headers.items()}))
            if fake.status != 200:
                return self._send(fake.status, {"error": {"message": f"refused, key {self.headers.get('Authorization')}", "type": "fake"}})
            reply = fake.rules[field](inputs)
            marker = "" if begun else f"[[ ## {field} ## ]]\n"
            text = fake.raw(field, reply) if fake.raw else f"{marker}{reply}\n\n[[ ## completed ## ]]"
            body = {
                "id": "x", "object": "chat.completion", "created": 0, "model": "fake",
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4 + 1, "total_tokens": len(prompt) // 4},
            }  # fmt: skip
            return self._send(200, body)

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake = FakeLM(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
