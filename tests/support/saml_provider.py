"""An identity provider that speaks SAML 2.0: reads questions, signs answers, and can be told to be wrong.

Signed with xmlsec, as real ones are; a test asks it in the process, or over HTTP.
"""

from __future__ import annotations

import base64
import html
import threading
import uuid
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import xmlsec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils as Utils

PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
ANSWER = """\
<samlp:Response xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion"
 ID="{answer}" Version="2.0" IssueInstant="{now}" Destination="{acs}"{asked}><saml:Issuer>{issuer}</saml:Issuer>\
<samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></samlp:Status>{assertion}\
</samlp:Response>"""
ASSERTION = """\
<saml:Assertion xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" ID="{assertion}" Version="2.0" IssueInstant="{now}">\
<saml:Issuer>{issuer}</saml:Issuer><saml:Subject><saml:NameID Format="{format}">{who}</saml:NameID>\
<saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer">\
<saml:SubjectConfirmationData NotOnOrAfter="{until}" Recipient="{acs}"{asked}/></saml:SubjectConfirmation>\
</saml:Subject>\
<saml:Conditions NotBefore="{since}" NotOnOrAfter="{until}"><saml:AudienceRestriction><saml:Audience>{audience}\
</saml:Audience></saml:AudienceRestriction></saml:Conditions><saml:AuthnStatement AuthnInstant="{now}">\
<saml:AuthnContext><saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:Password\
</saml:AuthnContextClassRef></saml:AuthnContext></saml:AuthnStatement><saml:AttributeStatement>{attributes}\
</saml:AttributeStatement></saml:Assertion>"""
LOG_OUT = """\
<samlp:LogoutRequest xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" ID="_1" Version="2.0" IssueInstant="{now}">\
<saml:Issuer xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion">{issuer}</saml:Issuer>\
<saml:NameID xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion">{who}</saml:NameID></samlp:LogoutRequest>"""
METADATA = """\
<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID="{issuer}"><IDPSSODescriptor
 protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol"><KeyDescriptor use="signing"><KeyInfo
 xmlns="http://www.w3.org/2000/09/xmldsig#"><X509Data><X509Certificate>{certificate}</X509Certificate></X509Data>\
</KeyInfo></KeyDescriptor><SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect"
 Location="{issuer}/sso"/></IDPSSODescriptor></EntityDescriptor>"""


def key_and_certificate() -> tuple[str, str]:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp")])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )
    kinds = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*kinds).decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


@dataclass
class SamlProvider:
    """``people``: name -> attributes. ``wrong``: what an answer differs in from a right one."""

    issuer: str = "http://idp.test"
    people: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    wrong: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key, self.certificate = key_and_certificate()

    def metadata(self) -> str:
        body = "".join(self.certificate.splitlines()[1:-1])
        return METADATA.format(issuer=self.issuer, certificate=body)

    def answer(self, address: str, who: str) -> tuple[str, dict[str, str]]:
        """What a browser is to post where, for a question in an address."""
        query = parse_qs(urlsplit(address).query)
        asked = etree.fromstring(zlib.decompress(base64.b64decode(query["SAMLRequest"][0]), -15))
        acs = asked.get("AssertionConsumerServiceURL")
        audience = asked.findtext("{urn:oasis:names:tc:SAML:2.0:assertion}Issuer")
        form = {"SAMLResponse": self.signed(acs, audience, who, asked.get("ID"))}
        return acs, form | {name: value[0] for name, value in query.items() if name == "RelayState"}

    def signed(self, acs: str, audience: str, who: str, question: str | None) -> str:
        now = self.wrong.get("now", datetime.now(UTC))
        moments = {"now": now, "since": now - timedelta(minutes=2), "until": now + timedelta(minutes=3)}
        attributes = "".join(
            f'<saml:Attribute Name="{name}">'
            + "".join(f"<saml:AttributeValue>{html.escape(value)}</saml:AttributeValue>" for value in values)
            + "</saml:Attribute>"
            for name, values in ({"username": [who]} | self.people.get(who, {})).items()
        )
        asked = f' InResponseTo="{question}"' if question else ""
        filled = {
            **{name: f"{at:%Y-%m-%dT%H:%M:%SZ}" for name, at in moments.items()},
            "issuer": self.issuer, "acs": acs, "audience": self.wrong.get("audience", audience), "who": f"id of {who}",
            "format": PERSISTENT, "asked": asked, "attributes": attributes, "answer": f"_{uuid.uuid4().hex}",
            "assertion": f"_{uuid.uuid4().hex}",
        }  # fmt: skip
        assertion = ASSERTION.format(**filled)
        if not self.wrong.get("unsigned"):
            key, certificate = self.wrong.get("key", (self.key, self.certificate))
            made = Utils.add_sign(assertion, key, certificate, sign_algorithm=Names.RSA_SHA256)
            assertion = made.decode() if isinstance(made, bytes) else made
        text = ANSWER.format(**(filled | {"assertion": assertion}))
        return base64.b64encode(self.wrong.get("change", lambda given: given)(text).encode()).decode()

    def log_out(self, who: str, following: str = "", *, signed: bool = True) -> str:
        """The query of an address that asks to end a person's session, and to send the browser on."""
        text = LOG_OUT.format(now=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", issuer=self.issuer, who=f"id of {who}")
        query = {"SAMLRequest": base64.b64encode(zlib.compress(text.encode(), wbits=-15)).decode()}
        if following:
            query["RelayState"] = following
        if not signed:
            return urlencode(query)
        sent = urlencode(query | {"SigAlg": Names.RSA_SHA256})
        signature = Utils.sign_binary(sent, self.key, xmlsec.Transform.RSA_SHA256)
        return f"{sent}&{urlencode({'Signature': base64.b64encode(signature).decode()})}"

    def serve(self) -> ThreadingHTTPServer:
        """Over HTTP: a page with a button for each person, which posts the signed answer."""
        provider = self

        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages = []
                for who in sorted(provider.people) if self.path.startswith("/sso?") else ():
                    acs, form = provider.answer(self.path, who)
                    fields = "".join(f'<input type="hidden" name="{k}" value="{v}">' for k, v in form.items())
                    pages.append(f'<form method="post" action="{acs}">{fields}<button>I am {who}</button></form>')
                body = f"<!doctype html><title>Provider</title>{''.join(pages)}".encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        self.issuer = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server
