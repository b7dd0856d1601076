"""Sign-in by SAML 2.0: allauth's provider behind bounds of ours. Its libraries are an optional part.

Only what was asked for here is taken: an answer without our question, or a second answer to it, opens nothing. Who
comes in, with which roles, is decided where people of OpenID Connect are (``controlplane.signin.adapters``). SAML has
nothing to ask again later, so a sign-in counts for ``QUARTERMASTER_SAML_HOURS``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from controlplane.web import login_attempts
from controlplane.web.error_pages import notice
from controlplane.web.login_attempts import network_of

log = logging.getLogger(__name__)

ANSWER_LETTERS = 256 * 1024  # of what a provider sends the browser back with, base64
BEGUN, WINDOW_S = 30, 300  # of one address: each keeps a row until it is over
QUERY_LETTERS = 8_192
SLUG = "sso"
CLAIMS = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims"  # as Entra ID and AD FS call attributes
# Of what is no XML, or another one; of a log-out that says nowhere where to go on; of an identifier that is too long.
READ_ERRORS = (ValueError, TypeError, KeyError, AttributeError, AssertionError, ImproperlyConfigured)
REDIRECT = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect"


def there() -> bool:
    """Whether the libraries are installed."""
    return find_spec("onelogin") is not None and find_spec("xmlsec") is not None


def provider_in(metadata: str) -> dict[str, str]:
    """Name, address and certificate of the identity provider that its metadata describes.

    Raises:
        ValueError: it describes none that this can use.
    """
    from onelogin.saml2.idp_metadata_parser import OneLogin_Saml2_IdPMetadataParser

    try:
        found = OneLogin_Saml2_IdPMetadataParser.parse(metadata, required_sso_binding=REDIRECT)["idp"]
        certificate = found.get("x509cert") or found["x509certMulti"]["signing"][0]
        return {
            "entity_id": found["entityId"],
            "sso_url": found["singleSignOnService"]["url"],
            "slo_url": found.get("singleLogoutService", {}).get("url", ""),
            "x509cert": certificate,
        }
    except Exception as error:  # the parser of somebody's XML
        raise ValueError(
            "this is no metadata of an identity provider with a signing certificate and a sign-in address for the "
            "redirect binding"
        ) from error


def apps_for(metadata: str, name: str) -> list[dict[str, Any]]:
    """What django-allauth is told of the provider."""
    return [
        {
            "provider_id": "saml",
            "name": name,
            "client_id": SLUG,
            "settings": {
                "idp": provider_in(metadata),
                "attribute_mapping": {
                    "uid": ["urn:oasis:names:tc:SAML:attribute:subject-id"],  # else the NameID
                    "email": ["urn:oid:0.9.2342.19200300.100.1.3", "email", "mail", f"{CLAIMS}/emailaddress"],
                    "username": [
                        "urn:oid:0.9.2342.19200300.100.1.1",
                        "username",
                        "uid",
                        f"{CLAIMS}/upn",
                        f"{CLAIMS}/name",
                    ],
                },
                "advanced": {
                    "strict": True,
                    "want_assertion_signed": True,
                    "want_name_id": True,
                    "want_attribute_statement": False,  # who has no groups is refused with a sentence, not an error
                    "reject_idp_initiated_sso": True,
                    "reject_deprecated_algorithm": True,
                    "allow_single_label_domains": True,  # names of a network of one's own
                    "name_id_format": "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent",
                },
            },
        }
    ]


@require_safe
def sign_in(request: HttpRequest, organization_slug: str) -> HttpResponse:
    """Sends a browser to the provider."""
    if refusal := _too_many(request, "sign-in"):
        return refusal
    answer = _provider_answer(request, "login", organization_slug)
    if not request.user.is_authenticated:
        request.session.set_expiry(900)
    return answer


@csrf_exempt  # a form of the provider's; what it carries is signed
@require_POST
def taken(request: HttpRequest, organization_slug: str) -> HttpResponse:
    """Keeps what the provider sent, for the browser's own session to read."""
    if refusal := _too_many(request, "answer"):
        return refusal
    if len(request.POST.get("SAMLResponse", "")) > ANSWER_LETTERS or len(request.POST.get("RelayState", "")) > 1_024:
        return notice(request, 400, "Not signed in", "This answer is longer than one that a provider sends.")
    return _provider_answer(request, "acs", organization_slug)


