"""The console in a real browser: each page and each action."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from kestrelmq import Client
from kestrelmq.errors import ConnectionLost, KestrelError, LeaseEnded
from kestrelmq.version import BUILD, VERSION
from tests.e2e.conftest import Console, open_console
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, wait_for

TOKEN = "0123456789abcdef-token"  # noqa: S105 # of a server that lives for one test


def fill(console: Console) -> None:
    """Give the server something to show."""
    with console.client() as client:
        for number in range(12):
            body = json.dumps({"order": number, "customer": "Zoë", "lines": [1, 2]})
            client.put("orders", body.encode())
        client.put("email", b"hello")
        client.put("thumbnails", b"\x00\x01\x02binary\xff")


def depth_of(console: Console, name: str) -> str:
    """Return the depth that the table shows for a queue."""
    row = console.page.get_by_role("row").filter(has=console.page.get_by_role("link", name=name))
    return row.locator(".items b").inner_text()


def names_shown(console: Console) -> list[str]:
    """Return the names of the rows in sight, in the order in which they are shown."""
    rows = console.page.locator(".space .row:not([hidden])")
    pairs = rows.evaluate_all(
        "rows => rows.map(row => [+row.ariaRowIndex, row.querySelector('.name').innerText])"
    )
    return [name for _, name in sorted(pairs)]


def test_queues_are_listed_and_live(console: Console) -> None:
    """What is put while the page is open shows up by itself."""
    fill(console)
    console.open()
    expect(console.page.get_by_role("link", name="orders")).to_be_visible()
    assert depth_of(console, "orders") == "12"
    with console.client() as client:
        client.put("orders", b"one more")
        client.put("brand-new", b"x")
    expect(console.page.get_by_role("link", name="brand-new")).to_be_visible()
    assert depth_of(console, "orders") == "13"
    expect(console.page.get_by_label("Waiting", exact=True).locator("strong")).to_have_text("16")
    console.picture("queues")


def test_a_queue_that_goes_leaves_the_list(console: Console) -> None:
    """What is deleted elsewhere disappears."""
    fill(console)
    console.open()
    expect(console.page.get_by_role("link", name="email")).to_be_visible()
    with console.client() as client:
        client.delete("email")
    expect(console.page.get_by_role("link", name="email")).to_have_count(0)


def test_filter_choices_and_sorting(console: Console) -> None:
    """The list can be narrowed by name and state, and sorted by any column."""
    fill(console)
    with console.client() as client:
        client.get("email")
    console.open()
    expect(console.page.locator(".found")).to_have_text("3 queues")
    assert names_shown(console) == ["orders", "thumbnails", "email"]
    console.page.get_by_role("columnheader", name="Queue").get_by_role("button").click()
    header = console.page.get_by_role("columnheader", name="Queue")
    expect(header).to_have_attribute("aria-sort", "ascending")
    assert names_shown(console) == ["email", "orders", "thumbnails"]
    console.press("Not empty")
    expect(console.page.locator(".found")).to_have_text("2 of 3 queues")
    console.press("Problems")
    expect(console.page.locator(".empty")).to_have_text("No queue fits the filter.")
    console.press("All")
    console.page.get_by_label("Filter queues by name").fill("THUMB")
    expect(console.page.locator(".found")).to_have_text("1 of 3 queues")


def test_the_list_is_in_the_address(console: Console) -> None:
    """Filter, choice, sorting and place come back with it, and with Back; nonsense is ignored."""
    with console.client() as client:
        for number in range(200):
            client.put(f"queue-{number:03}", b"x")
    console.open("#/?filter=queue-0&only=waiting&sort=name&order=descending")
    expect(console.page.locator(".found")).to_have_text("100 of 200 queues")
    assert names_shown(console)[0] == "queue-099"
    expect(console.page.get_by_label("Filter queues by name")).to_have_value("queue-0")
    header = console.page.get_by_role("columnheader", name="Queue")
    expect(header).to_have_attribute("aria-sort", "descending")
    console.page.locator(".scroller").evaluate("one => { one.scrollTop = 60 * 44; }")
    expect(console.page).to_have_url(re.compile(r"row=60$"))
    shared = console.page.url
    console.page.get_by_role("link", name="queue-039").click()
    expect(console.page.get_by_role("heading", name="queue-039", level=1)).to_be_visible()
    console.page.go_back()
    expect(console.page).to_have_url(shared)
    for again in (lambda: None, console.page.reload):
        again()
        top = console.page.get_by_role("link", name="queue-039")
        expect(top).to_be_in_viewport()
        assert console.page.locator(".scroller").evaluate("one => one.scrollTop") == 60 * 44
    console.page.get_by_label("Filter queues by name").fill("queue-1")
    console.press("All")
    header.get_by_role("button").click()
    expect(console.page).to_have_url(re.compile(r"#/\?filter=queue-1&sort=name&order=ascending$"))
    console.open("#/?sort=nonsense&order=x&only=y&row=-7")
    expect(console.page.locator(".found")).to_have_text("200 queues")
    expect(console.page).to_have_url(console.url + "#/")


def test_a_queue_that_refuses_says_so(browser: Browser, tmp_path: Path) -> None:
    """In the list, first, with the reason; on its page; and not when it takes items again."""
    config = """[queues.items]
