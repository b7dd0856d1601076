"""The web server's own limits: what it refuses before any application code runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import resource

import pytest
import uvicorn
import websockets

from controlplane.env import SettingsError
from controlplane.web.connections import KEPT_FREE, ConnectionLimits, Place, affordable
from controlplane.web.protocol import SENT_AHEAD, protocol
from controlplane.web.websockets import BoundedSocket

HEAD_BYTES, HEAD_S = 2048, 0.4


async def echo(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = json.dumps({"path": scope["path"], "body": len(body)}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


@contextlib.asynccontextmanager
async def served(connections, head_s=HEAD_S, app=echo, send_s=30.0, **options):
    http = protocol(HEAD_BYTES, head_s, connections, send_s)
    config = uvicorn.Config(app, port=0, http=http, lifespan="off", log_config=None, **options)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


@pytest.fixture
async def port():
    async with served(ConnectionLimits(10_000, 0)) as port:
        yield port


async def exchange(port, *parts, pause_s=0.0):
    """Sends parts, returns all that came back before the server closed or fell silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)
        answer = b""
        while True:
            try:
                data = await asyncio.wait_for(reader.read(65536), 2)
            except (TimeoutError, ConnectionResetError):
                return answer, False
            if not data:
                return answer, True
            answer += data
    finally:
        writer.close()


def status(answer):
    return int(answer.split(b" ", 2)[1])


def error(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


async def test_an_ordinary_request_passes_and_the_connection_is_kept(port):
    one = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
    answer, closed = await exchange(port, one, one)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert not closed


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /a HTTP/1.1\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: x\r\nHost: y\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: x\r\nhost: x\r\n", 400),
        (b"GET /a HTTP/1.0\r\nhost: x\r\nhost: y\r\n", 400),
        (b"GET http://y/a HTTP/1.1\r\n", 400),
        (b"GET /a HTTP/1.0\r\n", 200),
        (b"GET /a HTTP/1.0\r\nhost: x\r\n", 200),
        (b"GET /a HTTP/1.1\r\nHOST: x\r\n", 200),
    ],
)
async def test_a_request_names_one_host(port, head, expected):
    answer, closed = await exchange(port, head + b"\r\n")
    assert status(answer) == expected
    assert closed or expected == 200


