"""A passkey device in the test process: what it answers is signed as a browser's would be (WebAuthn level 2, ES256)."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fido2 import cbor
from fido2.cose import ES256
from fido2.utils import websafe_encode

PRESENT, VERIFIED, WITH_KEY = 0x01, 0x04, 0x40


@dataclass
class Device:
    """One device with one key. ``count`` is its signature counter; phones keep it at zero."""

    host: str = "localhost"
    origin: str = "http://localhost"
    count: int = 0
    name: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def make(self, options: dict[str, Any]) -> dict[str, Any]:
        """As ``navigator.credentials.create`` answers."""
        public = cbor.encode(ES256.from_cryptography_key(self.key.public_key()))
        attested = bytes(16) + len(self.name).to_bytes(2, "big") + self.name + public
        data = self._data(WITH_KEY) + attested
        attestation = cbor.encode({"fmt": "none", "attStmt": {}, "authData": data})
        return self._answer(
            {
                "clientDataJSON": websafe_encode(self._client("webauthn.create", options)),
                "attestationObject": websafe_encode(attestation),
            }
        )

    def use(self, options: dict[str, Any]) -> dict[str, Any]:
        """As ``navigator.credentials.get`` answers."""
        data, client = self._data(0), self._client("webauthn.get", options)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        return self._answer(
            {
                "clientDataJSON": websafe_encode(client),
                "authenticatorData": websafe_encode(data),
                "signature": websafe_encode(signature),
            }
        )

    def _data(self, more: int) -> bytes:
        host = hashlib.sha256(self.host.encode()).digest()
        return host + bytes([PRESENT | VERIFIED | more]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, options: dict[str, Any]) -> bytes:
        return json.dumps({"type": kind, "challenge": options["challenge"], "origin": self.origin}).encode()

    def _answer(self, response: dict[str, str]) -> dict[str, Any]:
        name = websafe_encode(self.name)
        return {"id": name, "rawId": name, "type": "public-key", "clientExtensionResults": {}, "response": response}
