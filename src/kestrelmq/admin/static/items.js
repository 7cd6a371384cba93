// The first items of a queue, as text, JSON or bytes.

import { call, queuePath } from "./api.js";
import { h, setText } from "./dom.js";
import { bytes, count, duration, moment } from "./format.js";
import { store } from "./store.js";

const VIEWS = [["text", "Text"], ["json", "JSON"], ["hex", "Hex"]];
const SHOWN_HEX = 4096;

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
  #limit = 20;

  constructor(name) {
    this.name = name;
    this.tabs = VIEWS.map(([key, label]) =>
      h("button", { type: "button", "data-view": key, "aria-pressed": "false", text: label, onclick: () => this.#show(key) }));
    this.list = h("ol", { class: "item-list" });
    this.note = h("p", { class: "hint", role: "status", text: "Show the first items without removing them." });
    this.more = h("button", { type: "button", hidden: true, text: "Show more", onclick: () => {
      this.#limit = Math.min(100, this.#limit * 2.5);
      this.load();
    } });
    this.element = h("section", { class: "card panel", "aria-label": "Items" },
      h("div", { class: "panel-head" },
        h("h2", { text: "Items" }),
        h("div", { class: "choices", role: "group", "aria-label": "Show items as" }, ...this.tabs),
        h("button", { type: "button", class: "peek", text: "Peek", onclick: () => this.load() })),
      this.note, h("div", { class: "item-scroll", tabindex: "0", role: "region", "aria-label": "First items" }, this.list), this.more);
  }

  async load() {
    try {
      const { total, items } = await call("GET", queuePath(this.name, `/items?limit=${this.#limit}`));
      this.#items = items.map((item) => ({ ...item, content: decode(item.data) }));
      setText(this.note, total ? `The first ${count(items.length, "item")} of ${count(total, "item")}, as of ${new Date().toLocaleTimeString()}.` : "The queue is empty.");
      this.more.hidden = items.length < this.#limit || items.length >= Math.min(total, 100);
      this.#show(this.#view ?? (this.#items.length && looksLikeJson(this.#items[0].content) ? "json" : "text"));
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  #show(view) {
    this.#view = view;
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.view === view));
    this.list.replaceChildren(...this.#items.map((item) => this.#item(item)));
  }

  #item({ position, add_time, expiry, deliveries, size, content, truncated }) {
    const render = { text: asText, json: asJson, hex: asHex }[this.#view];
    const facts = [`#${position}`, bytes(size), `waiting ${duration(store.age(add_time))}`];
    if (expiry) facts.push(expiry <= store.now() ? "expired" : `expires in ${duration(expiry - store.now())}`);
    if (deliveries) facts.push(`came back ${count(deliveries, "time")}`);
    if (truncated) facts.push(`first ${bytes(content.length)} shown`);
    return h("li", {},
      h("p", { class: "facts", title: `added ${moment(add_time)}`, text: facts.join(" · ") }),
      h("pre", { class: this.#view, tabindex: "0", "aria-label": `Item ${position}`, text: render(content, truncated) || "(empty)" }));
  }
}