max_items = 1
[queues.bytes]
max_size = "1 B"
[queues.dropping]
max_items = 1
discard_old_when_full = true
"""
    with running_server(tmp_path, config=config) as server:
        for console in open_console(browser, server, width=1360, height=900):
            fill(console)
            with console.client() as client:
                for name in ("items", "bytes", "dropping"):
                    client.put(name, b"x")
            console.open()
            expect(console.page.locator(".found")).to_have_text("6 queues")
            assert sorted(names_shown(console)[:2]) == ["bytes", "items"]
            row = console.page.get_by_role("row")
            for name in ("items", "bytes"):
                full = row.filter(has=console.page.get_by_role("link", name=name, exact=True))
                badge = full.locator(".badge.full")
                expect(badge).to_have_text("full")
                expect(badge).to_have_attribute("title", re.compile("it refuses items"))
            dropping = row.filter(has=console.page.get_by_role("link", name="dropping"))
            expect(dropping.locator(".badge.ok")).to_be_hidden()
            console.press("Problems")
            expect(console.page.locator(".found")).to_have_text("2 of 6 queues")
            console.picture("full")
            assert console.accessibility_problems() == []
            console.open("#/queue/items")
            expect(console.page.get_by_role("alert").last).to_contain_text(
                "most items, and refuses"
            )
            with console.client() as client:
                client.get("items")
            expect(console.page.locator(".queue-head .badge.ok")).to_have_text("ok")
            expect(console.page.locator(".problem")).to_be_hidden()


def test_the_keyboard_suffices(console: Console) -> None:
    """Filter, walk the rows, open one, and come back, without a mouse."""
    fill(console)
    console.open()
    keyboard = console.page.keyboard
    expect(console.page.get_by_role("link", name="orders")).to_be_visible()
    keyboard.press("/")
    expect(console.page.get_by_label("Filter queues by name")).to_be_focused()
    console.page.get_by_role("link", name="orders").focus()
    keyboard.press("ArrowDown")
    focused = console.page.evaluate("document.activeElement.innerText")
    keyboard.press("End")
    keyboard.press("Home")
    expect(console.page.get_by_role("link", name="orders")).to_be_focused()
    assert focused in {"email", "thumbnails"}
    keyboard.press("Enter")
    expect(console.page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    expect(console.page.locator("main")).to_be_focused()


def test_the_tab_key_follows_the_rows_as_they_are_seen(console: Console) -> None:
    """Also after the order has changed, with the focus in the rows too."""
    fill(console)
    with console.client() as client:
        client.put_many("zebra", [b"x"] * 20)
    console.open()
    expect(console.page.get_by_role("link", name="orders")).to_be_visible()
    keyboard = console.page.keyboard
    name = "document.activeElement.innerText"
    header = console.page.get_by_role("columnheader", name="Queue").get_by_role("button")
    for order in (
        ["email", "orders", "thumbnails", "zebra"],
        ["zebra", "thumbnails", "orders", "email"],
    ):
        header.click()
        assert names_shown(console) == order
        console.page.get_by_role("link", name=order[0]).focus()
        seen = [console.page.evaluate(name)]
        for _ in order[1:]:
            keyboard.press("Tab")
            seen.append(console.page.evaluate(name))
        assert seen == order
    console.page.get_by_label("Filter queues by name").fill("e")
    console.page.get_by_role("link", name="email").focus()
    keyboard.press("Shift+Tab")
    assert console.page.evaluate(name) == "orders"


def test_a_queue_that_is_not_there_can_only_be_made(console: Console) -> None:
    """Its page says so, shows nothing else, and takes a first item."""
    console.open("#/queue/fresh")
    expect(console.page.get_by_role("alert")).to_contain_text("There is no queue fresh.")
    for name, ready in (("Put item", True), ("Import", True), ("Flush", False), ("Delete", False)):
        button = console.page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_enabled(enabled=ready)
    expect(console.page.get_by_role("heading", name="Journal")).to_be_hidden()
    console.press("Put item")
    console.confirm("Put")
    expect(console.page.get_by_role("heading", name="Journal")).to_be_visible()
    expect(console.page.get_by_role("button", name="Flush")).to_be_enabled()
    with console.client() as client:
        client.delete("fresh")
    expect(console.page.get_by_role("alert")).to_contain_text("There is no queue fresh.")


def test_thousands_of_queues_are_a_handful_of_rows(console: Console) -> None:
    """Only rows in sight exist; the last queue is reached by scrolling."""
    with console.client() as client:
        for number in range(3000):
            client.put(f"queue-{number:04d}", b"x")
    console.open()
    expect(console.page.locator(".found")).to_have_text("3,000 queues")
    console.page.get_by_role("columnheader", name="Queue").get_by_role("button").click()
    console.page.evaluate("document.querySelector('.scroller').scrollTop = 1e9")
    expect(console.page.get_by_role("link", name="queue-2999")).to_be_visible()
    assert console.page.locator(".space .row").count() < 60
    table = console.page.get_by_role("table", name="Queues")
    expect(table).to_have_attribute("aria-rowcount", "3001")


def test_a_queue_is_created(console: Console) -> None:
    """The dialog takes a name and leads to the new queue."""
    console.open()
    console.press("New queue")
    console.page.get_by_label("Name", exact=True).fill("fresh")
    console.confirm("Create")
    expect(console.page.get_by_role("heading", name="fresh", level=1)).to_be_visible()
    console.expect_toast("fresh was created.")


def test_a_queue_is_created_with_settings_of_its_own(console: Console) -> None:
    """What is not given is inherited."""
    console.open()
    console.press("New queue")
    console.page.get_by_label("Name", exact=True).fill("replies")
    console.page.get_by_text("Settings of its own").click()
    console.page.get_by_label("Most items").fill("7")
    console.page.get_by_label("Items expire after (seconds)").fill("60")
    console.page.get_by_label("Deleted when empty, after (seconds)").fill("600")
    console.page.get_by_label("Only its fanout children").check()
    console.page.get_by_label("No journal").check()
    assert "\n".join(console.accessibility_problems()) == ""
    console.confirm("Create")
    console.expect_toast("replies was created.")
    console.page.get_by_text("Settings in force").click()
    settings = console.page.locator("details", has_text="Settings in force")
    for setting in ("max_items7", "max_age1m", "max_queue_age10m", "keep_journalfalse"):
        expect(settings).to_contain_text(setting)
    expect(settings).to_contain_text("fanout_onlytrue")
    expect(settings).to_contain_text("max_sizeunlimited")


def test_a_queue_page_tells_everything(console: Console) -> None:
    """Charts, facts, fanout, journal and settings of one queue."""
    console.open()
    with console.client() as client:
        client.put("orders+audit", b"direct")
    fill(console)
    console.open("#/queue/orders")
    page = console.page
    chart = page.get_by_role("img", name=re.compile("^Depth, last 5 minutes. items: now 12"))
    expect(chart).to_be_visible()
    chart.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip").first).to_contain_text("items 12")
    expect(page.get_by_role("region", name="Fanout")).to_contain_text("orders+audit")
    expect(page.get_by_role("table", name="Journal files")).to_contain_text("orders")
    page.get_by_text("All statistics").click()
    expect(page.get_by_text("total_flushes")).to_be_visible()
    page.get_by_text("Settings in force").click()
    settings = page.locator("details").filter(has_text="Settings in force")
    expect(settings.get_by_text("max_memory_size")).to_be_visible()
    console.picture("queue")
    page.get_by_role("link", name="orders+audit").click()
    expect(page.get_by_role("heading", name="orders+audit", level=1)).to_be_visible()


def test_the_charts_reach_back(console: Console) -> None:
    """Five minutes, an hour or a day: chosen with a button, and kept in the address."""
    fill(console)
    console.open("#/queue/orders")
    depth = console.page.get_by_role("img", name="Depth, last 5 minutes. items: now 12")
    expect(depth).to_be_visible()
    for label, last, mark in (("Hour", "hour", "\u221250 min"), ("Day", "day", "\u221220 h")):
        console.press(label)
        chart = console.page.get_by_role("img", name=f"Depth, last {last}. items: now 12")
        expect(chart).to_be_visible()
        expect(chart.get_by_text(mark)).to_be_visible()
        expect(console.page).to_have_url(re.compile(rf"#/queue/orders\?range={last}$"))
        assert console.accessibility_problems() == []
    console.picture("day")
    console.page.reload()
    expect(console.page.get_by_role("button", name="Day")).to_have_attribute("aria-pressed", "true")
    console.press("5 minutes")
    expect(console.page).to_have_url(re.compile("#/queue/orders$"))
    console.open("#/queue/orders?range=century")
    expect(depth).to_be_visible()


def test_a_queue_is_paused_and_resumed(console: Console) -> None:
    """Pausing asks first and holds for clients; the page and the list say what is paused."""
    fill(console)
    console.open("#/queue/email")
    console.press("Pause reads")
    dialog = console.page.get_by_role("dialog", name="Pause reads of email?")
    expect(dialog).to_contain_text("Readers will find the queue empty")
    console.confirm("Cancel")
    with console.client() as client:
        assert client.peek("email") == b"hello"
        console.press("Pause reads")
        console.confirm("Pause reads")
        console.expect_toast("Reads of email are paused.")
        expect(console.page.locator(".queue-head .paused")).to_have_text("reads paused")
        assert client.get("email") is None
        console.press("Pause writes")
        console.confirm("Pause writes")
        expect(console.page.locator(".queue-head .paused")).to_have_text("paused")
        console.picture("paused")
        console.press("Resume reads")
        expect(console.page.locator(".queue-head .paused")).to_have_text("writes paused")
        assert client.get("email") == b"hello"
        console.open()
        row = console.page.get_by_role("row").filter(has_text="email")
        expect(row.locator(".badge.paused")).to_have_text("writes paused")


def test_queues_that_need_care_are_first(browser: Browser, tmp_path: Path) -> None:
    """Damaged queues come first and then paused ones, whatever the order of the others."""
    (tmp_path / "queues").mkdir()
    for name in ("zz-damaged", "mm-damaged"):
        (tmp_path / "queues" / name).write_bytes(b"\x55garbage")
    with running_server(tmp_path) as server:
        for console in open_console(browser, server, width=1360, height=900):
            fill(console)
            with console.client() as client:
                client.put("paused", b"x")
                client.pause("paused")
            console.open()
            expect(console.page.locator(".found")).to_have_text("6 queues")
            first = ["mm-damaged", "zz-damaged", "paused"]
            assert names_shown(console) == [*first, "orders", "email", "thumbnails"]
            console.picture("care")
            header = console.page.get_by_role("columnheader", name="Queue").get_by_role("button")
            header.click()
            assert names_shown(console) == [*first, "email", "orders", "thumbnails"]
            header.click()
            descending = ["zz-damaged", "mm-damaged", "paused", "thumbnails", "orders", "email"]
            assert names_shown(console) == descending
            console.press("Problems")
            expect(console.page.locator(".found")).to_have_text("3 of 6 queues")


def test_dead_letters_are_redriven(browser: Browser, tmp_path: Path) -> None:
    """A queue and its dead-letter queue link to each other; one button moves the items back."""
    config = """
