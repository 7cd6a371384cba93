"""The sign-in page of the console, in a real browser."""

from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, expect

from kestrelmq import Client
from tests.e2e.conftest import Console, open_console
from tests.support.server import running_server
from tests.support.users import PASSWORD, users_config

CONFIG: Final = users_config(alice='read = ["work"]\nwrite = ["work"]', root="admin = true")
NEEDED: Final = {
    "Put item": "You may not add to this queue.",
    "Import": "You may not add to this queue.",
    "Move": "You may not read this queue.",
    "Export": "You may not read this queue.",
    "Pause reads": "Only an admin may do this.",
    "Pause writes": "Only an admin may do this.",
    "Flush": "Only an admin may do this.",
    "Delete": "Only an admin may do this.",
}
"""The actions on the page of a queue, and what is said of each to a user who may not."""

pytestmark = pytest.mark.compiled_only


def sign_in(console: Console, user: str, password: str) -> None:
    """Fill in the page."""
    console.page.get_by_label("User", exact=True).fill(user)
    console.page.get_by_label("Password", exact=True).fill(password)
    console.confirm("Sign in")


def sign_out(console: Console) -> None:
    """Press the button, and wait until the page has loaded anew: the next visit aborts its load."""
    console.press("Sign out")
    expect(console.page.get_by_role("dialog")).to_contain_text("Sign in")


def may_use(console: Console, queue: str, allowed: set[str]) -> None:
    """Check which actions on the page of a queue a user may use."""
    page = console.page
    page.goto(f"{console.url}#/queue/{queue}")
    for name in NEEDED:
        button = page.get_by_role("button", name=name, exact=True)
        if name in allowed:
            expect(button).to_be_enabled()
        else:
            expect(button).to_be_disabled()
            expect(button).to_have_attribute("title", NEEDED[name])


def test_signing_in_and_out(browser: Browser, tmp_path: Path) -> None:
    """A wrong password is told; the console then has what the user may see, until it signs out."""
    with running_server(tmp_path, config=CONFIG) as server:
        for console in open_console(browser, server, width=1360, height=900):
            page = console.page
            page.goto(console.url)
            expect(page.get_by_role("dialog")).to_contain_text("Sign in")
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_be_visible()
            assert console.accessibility_problems() == []
            sign_in(console, "alice", "wrong")
            expect(page.get_by_role("alert").first).to_have_text(
                "There is no user with this password."
            )
            sign_in(console, "root", PASSWORD)
            expect(page.locator("#live")).to_have_text("Live")
            for name in ("work", "secret"):
                console.press("New queue")
                page.get_by_label("Name", exact=True).fill(name)
                console.confirm("Create")
                console.expect_toast(f"{name} was created.")
                page.goto(console.url)
                expect(page.locator("#live")).to_have_text("Live")
            expect(page.get_by_role("link", name="secret")).to_be_visible()
            may_use(console, "work", set(NEEDED))
            page.goto(console.url)
            sign_out(console)
            sign_in(console, "alice", PASSWORD)
            expect(page.locator("#live")).to_have_text("Live")
            expect(page.get_by_role("link", name="work")).to_be_visible()
            assert page.get_by_role("link", name="secret").count() == 0
            page.reload()
            expect(page.locator("#live")).to_have_text("Live")
            assert console.accessibility_problems() == []
            may_use(console, "work", {"Put item", "Import", "Move", "Export"})
            assert console.accessibility_problems() == []
            console.picture("user-queue")
            may_use(console, "other", set())
            expect(page.locator(".problem")).to_have_text("user alice may not read other")


def test_what_a_user_may_do_in_the_console(browser: Browser, tmp_path: Path) -> None:
    """A writer who may not read, and a reader; what is only for admins is disabled."""
    config = CONFIG + users_config(
        reader='read = ["work*"]', writer='write = ["work*"]', none='read = ["other"]'
    )
    with running_server(tmp_path, config=config) as server:
        with Client(server.address, user="root", password=PASSWORD) as client:
            client.put("work", b"x")
        for console in open_console(browser, server, width=1360, height=900):
            page = console.page
            for user, allowed in (
                ("reader", {"Move", "Export"}),
                ("writer", {"Put item", "Import"}),
                ("none", set()),
            ):
                page.goto(console.url)
                sign_in(console, user, PASSWORD)
                expect(page.locator("#live")).to_have_text("Live")
                new = page.get_by_role("button", name="New queue")
                expect(new).to_be_enabled(enabled=user == "writer")
                expect(page.get_by_role("link", name="Clients", exact=True)).to_be_hidden()
                expect(page.locator("#status")).to_be_disabled()
                may_use(console, "work", allowed)
                page.goto(f"{console.url}#/server")
                expect(page.get_by_role("button", name="Reload configuration")).to_be_disabled()
                console.picture(f"{user}-server")
                sign_out(console)
