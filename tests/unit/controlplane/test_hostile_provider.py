"""An identity provider that does not end its answers, sends too much, or something else than the protocol has."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from django.test import Client, override_settings

from controlplane.signin import exchange
from controlplane.signin.provider import Gone, Provider, There, Unknown, check_configuration
from tenants.people import Grant

pytestmark = pytest.mark.django_db

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"


class HostileProvider:
    """A server on loopback that says one thing to whoever asks; ``forever`` is what follows it until it is left."""

    def __init__(self, says: bytes, forever: bytes, pause_s: float) -> None:
        self.says, self._forever, self._pause_s = says, forever, pause_s
        self._over = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.issuer = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked = threading.Event()
        self.left = threading.Event()  # somebody has closed the connection
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                self.asked.set()
                connection.sendall(self.says)
                while self._forever and not self._over.wait(self._pause_s):
                    connection.sendall(self._forever)
            except OSError:
                self.left.set()

    def close(self) -> None:
        self._over.set()
        self._socket.close()


@contextlib.contextmanager
def provider(says: bytes, forever: bytes = b"", pause_s: float = 0.0) -> Iterator[HostileProvider]:
    server = HostileProvider(says, forever, pause_s)
    app = {
        "provider_id": "sso", "name": "sso", "client_id": "us", "secret": "s",
        "settings": {"server_url": server.issuer, "scope": ["openid"]},
    }  # fmt: skip
    try:
        with override_settings(
            SOCIALACCOUNT_PROVIDERS={"openid_connect": {"APPS": [app]}}, QUARTERMASTER_OIDC_ISSUER=server.issuer
        ):
            yield server
    finally:
        server.close()


def document(value: object) -> bytes:
    body = json.dumps(value).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


WITHOUT_END = [
    pytest.param(HEAD + b"content-length: 9000\r\n\r\n", b" ", id="body"),
    pytest.param(b"HTTP/1.1 200 OK\r\nx-a: ", b"a", id="head"),
]


@pytest.mark.parametrize(("says", "forever"), WITHOUT_END)
def test_a_provider_whose_answer_never_ends_holds_up_no_sign_in(
    says: bytes, forever: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "WHOLE_S", 0.5)
    with provider(says, forever, pause_s=0.05) as server:
        answer = Client().get("/oidc/sso/login/?process=login")
        assert answer.status_code == 502
        assert b"does not answer" in answer.content
        assert server.left.wait(30), "its connection is closed"


@pytest.mark.parametrize(("says", "forever"), WITHOUT_END)
def test_a_provider_whose_answer_never_ends_holds_up_no_check_of_people(
    says: bytes, forever: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "WHOLE_S", 0.5)
    with provider(says, forever, pause_s=0.05) as server:
        asked = Provider(server.issuer, "us", "s")
        try:
            assert isinstance(asked.ask("anna", Grant("access", "refresh")), Unknown)
            assert server.left.wait(30), "its connection is closed"
        finally:
            asked.close()


def test_a_question_without_an_answer_yet_ends_when_the_client_leaves() -> None:
    """A web process that stops would wait for it, and for all that are asked after it."""
    with provider(HEAD + b"content-length: 9000\r\n\r\n", b" ", pause_s=0.05) as server:
        asked = Provider(server.issuer, "us", "s")
        with ThreadPoolExecutor(2) as several:
            answers = [several.submit(asked.ask, name, Grant("access", "refresh")) for name in ("anna", "bob", "cleo")]
            assert server.asked.wait(30)
            asked.close()
            assert [answer.result(30) for answer in answers] == [Unknown(exchange.ENDED)] * 3
        assert server.left.wait(30)


def test_more_than_a_provider_has_to_say_is_not_read() -> None:
    with provider(HEAD + b"\r\n", b" " * 65536) as server:
        assert Client().get("/oidc/sso/login/?process=login").status_code == 502
        assert server.left.wait(30)


@pytest.mark.parametrize(
    "says",
    [
        document([]),
        document("text"),
        document({"token_endpoint": "x"}),
        HEAD + b"\r\n{",
        HEAD + b"\r\n" + b"[" * 100_000,
        HEAD + b"content-encoding: gzip\r\n\r\n" + b"\x1f\x8b\x08",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_of_a_provider_is_said_to_be_none(says: bytes) -> None:
    with provider(says) as server:
        answer = Client(raise_request_exception=False).get("/oidc/sso/login/?process=login")
        assert answer.status_code == 502
        asked = Provider(server.issuer, "us", "s")
        try:
            assert isinstance(asked.ask("anna", Grant("access", "refresh")), Unknown)
        finally:
            asked.close()


@pytest.mark.parametrize("address", ["http://[", "http://a\nb/", "x", "file:///etc/passwd", "http://" + "a" * 70, 5])
def test_an_address_that_is_none_ends_nobody(address: object) -> None:
    with provider(document({"userinfo_endpoint": address})) as server:
        asked = Provider(server.issuer, "us", "s")
        try:
            assert isinstance(asked.ask("anna", Grant("access", "refresh")), Unknown)
        finally:
            asked.close()


ENDPOINTS = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "jwks_uri")


def came_back(back: dict[str, str] | None = None, **says: Any) -> Any:
    """What a browser is told that comes back from a provider whose documents say this; ``back``: in its address."""
    with provider(b"") as server:
        right = dict.fromkeys(ENDPOINTS, server.issuer) | {"issuer": server.issuer, "access_token": "a", "sub": "ada"}
        token = {"iss": server.issuer, "aud": "us", "sub": "ada", "exp": 2**33} | says.pop("token", {})
        server.says = document(right | {"id_token": jwt.encode(token, "k" * 32)} | says)
        browser = Client(raise_request_exception=False)
        left = browser.get("/oidc/sso/login/?process=login")
        if left.status_code != 302:
            return left
        state = parse_qs(urlsplit(left.headers["Location"]).query)["state"][0]
        return browser.get("/oidc/sso/login/callback/", {"code": "c", "state": state, **(back or {})})


@pytest.mark.parametrize(
    "link",
    [
        {"auth_params": "redirect_uri=https://another.example&client_id=other&state=known"},
        {"auth_params": "response_type=token&prompt=none&acr_values=0"},
        {"scope": "everything", "action": "reauthenticate"},
    ],
)
def test_a_link_to_a_sign_in_says_nothing_to_the_provider(link: dict[str, str]) -> None:
    with provider(b"") as server:
        server.says = document(dict.fromkeys(ENDPOINTS, server.issuer) | {"issuer": server.issuer})
        usual = Client().get("/oidc/sso/login/", {"process": "login", "next": "/queue"})
        by_link = Client().get("/oidc/sso/login/", {"process": "login", "next": "/queue", **link})
        asked = [parse_qs(urlsplit(each.headers["Location"]).query) for each in (usual, by_link)]
        for each in asked:
            assert each.pop("state") != ["known"]
        assert asked[0] == asked[1]


def tells_of_another_issuer(answer: Any) -> None:
    """Waiting would not help: people are not told to try again, nor what the log says."""
    said = answer.content.decode()
    assert answer.status_code == 502
    assert "names another issuer than QUARTERMASTER_OIDC_ISSUER" in said
    assert "does not answer" not in said
    assert "another.example" not in said


def test_an_answer_that_names_another_issuer_lets_nobody_in() -> None:
    tells_of_another_issuer(came_back({"iss": "https://another.example"}))


def test_who_is_what_the_provider_says_comes_as_far_as_their_groups() -> None:
    answer = came_back()
    assert (answer.status_code, b"none of your groups" in answer.content) == (403, True)


@pytest.mark.parametrize("path", ["", "/", "/.well-known", "/x"])
def test_a_configuration_of_another_issuer_is_not_taken(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its endpoints would get the client's secret, and its tokens would be believed."""
    issuer = "https://another.example" + path
    tells_of_another_issuer(came_back(issuer=issuer, token={"iss": issuer}))
    assert f"is of issuer '{issuer}', not of 'http://127.0.0.1" in caplog.text