[queues.orders]
max_deliveries = 1
dead_letter_queue = "failed"
[queues.email]
dead_letter_queue = "failed"
"""
    with running_server(tmp_path, config=config) as server:
        for console in open_console(browser, server, width=1360, height=900):
            fill(console)
            with console.client() as client:
                for _ in range(3):
                    with suppress(ZeroDivisionError), client.reserve("orders"):
                        raise ZeroDivisionError
            console.open("#/queue/orders")
            panel = console.page.get_by_role("region", name="Dead letters", exact=True)
            expect(panel).to_contain_text("after 1 delivery; 3 items since the start")
            expect(panel.get_by_role("row").nth(1)).to_contain_text("failed3")
            console.picture("dead-letters")
            panel.get_by_role("link", name="failed").click()
            expect(panel).to_contain_text("The dead letters of these queues come here.")
            console.picture("dead-letter-queue")
            expect(console.page.locator(".facts").first).to_contain_text(
                "from orders, 1 delivery, "
            )
            expect(console.page.locator(".facts").first).to_contain_text("ago: it was released")
            panel.get_by_role("button", name="Redrive failed").click()
            dialog = console.page.get_by_role("dialog", name="Redrive failed?")
            expect(dialog).to_contain_text("3 items of failed will be added to the queues")
            console.confirm("Redrive failed")
            console.expect_toast("3 items of failed moved back.")
            button = panel.get_by_role("button", name="Redrive failed")
            expect(button).to_be_disabled()
            with console.client() as client:
                assert {queue.name: queue.items for queue in client.queues()}["orders"] == 12


def test_limits_and_refusals_are_shown(browser: Browser, tmp_path: Path) -> None:
    """Each limit beside what there is now, and how often each reason refused something."""
    config = '[queues.small]\nmax_items = 2\nmax_item_size = "1 KiB"\n'
    with running_server(tmp_path, config=config) as server:
        for console in open_console(browser, server, width=1360, height=900):
            with console.client() as client:
                client.put("plain", b"x")
                for item in (b"one", b"two", b"three", b"four", bytes(2000)):
                    with suppress(KestrelError):
                        client.put("small", item)
                client.pause("small", "writes")
                with suppress(KestrelError):
                    client.put("small", b"x")
            console.open("#/queue/small")
            limits = console.page.get_by_role("table", name="Limits", exact=True)
            expect(limits.get_by_role("row", name="Items 2 2")).to_be_visible()
            expect(
                limits.get_by_role("row", name=re.compile("^One item . 1.0 KiB"))
            ).to_be_visible()
            refusals = console.page.get_by_role("table", name="Refusals", exact=True)
            for reason in ("too large 1", "had its most items 2", "were paused 1"):
                expect(refusals.get_by_role("row", name=reason)).to_be_visible()
            console.picture("refusals")
            console.open("#/queue/plain")
            panel = console.page.get_by_role("region", name="Limits and refusals", exact=True)
            expect(panel).to_contain_text("Nothing has been refused since the start.")


def test_items_as_text_json_and_hex(console: Console) -> None:
    """An item is shown in three ways, and stays where it is."""
    fill(console)
    console.open("#/queue/orders")
    first = console.page.get_by_label("Item 0")
    expect(first).to_contain_text('"customer": "Zoë"')
    console.press("Text")
    expect(first).to_have_text('{"order": 0, "customer": "Zo\\u00eb", "lines": [1, 2]}')
    console.press("Hex")
    expect(first).to_contain_text("000000  7b 22 6f 72 64 65 72 22")
    console.page.goto(console.url + "#/queue/thumbnails")
    console.press("Hex")
    expect(console.page.get_by_label("Item 0")).to_contain_text("00 01 02 62 69 6e 61 72")
    console.picture("hex")
    with console.client() as client:
        assert client.peek("thumbnails") == b"\x00\x01\x02binary\xff"


def test_items_are_browsed_and_searched(console: Console) -> None:
    """Pages go on and back; a search finds text or a pattern wherever it is in the queue."""
    with console.client() as client:
        client.put_many("orders", [f"order {number}".encode() for number in range(45)])
    console.open("#/queue/orders")
    items = console.page.get_by_role("region", name="Items", exact=True)
    expect(items.get_by_text("Items #0 to #19 of 45 items")).to_be_visible()
    expect(items.get_by_role("button", name="Back")).to_be_disabled()
    console.press("Next")
    expect(console.page.get_by_label("Item 20")).to_have_text("order 20")
    console.press("Next")
    expect(items.get_by_text("Items #40 to #44 of 45 items")).to_be_visible()
    expect(items.get_by_role("button", name="Next")).to_be_disabled()
    expect(items.get_by_role("button", name="Back")).to_be_focused()
    console.press("Back")
    expect(items.get_by_text("Items #20 to #39 of 45 items")).to_be_visible()
    search = items.get_by_label("Search items")
    search.fill("order 4")
    search.press("Enter")
    expect(items.get_by_text("6 items found in #0 to #44 of 45 items")).to_be_visible()
    expect(console.page.get_by_label("Item 44")).to_have_text("order 44")
    console.picture("search")
    items.get_by_label("Search for", exact=True).select_option("Regular expression")
    search.fill("[13]7$")
    console.press("Search")
    expect(items.get_by_text("2 items found in #0")).to_be_visible()
    search.fill("[")
    console.press("Search")
    expect(items.get_by_role("status")).to_contain_text("no regular expression")
    expect(items.get_by_role("listitem")).to_have_count(0)


def test_what_a_queue_holds_is_never_markup(console: Console) -> None:
    """Names and items that look like HTML are shown, not run."""
    attack = "<img/src=x/onerror=document.title='owned'>"
    name = "<b>bold<b>".replace("/", "")
    with console.client() as client:
        client.put(name, attack.encode())
    console.open()
    expect(console.page.get_by_role("link", name=name)).to_be_visible()
    console.page.get_by_role("link", name=name).click()
    expect(console.page.get_by_label("Item 0")).to_have_text(attack)
    assert "owned" not in console.page.title()


def test_a_name_does_not_turn_the_text_around_it(console: Console) -> None:
    """Marks that change the direction of text are shown in sentences, and end with a link."""
    name = "jobs+\u2069\u202echild"
    with console.client() as client:
        client.put(name, b"x")
        client.put("jobs", b"y")
    console.open("#/queue/jobs")
    fanout = console.page.get_by_label("Fanout")
    link = fanout.get_by_role("link").bounding_box()
    count = fanout.get_by_text("2 items").bounding_box()
    assert link is not None
    assert count is not None
    assert count["x"] >= link["x"] + link["width"] - 1
    fanout.get_by_role("link").click()
    expect(console.page.get_by_role("heading", name=name)).to_be_visible()
    console.press("Flush")
    shown = "jobs+\\u2069\\u202echild"
    expect(console.page.get_by_role("dialog")).to_contain_text(f"Flush {shown}?")
    console.press(f"Flush {shown}")
    console.expect_toast(f"2 items of {shown} dropped.")


def test_an_item_is_put(console: Console) -> None:
    """The dialog's text arrives, with its expiry."""
    console.open("#/queue/work")
    console.press("Put item")
    console.page.get_by_label("Item", exact=True).fill("from the console")
    console.page.get_by_label("Expires in (seconds)").fill("600")
    console.confirm("Put")
    console.expect_toast("16 bytes put on work.")
    expect(console.page.get_by_label("Item 0")).to_have_text("from the console")
    expect(console.page.locator(".facts")).to_contain_text(re.compile("expires in (9|10) m"))
    with console.client() as client:
        assert client.get("work") == b"from the console"


