"""The admin listener while the process has no descriptor left for another connection."""

import http.client
import resource
import time
from pathlib import Path

from kestrelmq import Client
from tests.admin.conftest import Admin
from tests.support.patience import PATIENCE

REFUSED = "admin: cannot accept connections: Too many open files"


def test_running_out_of_descriptors_is_logged_now_and_then(admin: Admin) -> None:
    """At most once in ten seconds, however often it is tried; who waited is served later."""
    process = admin.server.process.pid
    with admin.client() as client:
        client.put("jobs", b"x")  # connects, and opens the journal
        soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (_lowest_unused(process), hard))
        begun = time.monotonic()
        # More than one: a descriptor that was in use a moment ago may be free by now.
        waiting = [_asking(admin) for _ in range(4)]
        try:
            _await_refusal(admin, client)
            refusals = admin.server.output.count(REFUSED)
            most = 1 + (time.monotonic() - begun) / 10
        finally:
            resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
        assert 1 <= refusals <= most
        for connection in waiting:
            assert connection.getresponse().status == 200
            connection.close()


def _asking(admin: Admin) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PATIENCE)
    connection.request("GET", "/ping")
    return connection


def _await_refusal(admin: Admin, client: Client) -> None:
    """Wait until a connection could not be accepted, and whatever the server did at that."""
    assert admin.server.logged(REFUSED)
    client.peek("jobs")


def _lowest_unused(process: int) -> int:
    used = {int(entry.name) for entry in Path(f"/proc/{process}/fd").iterdir()}
    return next(number for number in range(len(used) + 1) if number not in used)
