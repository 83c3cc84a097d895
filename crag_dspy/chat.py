"""DSPy's chat format, with less of it to write where the embedded LM is asked."""

from __future__ import annotations

from typing import Any

import dspy

from crag_dspy.local_lm import embedded


class Chat(dspy.ChatAdapter):  # type: ignore[misc]
    """DSPy's chat format, which begins the embedded LM's reply for it, and ends it.

    llama.cpp goes on where a last message of the assistant ends, so the marker of the one output field, and the marker after it, need not
    be written: a third of the tokens of a reply, a fifth of a call's time. The reminder of the format after the inputs stays as DSPy has
    it: without it, or with a shorter one, this LM declines more often. Other LMs, and signatures with more outputs, those of DSPy's
    optimizers, get DSPy's format as it is. A reply out of format is read by the stages, never asked for again.
    """

    def __init__(self) -> None:
        super().__init__(use_json_adapter_fallback=False)

    def __call__(
        self,
        lm: dspy.BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Ask, and read the reply."""
        stop = {"stop": ["\n[["]} if _begun(signature) else {}
        found: list[dict[str, Any]] = super().__call__(lm, {**stop, **lm_kwargs}, signature, demos, inputs)
        return found

    def format(self, signature: type[dspy.Signature], demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of a call."""
        messages: list[dict[str, Any]] = super().format(signature, demos, inputs)
        if name := _begun(signature):
            messages.append({"role": "assistant", "content": _marker(name)})
        return messages

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Return the fields of a reply, which may hold the marker that it was begun with or go on after it."""
        name = _begun(signature)
        if name and not completion.lstrip().startswith(_marker(name).strip()):
            completion = _marker(name) + completion
        return dict(super().parse(signature, completion))


def _begun(signature: type[dspy.Signature]) -> str | None:
    """Return the field that a reply is begun with, where it is."""
    names = list(signature.output_fields)
    return names[0] if len(names) == 1 and embedded(dspy.settings.lm) else None


def _marker(name: str) -> str:
    return f"[[ ## {name} ## ]]\n"