def test_an_item_is_put_with_a_delay(console: Console) -> None:
    """It does not wait in the queue before its time."""
    console.open("#/queue/work")
    console.press("Put item")
    console.page.get_by_label("Item", exact=True).fill("later")
    console.page.get_by_label("Delay (seconds)").fill("3600")
    console.confirm("Put")
    console.expect_toast("5 bytes put on work.")
    with console.client() as client:
        assert client.get("work") is None
        assert [one.values["delayed"] for one in client.queues("work")] == [1]


def test_items_are_moved_and_copied(console: Console) -> None:
    """To another queue, some or all; it says why it ended early."""
    with console.client() as client:
        client.put_many("work", [b"1", b"2", b"3"])
        client.declare("small", max_items=1)
    console.open("#/queue/work")
    console.press("Move")
    console.page.get_by_label("To the queue").fill("later")
    console.page.get_by_label("How many of the first items").fill("2")
    console.confirm("Do it")
    console.expect_toast("2 items of work moved to later.")
    console.press("Move")
    console.page.get_by_label("Move or copy", exact=True).select_option("copy")
    console.page.get_by_label("To the queue").fill("later")
    console.confirm("Do it")
    console.expect_toast("1 item of work copied to later.")
    console.open("#/queue/later")
    console.press("Move")
    console.page.get_by_label("To the queue").fill("small")
    console.confirm("Do it")
    console.expect_toast("1 item of later moved to small. It ended early: small is full")
    with console.client() as client:
        assert [client.get("later") for _ in range(3)] == [b"2", b"3", None]
        assert client.get("work") == b"3"


