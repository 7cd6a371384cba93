"""A headless Chromium with an empty profile, and the console of a real server in it."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kestrelmq import Client
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

HERE: Final = Path(__file__).parent
SCREENSHOTS: Final = HERE / "screenshots"
_AXE: Final = HERE / "node_modules" / "axe-core" / "axe.min.js"
_FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_PATIENCE: Final = PATIENCE * 1000
"""The same in milliseconds, as the browser counts."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module's tests; each test has a profile of its own.

    While it is there its loop runs in this thread, where other tests run theirs.
    """
    expect.set_options(timeout=_PATIENCE)
    path = shutil.which("chromium")
    assert path is not None, "chromium is not installed; make test installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=_FLAGS)
        yield browser
        browser.close()


class Console:
    """The console of a server, as a person sees it.

    Attributes:
        page: the browser's page.
        server: the server.
        errors: what went wrong in the page; a test that ends with any has failed.
        asked: every address that the page asked for.
    """

    def __init__(self, page: Page, server: ServerProcess) -> None:
        self.page = page
        self.server = server
        self.errors: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(_PATIENCE)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    @property
    def url(self) -> str:
        """Where the console is."""
        return f"http://127.0.0.1:{self.server.ports['admin']}/"

    def open(self, place: str = "") -> None:
        """Go to a page of the console and wait until it is live."""
        self.page.goto(self.url + place)
        expect(self.page.locator("#live")).to_have_text("Live")

    def client(self) -> Client:
        """Return a memcache client of the server."""
        return Client(self.server.address)

    def press(self, name: str) -> None:
        """Press the button of that name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def confirm(self, label: str) -> None:
        """Press the button that confirms, in the dialog."""
        self.page.get_by_role("dialog").get_by_role("button", name=label, exact=True).click()

    def expect_toast(self, text: str | re.Pattern[str]) -> None:
        """Wait until the console says `text` in passing."""
        expect(self.page.locator("#toasts")).to_contain_text(text)

    def picture(self, name: str, *, full: bool = True) -> None:
        """Leave a screenshot for people to look at, if they have made the folder for it."""
        if SCREENSHOTS.is_dir():
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=full)

    def accessibility_problems(self) -> list[str]:
        """Return what axe-core finds wrong with the page as it is now."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE.read_text())
        # What is right is not told: to describe it takes several times as long as to find it.
        violations: list[dict[str, Any]] = self.page.evaluate(
            "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
        )
        return [
            f"{violation['id']}: {node['html'][:120]}: {node['failureSummary']}"
            for violation in violations
            for node in violation["nodes"]
        ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server as it comes."""
    with running_server(tmp_path) as server:
        yield server


@pytest.fixture
def console(browser: Browser, server: ServerProcess) -> Iterator[Console]:
    """The console of `server` on a desk's screen."""
    yield from open_console(browser, server, width=1360, height=900)


def open_console(
    browser: Browser, server: ServerProcess, *, width: int, height: int, **options: Any
) -> Iterator[Console]:
    """Yield a console in a new profile, and fail if the page had errors."""
    # A light that pulses would have the browser draw the page all the time.
    context = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce", **options
    )
    console = Console(context.new_page(), server)
    try:
        yield console
        assert console.errors == []
    finally:
        context.close()