@require_safe
def come_back(request: HttpRequest, organization_slug: str) -> HttpResponse:
    """Reads it."""
    request.quartermaster_how = "provider"  # type: ignore[attr-defined]  # read when a session begins
    return _provider_answer(request, "finish_acs", organization_slug)


@require_safe
def log_out(request: HttpRequest, organization_slug: str) -> HttpResponse:
    """The provider ends the session of this browser. Its libraries take a request without a signature too, and send the
    browser wherever that says: anybody could write such a link."""
    if len(request.META.get("QUERY_STRING", "")) > QUERY_LETTERS:
        return notice(request, 400, "Not logged out", "This address is too long for one that a provider sends.")
    if settings.QUARTERMASTER_SAML_ISSUER and not request.GET.get("Signature"):
        return notice(request, 400, "Not logged out", "The identity provider did not sign this.")
    return _provider_answer(request, "sls", organization_slug)


@require_safe
def metadata(request: HttpRequest, organization_slug: str) -> HttpResponse:
    """What the provider has to know of this installation."""
    return _provider_answer(request, "metadata", organization_slug)


def _provider_answer(request: HttpRequest, name: str, organization_slug: str) -> HttpResponse:
    if not settings.QUARTERMASTER_SAML_ISSUER:
        raise Http404
    import xmlsec  # needs, as what follows, what few installations have
    from allauth.socialaccount.providers.saml import views
    from lxml.etree import LxmlError

    view: Callable[..., HttpResponse] = _finish() if name == "finish_acs" else getattr(views, name)
    try:
        return view(request, organization_slug=organization_slug)
    except (*READ_ERRORS, LxmlError, xmlsec.Error) as error:
        log.warning("sign-in: a SAML answer cannot be read (%s)", type(error).__name__)
        return notice(request, 400, "Not signed in", "What the identity provider sent cannot be read. Go to /login.")


def _finish() -> Callable[..., HttpResponse]:
    """allauth's step that reads an answer, with what is signed of it looked at as well: what answers our question, and
    for whom it is, may stand in the answer around it alone, which anybody can write."""
    from allauth.socialaccount.providers.saml.views import FinishACSView

    class Finish(FinishACSView):  # type: ignore[misc]  # has no types
        def get_provider(self, organization_slug: str) -> Any:
            provider = super().get_provider(organization_slug)
            read = provider.sociallogin_from_response

            def checked(request: HttpRequest, auth: Any) -> Any:
                _check_signed(auth)
                return read(request, auth)

            provider.sociallogin_from_response = checked
            return provider

    answer: Callable[..., HttpResponse] = Finish.as_view()
    return answer


def _check_signed(auth: Any) -> None:
    """Raises:
    ValueError: the assertion does not say which question it answers, or for whom it is.
    """
    from onelogin.saml2.xml_utils import OneLogin_Saml2_XML as Xml

    answer = Xml.to_etree(auth.get_last_response_xml())
    asked = {data.get("InResponseTo") for data in Xml.query(answer, "//saml:Assertion//saml:SubjectConfirmationData")}
    if asked != {auth.get_last_response_in_response_to()} or None in asked:
        raise ValueError("the assertion answers no question of ours")
    if not Xml.query(answer, "//saml:Assertion/saml:Conditions/saml:AudienceRestriction/saml:Audience"):
        raise ValueError("the assertion says not for whom it is")


def _too_many(request: HttpRequest, what: str) -> HttpResponse | None:
    address = network_of(request.META.get("REMOTE_ADDR", ""))
    wait_s = login_attempts.take(f"saml {what} from {address}", BEGUN, WINDOW_S)
    if not wait_s:
        return None
    text = f"Too many sign-ins were begun from your address. Try again in {wait_s} seconds."
    return notice(request, 429, "Too many sign-ins", text, retry_s=wait_s)