def test_items_are_exported_and_imported(console: Console, tmp_path: Path) -> None:
    """As a file, with any bytes; what is wrong with a file is told."""
    items = [b"one", bytes(range(256)), "\u00e9".encode()]
    with console.client() as client:
        client.put_many("work", items)
    console.open("#/queue/work")
    with console.page.expect_download() as download:
        console.press("Export")
    assert download.value.suggested_filename == "work.jsonl"
    file = tmp_path / "saved.jsonl"
    download.value.save_as(file)
    console.open("#/queue/other")
    console.press("Import")
    console.page.get_by_label("File of JSON lines").set_input_files(file)
    console.confirm("Import")
    console.expect_toast("3 items of saved.jsonl put on other.")
    with console.client() as client:
        assert [client.get("other") for _ in range(4)] == [*items, None]
    file.write_text('{"data": "x"}\nwrong\n')
    console.press("Import")
    console.page.get_by_label("File of JSON lines").set_input_files(file)
    console.confirm("Import")
    console.expect_toast(re.compile("line 2: not a row of an export.*; 1 items added"))


def test_flushing_asks_first(console: Console) -> None:
    """The question names the queue; no means no."""
    fill(console)
    console.open("#/queue/orders")
    expect(console.page.get_by_label("Item 0")).to_be_visible()
    console.press("Flush")
    dialog = console.page.get_by_role("dialog", name="Flush orders?")
    expect(dialog).to_contain_text("12 waiting items of orders will be lost.")
    console.picture("confirmation", full=False)
    console.confirm("Cancel")
    with console.client() as client:
        assert client.peek("orders") is not None
    console.press("Flush")
    expect(dialog).to_be_visible()
    console.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    console.press("Flush")
    console.confirm("Flush orders")
    console.expect_toast("12 items of orders dropped.")
    with console.client() as client:
        assert client.peek("orders") is None