def test_a_configuration_of_another_issuer_is_not_taken_on_the_way_back_either() -> None:
    with provider(b"") as server:
        right = dict.fromkeys(ENDPOINTS, server.issuer) | {"issuer": server.issuer, "access_token": "a", "sub": "ada"}
        server.says = document(right)
        browser = Client(raise_request_exception=False)
        left = browser.get("/oidc/sso/login/?process=login")
        state = parse_qs(urlsplit(left.headers["Location"]).query)["state"][0]
        server.says = document(right | {"issuer": "https://another.example"})
        tells_of_another_issuer(browser.get("/oidc/sso/login/callback/", {"code": "c", "state": state}))


def test_a_configuration_of_another_issuer_ends_nobody() -> None:
    with provider(document({"issuer": "https://another.example", "userinfo_endpoint": "http://127.0.0.1:1"})) as server:
        asked = Provider(server.issuer, "us", "s")
        try:
            answer = asked.ask("anna", Grant("access", "refresh"))
            assert isinstance(answer, Unknown)
            assert "another.example" in answer.why
        finally:
            asked.close()


def test_a_slash_at_the_end_of_an_issuer_makes_no_other_one() -> None:
    with provider(b"") as server:
        server.says = document(dict.fromkeys(ENDPOINTS, server.issuer) | {"issuer": f"{server.issuer}/"})
        assert Client().get("/oidc/sso/login/?process=login").status_code == 302