async def in_pieces(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for piece in (b"data: 1\n\n", b"data: 2\r\n\r\n"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n", b"expect: 100-continue\r\n"])
async def test_a_client_that_knows_no_chunks_gets_a_stream_without_them(more):
    async with served(ConnectionLimits(10_000, 0), app=in_pieces) as port:
        answer, closed = await exchange(port, b"GET /a HTTP/1.0\r\n" + more + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"data: 1\n\ndata: 2\r\n\r\ndata: [DONE]\n\n"
    assert closed
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_a_websocket_names_one_host(port):
    ask = b"GET /a HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    answer, _ = await exchange(port, ask + b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
    assert status(answer) == 400


async def test_a_body_does_not_count_as_head(port):
    body = b"x" * (HEAD_BYTES * 4)
    answer, _ = await exchange(port, b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert status(answer) == 200
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["body"] == len(body)


async def test_a_head_over_the_limit_is_refused_in_one_piece(port):
    answer, closed = await exchange(port, b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"y" * HEAD_BYTES + b"\r\n\r\n")
    assert (status(answer), closed) == (431, True)
    assert error(answer)["type"] == "invalid_request_error"


async def test_a_head_over_the_limit_is_refused_before_it_ends(port):
    answer, closed = await exchange(port, b"GET / HTTP/1.1\r\nhost: x\r\na: ", b"y" * HEAD_BYTES)
    assert (status(answer), closed) == (431, True)


async def test_a_second_head_on_a_kept_connection_has_the_same_limit(port):
    first = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
    second = b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"y" * HEAD_BYTES + b"\r\n\r\n"
    answer, closed = await exchange(port, first, second, pause_s=0.1)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 431" in answer
    assert closed


@pytest.mark.parametrize("beginning", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nhost: x\r\nx-a: b\r\n"])
async def test_a_head_that_does_not_end_in_time_is_refused(port, beginning):
    answer, closed = await exchange(port, beginning)
    assert (status(answer), closed) == (408, True)


@pytest.mark.parametrize(
    ("sent", "reason", "again"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"y" * HEAD_BYTES + b"\r\n\r\n", "too_large", False),
        (b"what is this\r\n\r\n", "invalid_request", False),
        (b"GET / HTT", "slow_request", True),
    ],
)
async def test_what_the_server_itself_refuses_has_an_id_and_a_reason_like_every_answer(port, sent, reason, again):
    answer, _ = await exchange(port, sent)
    head = answer.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert error(answer)["code"] == reason
    assert f"x-quartermaster-reason: {reason}" in head
    assert any(line.startswith("x-request-id: req_") for line in head)
    assert any(line.startswith("retry-after-ms: ") for line in head) is again
    assert ("x-should-retry: false" in head) is not again


async def test_drips_do_not_buy_time(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def drip():
        writer.write(b"GET / HTTP/1.1\r\n")
        while True:
            writer.write(b"a: b\r\n")
            await asyncio.sleep(HEAD_S / 10)

    dripping = asyncio.create_task(drip())
    try:
        answer = await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:  # it closed while we wrote
        answer = b"HTTP/1.1 408"
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.close()
    assert status(answer + b" ") == 408


async def test_what_is_not_http_gets_an_error_in_openais_shape(port):
    answer, closed = await exchange(port, b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n")
    assert (status(answer), closed) == (400, True)
    assert error(answer)["message"]


@pytest.mark.parametrize(
    "head",
    [
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"GET /a HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: x\ry: z\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost : x\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_ambiguous_framing_is_refused(port, head):
    answer, _ = await exchange(port, head)
    assert status(answer) == 400


# --- how many may come


ASK = b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def silent(port, number):
    """Connections that say nothing."""
    open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    try:
        yield
    finally:
        for _, writer in open_ones:
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(("connections", "code"), [((3, 0), 503), ((100, 3), 429)])
async def test_connections_over_the_limit_are_told_so_and_health_is_still_answered(connections, code):
    async with served(ConnectionLimits(*connections), head_s=60) as port:
        async with silent(port, 3):
            answer, closed = await exchange(port, ASK % b"/v1/models")
            assert (status(answer), closed) == (code, True)
            assert "connections" in error(answer)["message"]
            assert b"retry-after: " in answer
            for path in (b"/healthz", b"/readyz", b"/health"):
                answer, _ = await exchange(port, ASK % path)
                assert status(answer) == 200, path
        for _ in range(100):  # the server has to see that they went
            answer, _ = await exchange(port, ASK % b"/a")
            if status(answer) == 200:
                break
        assert status(answer) == 200


async def test_the_places_kept_for_health_have_an_end():
    async with served(ConnectionLimits(1, 0), head_s=60) as port, silent(port, 1 + KEPT_FREE):
        answer, closed = await exchange(port)  # without a word
        assert (status(answer), closed) == (503, True)


def test_every_connection_is_counted_out_again():
    connections = ConnectionLimits(3, 1)
    for _ in range(3):
        entered = [(address, *connections.enter(address)) for address in ("a", "a", "b", "c", "d", *["a"] * 20)]
        assert [place for _, place, _ in entered[:5]] == [Place.FREE, Place.ADDRESS, Place.FREE, Place.FREE, Place.FULL]
        assert not entered[-1][2]
        assert connections.inside == 3
        for address, place, inside in reversed(entered):
            if inside:
                connections.leave(address, place)
        assert (connections.inside, connections._kept, connections._of, connections._kept_of) == (0, 0, {}, {})


def test_those_over_the_limit_of_their_address_take_no_places_from_others():
    connections = ConnectionLimits(100, 10)
    for _ in range(500):
        connections.enter("one address")
    assert connections.enter("another") == (Place.FREE, True)


@pytest.mark.parametrize(("connections", "reason"), [((1, 0), "server_full"), ((100, 1), "address_connections")])
async def test_a_refused_connection_is_told_why_and_counted(connections, reason):
    counting = ConnectionLimits(*connections)
    async with served(counting, head_s=60) as port, silent(port, 1):
        answer, _ = await exchange(port, ASK % b"/v1/models")
        assert error(answer)["code"] == reason
        assert f"x-quartermaster-reason: {reason}".encode() in answer
        assert counting.refused == {reason: 1}


async def test_blank_lines_do_not_keep_a_connection():
    async with served(ConnectionLimits(100, 0), head_s=60, timeout_keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"\r\n")
                    await asyncio.sleep(0.1)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(65536), 0.05)
        writer.close()


async def test_a_request_that_was_sent_slowly_outlives_the_idle_time_of_the_one_before_it():
    """Its head began while the first was answered, so the idle time that begins then is not its own."""

    async def slow(scope, receive, send):
        await asyncio.sleep(0.3 if scope["path"] == "/first" else 2.5)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with served(ConnectionLimits(100, 0), head_s=60, app=slow, timeout_keep_alive=1) as port:
        parts = b"GET /first HTTP/1.1\r\nhost: x\r\n\r\nGET /sec", b"ond HTTP/1.1\r\nhost: x\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.6)
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
        assert answer.count(b"HTTP/1.1 200") == 2


async def test_a_client_that_sends_ahead_and_leaves_ends_all_its_requests():
    """The server below us tells only the newest request that its client has gone."""
    began, gone = [], []

    async def waits(scope, receive, send):
        await receive()
        began.append(scope["path"])
        message = await receive()
        gone.append((scope["path"], message["type"]))

    async with served(ConnectionLimits(100, 0), app=waits) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(30):
            while not began:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            writer.transport.abort()
            while not gone:
                await asyncio.sleep(0.01)
    assert gone == [("/1", "http.disconnect")]


@pytest.mark.parametrize("behind", [1, 1000])
async def test_of_many_requests_sent_ahead_those_that_may_wait_are_answered_and_the_last_says_so(port, behind):
    first = b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(1 + SENT_AHEAD))
    answer, closed = await exchange(port, first + b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n" * behind)
    assert closed
    assert [int(path) for path in re.findall(rb'"path": "/(\w+)"', answer)] == list(range(1 + SENT_AHEAD))
    assert answer.count(b"connection: close") == 1
    assert b"connection: close" in answer.rpartition(b"HTTP/1.1 200")[2]


async def test_answers_are_not_lost_by_what_is_sent_behind_them(port):
    """Four megabytes of it, by a client that sends all before it reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(150_000)))
    await writer.drain()
    await asyncio.sleep(0.3)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    assert [int(path) for path in re.findall(rb'"path": "/(\w+)"', answer)] == list(range(1 + SENT_AHEAD))


async def test_who_sends_ahead_without_an_end_is_read_slowly_and_seen_to_leave():
    gone = asyncio.Event()

    async def waits(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with served(ConnectionLimits(100, 0), app=waits) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        piece = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n" * 40_000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while not gone.is_set():
                    writer.write(piece)
                    await writer.drain()
        assert not gone.is_set()
        writer.transport.abort()
        async with asyncio.timeout(30):
            await gone.wait()


FAULTY = {
    "no request": (b"@@@@ nonsense\r\n\r\n", 400),
    "a head that is too large": (b"GET /b HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * HEAD_BYTES + b"\r\n\r\n", 431),
    "a head without an end": (b"GET /b HTTP/1.1\r\nhost: x\r\n", 408),
    "two hosts": (b"GET /b HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400),
    "a broken body": (b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    "a WebSocket": (
        b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("streams", [False, True], ids=["before it begins", "while it is sent"])
@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("faulty", FAULTY)
async def test_what_was_right_is_answered_before_a_faulty_request_is_refused(faulty, before, streams):
    async def slow(scope, receive, send):
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        if streams:
            await send(head)
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await asyncio.sleep(HEAD_S + 0.3)
        if not streams:
            await send(head)
        await send({"type": "http.response.body", "body": b"k" if streams else b"ok"})

    sent, expected = FAULTY[faulty]
    async with served(ConnectionLimits(100, 0), app=slow) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n" * before)
        await asyncio.sleep(0.1)
        writer.write(sent)
        await asyncio.sleep(0.1)
        writer.write(b"GET /behind HTTP/1.1\r\nhost: x\r\n\r\n" if expected != 408 else b"")
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
    answers = answer.split(b"HTTP/1.1 ")[1:]
    assert [int(one[:3]) for one in answers] == [200] * before + [expected]
    assert all(one.endswith(b"\r\n\r\nok") for one in answers[:-1])
    assert b"connection: close" in answers[-1]


@pytest.mark.parametrize("behind", [b"@@@@ nonsense\r\n\r\n", b"GET /c HTTP/1.1\r\nhost: x\r\n\r\n" * (SENT_AHEAD + 2)])
async def test_nothing_runs_behind_the_answer_that_ends_its_connection(behind, caplog):
    """What was sent ahead is not begun: its answer could not be written, and a chat would be computed for nobody."""
    began = []

    async def ends(scope, receive, send):
        began.append(scope["path"])
        await asyncio.sleep(0.2)  # until all has come
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with served(ConnectionLimits(100, 0), app=ends) as port:
        answer, closed = await exchange(port, b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n" * 2 + behind)
        await asyncio.sleep(0.3)
    assert (began, answer.count(b"HTTP/1.1 200"), closed) == (["/a"], 1, True)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("ahead", [0, 1], ids=["the last one", "with another request behind it"])
async def test_an_answer_that_is_not_read_is_dropped(ahead):
    size = 32 * 1024 * 1024

    async def large(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})

    connections = ConnectionLimits(100, 0)
    async with served(connections, app=large, send_s=0.5) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n" * (1 + ahead))
        async with asyncio.timeout(30):
            while not connections.inside:
                await asyncio.sleep(0.01)
            while connections.inside:
                await asyncio.sleep(0.05)
        writer.transport.abort()


INNER = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
BODIES = {
    "length": (b"content-length: %d\r\n" % len(INNER), INNER),
    "chunks": (b"transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)),
    "none": (b"", b""),
}


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket2", b"TLS/1.0"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["in one read", "in several reads"])
async def test_a_wish_for_another_protocol_is_ignored(port, upgrade, body, pause_s):
    """As Java's HTTP client sends it with each request, until it knows that it is spoken to in HTTP/1.1."""
    framing, sent = BODIES[body]
    head = b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\n" % upgrade
    one = [head + b"http2-settings: AAEAAEAAAAIAAAAB\r\n" + framing + b"\r\n", sent]
    last = b"GET /last HTTP/1.1\r\nhost: x\r\n\r\n"
    parts = [*one, *one, last] if pause_s else [b"".join([*one, *one, last])]
    answer, closed = await exchange(port, *parts, pause_s=pause_s)
    length = len(INNER) if body != "none" else 0
    bodies = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [{"path": "/a", "body": length}] * 2 + [{"path": "/last", "body": 0}]
    assert not closed


@pytest.mark.parametrize("asks", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
async def test_a_body_behind_a_wish_for_a_tunnel_is_no_request(port, asks):
    answer, closed = await exchange(
        port,
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (asks, len(INNER)),
        INNER,
        pause_s=0.1,
    )
    assert (status(answer), closed) == (400, True)
    assert b"smuggled" not in answer


async def test_a_head_that_is_too_large_is_refused_whatever_it_wishes(port):
    head = b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\nx: %b\r\n\r\n" % (b"x" * HEAD_BYTES)
    answer, closed = await exchange(port, head)
    assert (status(answer), closed) == (431, True)


def test_no_more_connections_are_taken_than_there_are_files_for(monkeypatch, caplog):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert affordable(100) == 100
    assert not asked
    assert affordable(10_000) == (4096 - 256) // 2 - KEPT_FREE
    assert asked == [(4096, 4096)]
    assert "open files" in caplog.text
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 385))
    with pytest.raises(SettingsError, match="385 open files and needs 386"):
        affordable(10_000)


def test_a_proxy_has_no_limit_per_address():
    connections = ConnectionLimits(100, 2, proxies=["10.1.0.0/16", "::1"])
    for address in ("10.1.2.3", "::1"):
        assert [connections.enter(address)[0].value for _ in range(4)] == ["free"] * 4
    assert [connections.enter(address)[0].value for address in ("10.2.0.1",) * 3] == ["free", "free", "address"]
    assert [connections.enter(address)[0].value for address in ("unix",) * 3] == ["free", "free", "address"]


async def test_what_is_sent_to_a_dashboard_after_its_close_is_no_fault_of_ours(caplog):
    """It vanished and was given up, or was closed for its session, while its next frame was on the way: whoever sends
    learns of it as ASGI has it, by an OSError, and the log has no traceback."""
    raised: list[BaseException] = []

    async def feed(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4401})
        for message in ({"type": "websocket.send", "text": "late"}, {"type": "websocket.close", "code": 1000}):
            try:
                await send(message)
            except Exception as error:
                raised.append(error)
        await send({"type": "websocket.send", "text": "and again, uncaught"})

    async with (
        served(ConnectionLimits(10_000, 0), app=feed, ws=BoundedSocket) as port,
        websockets.connect(f"ws://127.0.0.1:{port}/") as client,
    ):
        await client.wait_closed()
    assert client.close_code == 4401
    assert [isinstance(error, OSError) for error in raised] == [True, True]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text