def test_deleting_asks_first(console: Console) -> None:
    """All that is lost is counted; a deleted queue is gone, and the console is back at the list."""
    fill(console)
    with console.client() as client, client.reserve("orders"):
        client.put("orders", b"x", delay=3600)
        console.open("#/queue/orders")
        expect(console.page.locator(".queue-facts")).to_contain_text("11 items · 1 delayed")
        console.press("Delete")
        dialog = console.page.get_by_role("dialog", name="Delete orders?")
        lost = "with 11 waiting items, 1 delayed item and 1 open read."
        expect(dialog).to_contain_text(lost)
        console.confirm("Cancel")
        console.press("Flush")
        dialog = console.page.get_by_role("dialog", name="Flush orders?")
        expect(dialog).to_contain_text("11 waiting items and 1 delayed item of orders")
        console.confirm("Cancel")
    console.press("Delete")
    console.confirm("Delete orders")
    console.expect_toast("orders was deleted.")
    expect(console.page.get_by_role("link", name="email")).to_be_visible()
    expect(console.page.get_by_role("link", name="orders")).to_have_count(0)
    assert not (console.server.queue_path / "orders").exists()


def test_an_open_read_is_requeued(console: Console) -> None:
    """Open reads are listed; one goes back to the head after a question."""
    fill(console)
    lost = pytest.raises(LeaseEnded)
    with console.client() as client, lost, client.reserve("email") as item:
        assert item == b"hello"
        console.open("#/queue/email")
        console.page.get_by_role("button", name=re.compile("^Requeue read")).click()
        expect(console.page.get_by_role("dialog")).to_contain_text("1 item of email will go back")
        console.confirm("Requeue on email")
        console.expect_toast("1 item back in email.")
        expect(console.page.get_by_label("Item 0")).to_have_text("hello")
    expect(console.page.get_by_text("came back 1 time")).to_be_visible()


def test_all_open_reads_are_requeued(console: Console) -> None:
    """One button gives all of them back."""
    fill(console)
    lost = pytest.raises(LeaseEnded)
    with console.client() as client, lost, client.reserve("orders"), client.reserve("orders"):
        console.open("#/queue/orders")
        reads = console.page.get_by_role("table", name="Open reads")
        expect(reads).to_be_visible()
        held_by = re.compile("^owner .+, 127.0.0.1:[0-9]+, until ")
        expect(reads.get_by_text(held_by)).to_have_count(2)
        console.picture("open-reads")
        console.press("Requeue all")
        console.confirm("Requeue on orders")
        console.expect_toast("2 items back in orders.")