@pytest.mark.parametrize("name", ["token_endpoint", "userinfo_endpoint", "jwks_uri"])
@pytest.mark.parametrize("address", ["http://169.254.169.254/latest/meta-data", "//id.example/x", "file:///etc/passwd"])
def test_of_an_issuer_with_tls_nothing_is_asked_without(
    name: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's secret would go there in the clear, and ID tokens from there are believed because of TLS."""
    issuer = "https://id.example"
    with provider(b"") as server, override_settings(QUARTERMASTER_OIDC_ISSUER=issuer):
        right = {"issuer": issuer, **dict.fromkeys(ENDPOINTS, issuer + "/x")}
        server.says = document(right)
        assert Client().get("/oidc/sso/login/?process=login").status_code == 302
        server.says = document(right | {name: address})
        assert Client().get("/oidc/sso/login/?process=login").status_code == 502
        assert f"names '{address}' as {name}" in caplog.text
        with pytest.raises(exchange.Trouble):
            check_configuration(right | {name: address}, issuer)


def test_a_token_of_somebody_else_than_userinfo_opens_nothing() -> None:
    answer = came_back(token={"sub": "bea"})
    assert (answer.status_code, b"another person" in answer.content) == (401, True)


@pytest.mark.parametrize(
    "says",
    [
        {"access_token": None}, {"access_token": {}}, {"expires_in": "soon"}, {"expires_in": 1e300}, {"id_token": 5},
        {"id_token": "a.b.c"}, {"id_token": {}}, {"sub": None}, {"sub": ["ada"]}, {"token": {"aud": "others"}},
        {"token": {"iss": "http://other"}}, {"token": {"exp": 1}}, {"token": {"jti": "j", "exp": 2**70}},
        {"token_endpoint": 5}, {"userinfo_endpoint": []}, {"issuer": None},
        {"token_endpoint_auth_methods_supported": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_documents_with_something_else_in_them_let_nobody_in_and_break_no_page(says: dict[str, Any]) -> None:
    assert came_back(**says).status_code in (401, 403, 502)


def test_a_subject_that_is_longer_than_may_be_lets_nobody_in() -> None:
    assert came_back(sub="a" * 5000, token={"sub": "a" * 5000}).status_code == 502


@pytest.mark.parametrize(("sub", "there"), [(7, True), ("7", True), (8, False), (None, False), ([7], False)])
def test_a_subject_that_is_a_number_is_asked_about_as_it_was_let_in(sub: object, there: bool) -> None:
    with provider(b"") as server:
        server.says = document({"issuer": server.issuer, "userinfo_endpoint": server.issuer, "sub": sub})
        asked = Provider(server.issuer, "us", "s")
        try:
            assert isinstance(asked.ask("7", Grant("access", "refresh")), There if there else Unknown)
        finally:
            asked.close()


# A provider without userinfo: user flows of Azure AD B2C.


def test_who_signs_in_at_a_provider_without_userinfo_is_who_the_id_token_says() -> None:
    answer = came_back(userinfo_endpoint=None)
    assert (answer.status_code, b"none of your groups" in answer.content) == (403, True)
    without = came_back(userinfo_endpoint=None, id_token=None)
    assert without.status_code == 401, "nobody says who it is"


@pytest.mark.parametrize(
    ("token", "answer"),
    [
        ({"sub": "anna", "groups": ["staff"]}, There({"sub": "anna", "groups": ["staff"]}, Grant("new", "newer"))),
        (None, There({}, Grant("new", "newer"))),
        ({"sub": "bea"}, Unknown("The identity provider answers about somebody else.")),
    ],
)
def test_a_provider_without_userinfo_says_by_refreshing_that_a_person_is_there(
    token: dict[str, Any] | None, answer: object
) -> None:
    with provider(b"") as server:
        says = {
            "issuer": server.issuer,
            "token_endpoint": server.issuer,
            "access_token": "new",
            "refresh_token": "newer",
        }
        server.says = document(says | ({} if token is None else {"id_token": jwt.encode(token, "k" * 32)}))
        asked = Provider(server.issuer, "us", "s")
        try:
            assert asked.ask("anna", Grant("access", "refresh")) == answer
            assert isinstance(asked.ask("anna", Grant("access", "")), Gone)
        finally:
            asked.close()
