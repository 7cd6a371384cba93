"""Every listener against a hostile client: the server serves others, and keeps nothing of it.

The soak tests print the seed of each round; `KESTRELMQ_FUZZ_SEED` repeats it.
"""

import base64
import os
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.certificates import Authority
from tests.support.fuzzing import Corpus, Target, fuzz, soak
from tests.support.server import running_server
from tests.support.users import PASSWORD, users_config

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

CONFIG: Final = """
max_monitor_transactions = 50
[default]
max_memory_size = "1 MiB"
max_items = 200
max_size = "2 MiB"
max_item_size = "1 MiB"
default_journal_size = "256 KiB"
[queues.synced]
sync_journal = "0ms"
[queues.kept]
keep_journal = false
[aliases.all]
destination_queues = ["work", "kept"]
"""
QUEUES: Final = (
    b"work",
    b"synced",
    b"kept",
    b"all",
    b"work+child",
    b"strange name",
    b"a/b",
    b"\xff",
)


def item(chance: random.Random) -> bytes:
    """Return some data, mostly little of it."""
    size = chance.choice((0, 1, 10, 1000, 5000, 70_000, 300_000))
    return chance.randbytes(min(size, 20)) * (size // 20 + 1)


def memcache(chance: random.Random) -> bytes:
    """Make a request of the memcache protocol."""
    queue = chance.choice(QUEUES)
    data = item(chance)
    options = b"".join(
        chance.choice((b"/open", b"/close", b"/abort", b"/peek", b"/t=5", b"/t=100000"))
        for _ in range(chance.randrange(3))
    )
    return chance.choice(
        (
            b"set %b 0 %d %d\r\n%b\r\n" % (queue, chance.choice((0, 0, 1, -1)), len(data), data),
            b"set %b 0 0 %d noreply\r\n%b\r\n" % (queue, len(data), data),
            b"get %b%b\r\n" % (queue, options),
            b"gets %b%b\r\n" % (queue, options),
            b"get %b\r\n" % b" ".join(queue + options for _ in range(chance.randrange(1, 400))),
            b"monitor %b %d %d\r\n" % (queue, chance.randrange(3), chance.randrange(9)),
            b"confirm %b %d\r\n" % (queue, chance.randrange(3)),
            b"touch_read %b 10\r\n" % queue,
            b"browse %b %d 20\r\n" % (queue, chance.randrange(5)),
            b"browse %b 0 5 text=%%ff\r\n" % queue,
            b"move %b other 5\r\n" % queue,
            b"copy other %b 5\r\n" % queue,
            b"redrive %b\r\n" % queue,
            b"declare %b expires=1000 max_items=%d\r\n" % (queue, chance.randrange(9)),
            b"pause %b writes\r\n" % queue,
            b"resume %b\r\n" % queue,
            b"flush %b\r\n" % queue,
            b"delete %b noreply\r\n" % queue,
            b"flush_all\r\n",
            b"flush_expired %b\r\n" % queue,
            b"flush_all_expired\r\n",
            b"stats\r\n",
            b"stats %b\r\n" % queue,
            b"dump_stats %b\r\n" % queue,
            b"dump_config\r\n",
            b"status\r\n",
            b"version\r\n",
            b"reload\r\n",
            b"quit\r\n",
        )
    )


def text(chance: random.Random) -> bytes:
    """Make a command of the text protocol."""
    queue = chance.choice(QUEUES)
    items = b"\n".join(item(chance).replace(b"\n", b"") for _ in range(chance.randrange(1, 4)))
    return chance.choice(
        (
            b"put %b:\n%b\n\n" % (queue, items),
            b"put %b %d:\n%b\n\n" % (queue, chance.choice((0, 5, -1)), items),
            b"get %b\n" % queue,
            b"get %b %d\n" % (queue, chance.choice((1, 100_000))),
            b"peek %b 5\n" % queue,
            b"monitor %b %d %d\n" % (queue, chance.randrange(50), chance.randrange(9)),
            b"confirm %b %d\n" % (queue, chance.randrange(3)),
            b"flush %b\n" % queue,
            b"flush_expired %b\n" % queue,
            b"delete %b\n" % queue,
            b"status\nversion\r\nreload\n",
            b"quit\n",
        )
    )


def thrift(chance: random.Random) -> bytes:
    """Make a framed call in the binary protocol, now and then in the old one or the compact one."""
    queue = chance.choice(QUEUES)
    name = struct.pack(">bhi", 11, 1, len(queue)) + queue
    listed = [item(chance) for _ in range(chance.randrange(4))]
    items = b"".join(struct.pack(">i", len(one)) + one for one in listed)
    ids = struct.pack(">bhbi3q", 14, 2, 10, 3, 1, 2, 3)
    numbers = (chance.randrange(9), chance.choice((0, 5, 100_000)), chance.choice((0, 50)))
    get = b"".join(struct.pack(">bhi", 8, field, value) for field, value in enumerate(numbers, 2))
    method, fields = chance.choice(
        (
            (b"put", name + struct.pack(">bhbi", 15, 2, 11, len(listed)) + items),
            (b"get", name + get),
            (b"confirm", name + ids),
            (b"abort", name + ids),
            (b"peek", name),
            (b"flush_queue", name),
            (b"flush_all_queues", b""),
            (b"delete_queue", name),
            (b"current_status", b""),
            (b"get_version", b""),
            (b"__can__finagle__trace__v3__", b""),
        )
    )
    kind = chance.choice((1, 1, 1, 1, 4, 2))
    heads = (
        struct.pack(">HHi", 0x8001, kind, len(method)) + method + struct.pack(">i", 7),
        struct.pack(">i", len(method)) + method + struct.pack(">bi", kind, 7),
        b"\x82" + bytes((1 | kind << 5, 7, len(method))) + method,
    )
    content = chance.choice((heads[0], heads[0], *heads)) + fields + b"\0"
    return struct.pack(">i", len(content)) + content


def http(chance: random.Random) -> bytes:
    """Make a request to the admin service."""
    queue = chance.choice((b"work", b"kept", b"a%2Fb", b"%ff", b""))
    path = chance.choice(
        (
            b"/ping",
            b"/stats.json?period=1",
            b"/stats.txt",
            b"/metrics",
            b"/health",
            b"/config.json",
            b"/api/v1/queues?limit=3&sort=items",
            b"/api/v1/queues/" + queue,
            b"/api/v1/queues/%b/items?limit=2" % queue,
            b"/api/v1/events",
            b"/../../etc/passwd",
            b"/",
        )
    )
    body = chance.choice((b"", b'{"items": ["x"]}', b"[" * 3000, b"\x1f\x8b junk"))
    headers = [b"Host: 127.0.0.1", b"Content-Length: %d" % len(body)]
    headers += chance.sample(
        (
            b"Content-Type: application/json",
            b"Content-Encoding: gzip",
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
            b"Connection: close",
            b"Origin: http://elsewhere.example",
            b"Authorization: Bearer nothing",
            b"X-Long: " + b"x" * 9000,
        ),
        chance.randrange(4),
    )
    method = chance.choice((b"GET", b"GET", b"POST", b"DELETE", b"PUT", b"HEAD", b"OPTIONS"))
    return b"%b %b HTTP/1.1\r\n%b\r\n\r\n%b" % (method, path, b"\r\n".join(headers), body)


def signed_http(chance: random.Random) -> bytes:
    """Make such a request of a user."""
    shown = base64.b64encode(f"alice:{PASSWORD}".encode())
    return http(chance).replace(b"Host:", b"Authorization: Basic %b\r\nHost:" % shown, 1)


def login() -> bytes:
    """Return a call of thrift that signs in."""
    words = (b"alice", PASSWORD.encode())
    fields = b"".join(
        struct.pack(">bhi", 11, field, len(word)) + word for field, word in enumerate(words, 1)
    )
    content = struct.pack(">HHi", 0x8001, 1, 5) + b"login" + struct.pack(">i", 1) + fields + b"\0"
    return struct.pack(">i", len(content)) + content


SIGN_IN: Final = f"alice {PASSWORD}".encode()
GREETINGS: Final = {
    "memcache": b"set _ 0 0 %d noreply\r\n%b\r\n" % (len(SIGN_IN), SIGN_IN),
    "text": b"auth %b\n" % SIGN_IN,
    "thrift": login(),
    "admin": b"",
}
"""What signs in a connection, by listener."""
CORPORA: Final[dict[str, Corpus]] = {
    "memcache": memcache,
    "text": text,
    "thrift": thrift,
    "admin": http,
}


WAYS: Final = ("open", "nobody", "signed in", "tls", "tls, signed in")


@pytest.fixture(params=WAYS)
def fuzzed(request: pytest.FixtureRequest, tmp_path: Path, listener: str) -> Iterator[Target]:
    """A server that must survive, and then stop when it is told to; its clients as the way says."""
    config, context, greeting, local = CONFIG, None, b"", None
    arguments: tuple[str, ...] = ()
    corpus = CORPORA[listener]
    way: str = request.param
    if way != "open":
        local = tmp_path / "s"
        arguments = ("--memcache-path", str(local))
    if way.startswith("tls"):
        (tmp_path / "certificates").mkdir()
        authority = Authority(tmp_path / "certificates")
        shown, context = authority.server(), authority.client_context()
        config += f'[tls]\ncertificate = "{shown.certificate}"\nkey = "{shown.key}"\n'
    if way not in {"open", "tls"}:
        own = f'admin = true\nunix_user = "{os.getuid()}"'
        config += users_config(alice='read = ["*", "*+*"]\nwrite = ["*", "*+*"]', own=own)
    if way.endswith("signed in"):
        greeting = GREETINGS[listener]
        if listener == "admin":
            corpus = signed_http
    with running_server(tmp_path, *arguments, config=config) as server:
        yield Target(server, listener, corpus, context, greeting, local)
        assert server.stop() == 0
        assert "Traceback" not in server.output


@pytest.mark.parametrize("listener", CORPORA)
def test_hostile_clients_harm_nobody(fuzzed: Target) -> None:
    """A few rounds, the same in every run."""
    fuzz(fuzzed, seed=1, rounds=6 if fuzzed.local is None else 3)


@pytest.mark.soak
@pytest.mark.parametrize("listener", CORPORA)
def test_hostile_clients_harm_nobody_for_long(fuzzed: Target) -> None:
    """For minutes, and others in every run."""
    soak(fuzzed)