def test_the_status_is_switched(console: Console) -> None:
    """The switch asks, sets, and shows what is in force."""
    console.open()
    switch = console.page.get_by_label("Server status")
    switch.select_option("READONLY")
    expect(console.page.get_by_role("dialog")).to_contain_text("deleting are refused")
    console.confirm("Cancel")
    expect(switch).to_have_value("UP")
    switch.select_option("READONLY")
    console.confirm("Set to Read only")
    console.expect_toast("The status is Read only.")
    with console.client() as client:
        assert set(client.status().values()) == {"READONLY"}
    console.open("#/queue/work")
    console.press("Put item")
    console.page.get_by_label("Item", exact=True).fill("x")
    console.confirm("Put")
    dialog = console.page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_have_text("the server is read-only: it takes no writes")
    expect(console.page.get_by_label("Item", exact=True)).to_have_value("x")
    with console.client() as client:
        client.set_status("up")
    console.confirm("Put")
    console.expect_toast("1 byte put on work.")


def test_the_server_page(browser: Browser, tmp_path: Path) -> None:
    """Statistics, damaged queues and the configuration, which can be reloaded."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "old-archive").write_bytes(b"\x55garbage")
    with running_server(tmp_path, config="[default]\nmax_items = 77\n") as server:
        for console in open_console(browser, server, width=1360, height=900):
            console.open("#/server")
            damaged = console.page.get_by_role("region", name="Damaged queues")
            expect(damaged).to_contain_text("damaged at byte 0")
            config = console.page.get_by_label("Configuration in force")
            expect(config).to_contain_text('"max_items": 77')
            expect(console.page.get_by_text(f"kestrelmq {VERSION} ({BUILD}), UP")).to_be_visible()
            console.picture("server")
            (tmp_path / "kestrelmq.toml").write_text("[default]\nmax_items = 78\n")
            console.press("Reload configuration")
            console.confirm("Reload")
            expect(config).to_contain_text('"max_items": 78')
            console.open("#/queue/old-archive")
            expect(console.page.get_by_role("alert")).to_contain_text("damaged at byte 0")
            expect(console.page.get_by_role("alert")).to_contain_text("kestrelmq journal repair")
            for button in console.page.locator(".actions button").all():
                expect(button).to_be_disabled()
            for unknown in ("Items", "Journal"):
                expect(console.page.get_by_role("heading", name=unknown)).to_be_hidden()
            expect(console.page.get_by_text("Settings in force")).to_be_visible()
            console.picture("damaged")


def test_clients_are_listed_and_disconnected(console: Console) -> None:
    """The page says what each client does; a disconnected one gives its open reads back."""
    fill(console)
    lost = pytest.raises(ConnectionLost)
    with console.client() as reader, lost, reader.reserve("orders") as item:
        console.open("#/clients")
        clients = console.page.get_by_role("table", name="Clients")
        row = clients.get_by_role("row").filter(has=console.page.get_by_text("memcache"))
        row = row.filter(has=console.page.get_by_role("link", name="orders"))
        expect(row).to_contain_text("orders 1")
        expect(row).to_contain_text("idle")
        current = console.page.get_by_role("navigation").locator("[aria-current]")
        expect(current).to_have_text("Clients")
        console.picture("clients")
        address = row.get_by_role("cell").first.inner_text()
        row.get_by_role("button", name=f"Disconnect {address}").click()
        dialog = console.page.get_by_role("dialog", name=f"Disconnect {address}?")
        expect(dialog).to_contain_text("Its 1 open read will go back to the queue")
        console.confirm("Cancel")
        row.get_by_role("button", name=f"Disconnect {address}").click()
        console.confirm(f"Disconnect {address}")
        console.expect_toast(f"{address} was disconnected.")
        expect(clients.get_by_text(address)).to_have_count(0)
        with Wire(console.server) as wire:
            wait_for(wire, "orders", "open_transactions", 0)
        with console.client() as other:
            assert other.get("orders") == item


def test_the_clients_fit_every_screen(console: Console) -> None:
    """Nothing of the table is cut or has to be scrolled to, whatever a client calls itself."""
    names = ("billing-worker-3", "n" * 64)
    fill(console)
    with (
        Client(console.server.address, name=names[0]) as first,
        Client(console.server.address, name=names[1]) as second,
        first.reserve("orders"),
        second.reserve("orders"),
    ):
        console.open("#/clients")
        clients = console.page.get_by_role("table", name="Clients")
        for width in (390, 1000, 1001, 1360):
            console.page.set_viewport_size({"width": width, "height": 844})
            for name in names:
                expect(clients.get_by_text(name)).to_be_visible()
            region = console.page.locator(".scroll-x:has([aria-label=Clients])")
            assert region.evaluate("one => one.scrollWidth - one.clientWidth") == 0
            for cell in clients.locator("th, td, button").all():
                box = cell.bounding_box()
                assert box is not None
                assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            assert console.accessibility_problems() == []
            console.picture(f"clients-{width}")


def test_a_client_waits_for_several_queues(console: Console) -> None:
    """Each is a link, also one that has a comma in its name."""
    with Wire(console.server) as wire:
        wire.send(b"reserve high,a%2Cb 1 lease=1000 t=600000\r\n")
        console.open("#/clients")
        clients = console.page.get_by_role("table", name="Clients")
        row = clients.get_by_role("row").filter(has=console.page.get_by_text("waits for an item"))
        expect(row.get_by_role("link")).to_have_text(["high", "a,b"])


def test_the_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    """A wrong token is asked for again; the right one is kept for the tab."""
    with running_server(tmp_path, config=f'admin_tokens = ["{TOKEN}"]\n') as server:
        for console in open_console(browser, server, width=1360, height=900):
            console.open()
            console.press("New queue")
            console.page.get_by_label("Name", exact=True).fill("fresh")
            console.confirm("Create")
            console.page.get_by_label("Admin token").fill("wrong")
            console.confirm("Continue")
            dialog = console.page.get_by_role("dialog")
            expect(dialog).to_contain_text("did not accept that token")
            console.page.get_by_label("Admin token").fill(TOKEN)
            console.confirm("Continue")
            console.expect_toast("fresh was created.")
            expect(console.page.locator(".items-note, .hint").first).to_be_visible()


def test_the_theme_is_kept(console: Console) -> None:
    """Dark stays dark after a reload."""
    console.open()
    theme = "document.documentElement.dataset.theme"
    assert console.page.evaluate(theme) == "light"
    console.press("Switch between dark and light")
    console.page.reload()
    assert console.page.evaluate(theme) == "dark"


def test_a_lost_server_is_told_and_found_again(console: Console) -> None:
    """The console says that it lost the server, and goes on by itself when it is back."""
    fill(console)
    console.open()
    expect(console.page.get_by_role("link", name="orders")).to_be_visible()
    console.server.kill9()
    expect(console.page.locator("#live")).to_have_text("Reconnecting")
    console.server.start()
    expect(console.page.locator("#live")).to_have_text("Live")
    assert depth_of(console, "orders") == "12"


def test_nothing_looks_up_without_the_server(console: Console) -> None:
    """Every page says that what it shows is old, and no state looks as if it were known."""
    fill(console)
    shown = "element => getComputedStyle(element).color"
    console.open("#/queue/orders")
    state = console.page.locator(".queue-head .badge").first
    expect(state).to_have_text("ok")
    good = state.evaluate(shown)
    console.server.kill9()
    expect(console.page.get_by_role("alert").first).to_contain_text("The server cannot be reached.")
    for name in ("Clients", "Server", "Queues"):
        expect(console.page.get_by_label("Server status")).to_have_value("")
        console.picture(f"lost-{name}", full=False)
        assert "\n".join(console.accessibility_problems()) == ""
        for badge in console.page.locator("main .badge").all():
            assert badge.evaluate(shown) != good
        console.page.get_by_role("link", name=name, exact=True).first.click()
        expect(console.page.get_by_role("heading", name=name, level=1)).to_be_attached()
        expect(console.page.locator("#lost")).to_be_visible()
    console.server.start()
    expect(console.page.locator("#lost")).to_be_hidden()
    expect(console.page.get_by_label("Server status")).to_have_value("UP")


def test_nothing_comes_from_elsewhere(console: Console) -> None:
    """Every request of every page goes to the server itself."""
    fill(console)
    for place in PLACES.values():
        console.open(place)
        console.page.wait_for_load_state("load")
    hosts = {urlsplit(url).netloc for url in console.asked}
    assert hosts == {urlsplit(console.url).netloc}


PLACES = {
    "queues": "",
    "queue": "#/queue/orders",
    "clients": "#/clients",
    "server": "#/server",
}


@pytest.fixture(params=["light", "dark", "phone"])
def screen(
    request: pytest.FixtureRequest, browser: Browser, server: ServerProcess
) -> Iterator[tuple[str, Console]]:
    """The console in each of its looks."""
    look = str(request.param)
    width, height = (390, 844) if look == "phone" else (1360, 900)
    scheme = "dark" if look == "dark" else "light"
    consoles = open_console(browser, server, width=width, height=height, color_scheme=scheme)
    for console in consoles:
        yield look, console


def test_every_page_is_accessible_in_every_look(screen: tuple[str, Console]) -> None:
    """axe-core finds nothing, with dialogs open too, and nothing sticks out at the side."""
    look, console = screen
    fill(console)
    with console.client() as client, client.reserve("orders"):
        client.pause("orders", "writes")
        for name, place in PLACES.items():
            console.open(place)
            ready = {
                "queues": console.page.get_by_role("link", name="orders"),
                "queue": console.page.get_by_label("Item 0"),
                "clients": console.page.get_by_role("button", name="Disconnect").first,
                "server": console.page.get_by_text("total_connections"),
            }[name]
            expect(ready).to_be_visible()
            console.picture(f"{name}-{look}")
            assert "\n".join(console.accessibility_problems()) == ""
            width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert console.page.evaluate(width) == 0
        console.open("#/queue/orders")
        table = console.page.get_by_role("region", name="Open reads, table")
        assert table.evaluate("table => table.scrollWidth - table.clientWidth") == 0
        for button, answer in (("Put item", "Cancel"), ("Delete", "Cancel")):
            console.press(button)
            assert "\n".join(console.accessibility_problems()) == ""
            console.confirm(answer)
