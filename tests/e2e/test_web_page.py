"""A web page that a person happens to open: it must not be able to command the person's server.

The page is one of another origin. It sends what a browser lets any page send without asking: simple
requests whose body it chooses freely.
"""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page

from kestrelmq import Client
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

TEXT = "\nput injected:\nx\n\n\nstatus quiescent\n\nflush kept\n\nshutdown\n"
MEMCACHE = "\r\nset injected 0 0 1\r\nx\r\nflush kept\r\nflush_all\r\nshutdown\r\n"

ATTACK = """async ([port, body]) => {
    const url = `http://127.0.0.1:${port}/`;
    const simple = {mode: "no-cors", method: "POST", body};
    const form = new FormData();
    form.append("a", body);
    const requests = [
        fetch(url, simple),
        fetch(url + "?" + "x".repeat(20000), simple),
        fetch(url, {...simple, headers: {"Content-Type": "text/plain"}}),
        fetch(url, {...simple, body: form}),
        fetch(url, {mode: "no-cors"}),
        fetch(url, {mode: "no-cors", method: "HEAD"}),
        fetch(url, {method: "PUT", body}),
        fetch(url, {method: "DELETE"}),
    ];
    navigator.sendBeacon(url, body);
    return (await Promise.allSettled(requests)).map(outcome => outcome.status);
}"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Elsewhere</title>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # as its base class
        pass


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page that some other server gave."""
    elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = Thread(target=elsewhere.serve_forever)
    thread.start()
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"http://localhost:{elsewhere.server_port}/")
        yield page
    finally:
        context.close()
        elsewhere.shutdown()
        thread.join()
        elsewhere.server_close()


@pytest.fixture(params=["kestrel", "memcached"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of either dialect."""
    with running_server(tmp_path, config=f'memcache_dialect = "{request.param}"\n') as server:
        yield server


@pytest.mark.parametrize("listener", ["text", "memcache", "thrift"])
def test_a_web_page_commands_nothing(either: ServerProcess, page: Page, listener: str) -> None:
    """Nothing is stored or dropped, and the server does not stop; its own clients are served."""
    with Client(either.address) as client:
        client.put("kept", b"item")
        before = client.stats()[either.address]
        body = TEXT if listener == "text" else MEMCACHE
        outcomes = page.evaluate(ATTACK, [either.ports[listener], body])
        assert outcomes == ["rejected"] * len(outcomes)
        after = client.stats()[either.address]
        # The requests did reach the server.
        reached = int(after["total_connections"]) - int(before["total_connections"])
        assert reached >= len(outcomes)
        assert {queue.name: queue.items for queue in client.queues()} == {"kept": 1}
        assert client.status() == {either.address: "UP"}
        assert client.get("kept") == b"item"
        assert either.process.poll() is None
