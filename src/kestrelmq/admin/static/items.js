// The items of a queue, page by page or those that a search finds, as text, JSON or bytes.

import { call, queuePath } from "./api.js";
import { h, setText } from "./dom.js";
import { bytes, count, duration, moment, plain } from "./format.js";
import { store } from "./store.js";

const VIEWS = [["text", "Text"], ["json", "JSON"], ["hex", "Hex"]];
const SHOWN_HEX = 4096;
const PAGE = 20;
const KINDS = [["text", "Text"], ["pattern", "Regular expression"]];

function decode(data) {
  return Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
}

function asText(content) {
  return new TextDecoder().decode(content);
}

function asJson(content, truncated) {
  try {
    return JSON.stringify(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content)), null, 2);
  } catch {
    return truncated ? "Only part of the item is here, so it cannot be read as JSON." : "This item is not JSON.";
  }
}

function asHex(content) {
  const lines = [];
  for (let start = 0; start < Math.min(content.length, SHOWN_HEX); start += 16) {
    const part = [...content.subarray(start, start + 16)];
    const codes = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const halves = `${codes.slice(0, 8).join(" ")}  ${codes.slice(8).join(" ")}`;
    const text = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${halves.padEnd(49)} ${text}`);
  }
  if (content.length > SHOWN_HEX) lines.push(`… ${count(content.length - SHOWN_HEX, "more byte")} here`);
  return lines.join("\n");
}

function looksLikeJson(content) {
  return content[0] === 0x7b || content[0] === 0x5b;
}

export class Items {
  #view = null; // until the user chooses one, the first item decides
  #items = [];
  #starts = [0]; // the offsets of the pages up to the present one
  #next = null; // the offset of the next page; null at the end
  #search = ""; // the part of the request that says what to search for
  #request = 0;

  constructor(name) {
    this.name = name;
    this.tabs = VIEWS.map(([key, label]) =>
      h("button", { type: "button", "data-view": key, "aria-pressed": "false", text: label, onclick: () => this.#show(key) }));
    this.list = h("ol", { class: "item-list" });
    this.note = h("p", { class: "hint", role: "status", text: "Show items without removing them." });
    this.wanted = h("input", { type: "search", "aria-label": "Search items", placeholder: "Search items", maxlength: "1000", autocomplete: "off", spellcheck: "false" });
    this.kind = h("select", { "aria-label": "Search for" }, ...KINDS.map(([value, text]) => h("option", { value, text })));
    this.back = h("button", { type: "button", disabled: true, text: "Back", onclick: () => this.#goBack() });
    this.forth = h("button", { type: "button", disabled: true, text: "Next", onclick: () => this.#goOn() });
    this.element = h("section", { class: "card panel", "aria-label": "Items" },
      h("div", { class: "panel-head" },
        h("h2", { text: "Items" }),
        h("div", { class: "choices", role: "group", "aria-label": "Show items as" }, ...this.tabs),
        h("button", { type: "button", class: "peek", text: "Peek", onclick: () => this.first() })),
      h("form", { class: "item-search", role: "search", onsubmit: (event) => {
        event.preventDefault();
        this.first();
      } }, this.wanted, this.kind, h("button", { type: "submit", text: "Search" })),
      this.note, this.scroll = h("div", { class: "item-scroll", tabindex: "0", role: "region", "aria-label": "Items of this page" }, this.list),
      h("div", { class: "pages", role: "group", "aria-label": "Pages of items" }, this.back, this.forth));
  }

  /** Show the first page of what the search field says. */
  first() {
    const wanted = this.wanted.value;
    this.#search = wanted ? `&${this.kind.value}=${encodeURIComponent(wanted)}` : "";
    this.#starts = [0];
    return this.load();
  }

  #goBack() {
    this.#starts.pop();
    this.load();
  }

  #goOn() {
    this.#starts.push(this.#next);
    this.load();
  }

  /** Show the present page as it is now. */
  async load() {
    const request = ++this.#request;
    const start = this.#starts.at(-1);
    try {
      const { total, items, next_offset: next } = await call("GET", queuePath(this.name, `/items?limit=${PAGE}&offset=${start}${this.#search}`));
      if (request !== this.#request) return; // the user has gone on meanwhile
      this.#next = next;
      this.#items = items.map((item) => ({ ...item, content: decode(item.data) }));
      setText(this.note, this.#said(start, total));
      this.#setPages();
      this.scroll.scrollTop = 0;
      this.#show(this.#view ?? (this.#items.length && looksLikeJson(this.#items[0].content) ? "json" : "text"));
    } catch (error) {
      if (request !== this.#request) return;
      this.#items = [];
      this.#next = null;
      this.list.replaceChildren();
      this.#setPages();
      setText(this.note, error.message);
    }
  }

  /** Set which pages can be gone to; the focus stays in the group. */
  #setPages() {
    const focused = document.activeElement;
    this.back.disabled = this.#starts.length === 1;
    this.forth.disabled = this.#next === null;
    if (focused === this.back && this.back.disabled) this.forth.focus();
    if (focused === this.forth && this.forth.disabled) this.back.focus();
  }

  #said(start, total) {
    if (!total) return "The queue is empty.";
    const when = `as of ${new Date().toLocaleTimeString()}`;
    const found = this.#items.length;
    const end = this.#next ?? total;
    if (this.#search) return `${found ? count(found, "item") : "Nothing"} found in #${start} to #${Math.max(start, end - 1)} of ${count(total, "item")}, ${when}.`;
    if (!found) return `There are no more items: the queue has ${count(total, "item")}, ${when}.`;
    const [first, last] = [this.#items[0].position, this.#items.at(-1).position];
    return `${first === last ? `Item #${first}` : `Items #${first} to #${last}`} of ${count(total, "item")}, ${when}.`;
  }

  #show(view) {
    this.#view = view;
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.view === view));
    this.list.replaceChildren(...this.#items.map((item) => this.#item(item)));
  }

  #item({ position, add_time, expiry, deliveries, dead_letter: letter, size, content, truncated }) {
    const render = { text: asText, json: asJson, hex: asHex }[this.#view];
    const facts = [`#${position}`, bytes(size), `waiting ${duration(store.age(add_time))}`];
    if (expiry) facts.push(expiry <= store.now() ? "expired" : `expires in ${duration(expiry - store.now())}`);
    if (letter) facts.push(`from ${plain(letter.origin)}, ${count(deliveries, "delivery", "deliveries")}, ${duration(store.age(letter.died))} ago: ${plain(letter.why)}`);
    else if (deliveries) facts.push(`came back ${count(deliveries, "time")}`);
    if (truncated) facts.push(`first ${bytes(content.length)} shown`);
    return h("li", {},
      h("p", { class: "facts", title: `added ${moment(add_time)}`, text: facts.join(" · ") }),
      h("pre", { class: this.#view, tabindex: "0", "aria-label": `Item ${position}`, text: render(content, truncated) || "(empty)" }));
  }
}
