"""Who sent a webhook: signatures as in Standard Webhooks 1.0, the symmetric kind (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from contextlib import suppress

from crag_dspy.errors import CragError, SettingsError

TOLERANCE = 300  # seconds between the sender's clock and ours
KEY_BYTES = (24, 64)
_ID = re.compile(r"[!-\-/-~]{1,200}")  # printable, and no full stop: that ends it in what is signed
_SECONDS = re.compile(r"[0-9]{1,12}")


class Refused(CragError):
    """A delivery that is not taken; the message holds nothing of it but what its sender got wrong."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def key(secret: str) -> bytes:
    """Return the bytes that a secret stands for.

    Raises:
        SettingsError: it is not `whsec_` and base64 of 24 to 64 bytes; the message does not repeat it.
    """
    with suppress(binascii.Error, ValueError):
        found = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        if secret.startswith("whsec_") and KEY_BYTES[0] <= len(found) <= KEY_BYTES[1]:
            return found
    raise SettingsError(
        "CRAG_WEBHOOK_SECRET is not whsec_ and 24 to 64 random bytes in base64. Make one: echo whsec_$(openssl rand -base64 32)"
    )


def sign(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    """Return what stands in `webhook-signature`: `v1,` and the base64 of an HMAC-SHA256 over `id.timestamp.body`."""
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")).decode()


def verify(key: bytes, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Return the id of a delivery that was signed with the key, within five minutes of `now` (seconds since the epoch).

    Raises:
        Refused: 401.
    """
    id, timestamp, signatures = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not _ID.fullmatch(id) or not _SECONDS.fullmatch(timestamp):
        raise Refused(401, "invalid_signature", "The headers webhook-id and webhook-timestamp are missing or malformed.")
    ours = sign(key, id, timestamp, body).encode()
    # There are several while a sender changes its secret; other versions than v1 are for others. All are compared, in constant time.
    if not any([hmac.compare_digest(ours, theirs.encode("utf-8", "replace")) for theirs in signatures.split(" ")]):
        raise Refused(401, "invalid_signature", "No signature in the header webhook-signature fits the body and CRAG_WEBHOOK_SECRET.")
    if abs(now - int(timestamp)) > TOLERANCE:
        raise Refused(401, "invalid_timestamp", "The webhook-timestamp is more than five minutes away from this server's clock.")
    return id
