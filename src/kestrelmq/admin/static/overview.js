// The first page: five numbers about the server, and a table of all queues.

import { call } from "./api.js";
import { sample, sparkline } from "./charts.js";
import { askQueue, askUntilDone } from "./dialogs.js";
import { h, setText, setView, toast } from "./dom.js";
import { bytes, count, duration, named, rate, short, whole } from "./format.js";
import { needs, rights } from "./rights.js";
import { store } from "./store.js";
import { COLUMNS, QueueTable } from "./table.js";

const SPAN = 120_000;
const ONLY = [["all", "All"], ["waiting", "Not empty"], ["busy", "Busy"], ["problems", "Problems"]];

/** The view of the list that needs nothing in the address. */
const USUAL = { filter: "", only: "all", sort: "items", order: "descending", row: 0 };

/** The view that the address says; what it says wrong is as usual. */
function fromAddress(view) {
  const one = (key, allowed) => (allowed.includes(view.get(key)) ? view.get(key) : USUAL[key]);
  return {
    filter: view.get("filter") ?? "",
    only: one("only", ONLY.map(([key]) => key)),
    sort: one("sort", COLUMNS.map(({ key }) => key)),
    order: one("order", ["ascending", "descending"]),
    row: Math.max(0, Math.trunc(Number(view.get("row"))) || 0),
  };
}

class Tile {
  constructor(label, className, read) {
    this.read = read;
    this.value = h("strong", { text: "–" });
    this.detail = h("small", {});
    this.spark = sparkline(className, 200, 40);
    this.element = h("section", { class: "tile card", "aria-label": label },
      h("h2", { text: label }), this.value, this.detail, this.spark.element);
  }

  show(value, detail) {
    setText(this.value, value);
    setText(this.detail, detail);
    this.spark.draw(sample(store.points, this.read, store.now(), SPAN, 60));
  }
}

export class Overview {
  title = "Queues";

  #row; // the first row to show, until there are so many
  #timer = 0;

  /** `view` is what the address says; without that the list is as it was left, in `memory`. */
  constructor(memory, view) {
    this.memory = memory;
    this.tiles = {
      items: new Tile("Waiting", "depth", (point) => point.items),
      put: new Tile("In", "put", (point) => point.put),
      get: new Tile("Out", "get", (point) => point.get),
      age: new Tile("Oldest item", "age", (point, time) => (point.oldest ? Math.max(0, time - point.oldest) : 0)),
      clients: new Tile("Clients", "clients", (point) => point.connections ?? null),
    };
    this.table = new QueueTable();
    this.found = h("span", { class: "found", role: "status" });
    this.element = h("div", { class: "page overview" },
      h("h1", { class: "hidden", text: "Queues" }),
      h("div", { class: "tiles" }, ...Object.values(this.tiles).map((tile) => tile.element)),
      this.#toolbar(),
      this.table.element);
    const { row, ...shown } = view.size ? fromAddress(view) : memory.view ?? fromAddress(view);
    this.#row = row;
    Object.assign(this.table, shown);
    this.filter.value = this.table.filter;
    this.table.dispatch = () => this.#remember();
    this.#choose(this.table.only);
    this.table.scroller.addEventListener("scroll", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#remember(), 200);
    }, { passive: true });
    this.#remember();
  }

  #toolbar() {
    this.filter = h("input", {
      type: "search", id: "filter", placeholder: "Filter queues  ( / )", "aria-label": "Filter queues by name",
      autocomplete: "off", spellcheck: "false",
      oninput: () => {
        this.table.filter = this.filter.value;
        this.#changed();
      },
    });
    this.choices = ONLY.map(([key, label]) =>
      h("button", { type: "button", "data-only": key, "aria-pressed": "false", text: label, onclick: () => {
        this.#choose(key);
        this.#changed();
      } }));
    return h("div", { class: "toolbar" },
      this.filter,
      h("div", { class: "choices", role: "group", "aria-label": "Which queues" }, ...this.choices),
      this.found,
      h("span", { class: "spring" }),
      h("button", { type: "button", class: "primary", text: "New queue", ...needs(rights, "can_write"), onclick: () => this.#create() }));
  }

  #choose(key) {
    this.table.only = key;
    for (const button of this.choices) button.setAttribute("aria-pressed", String(button.dataset.only === key));
  }

  #changed() {
    this.#row = 0;
    this.table.scroller.scrollTop = 0;
    this.table.update(true);
    this.#count();
    this.#remember();
  }

  #remember() {
    const { filter, only, sort, order, first } = this.table;
    const view = { filter, only, sort, order, row: this.#row || first };
    this.memory.view = view;
    setView("#/", Object.fromEntries(Object.entries(view).filter(([key, value]) => value !== USUAL[key])));
  }

  #count() {
    const total = store.queues.size;
    const { shown } = this.table;
    setText(this.found, shown === total ? count(total, "queue") : `${whole(shown)} of ${count(total, "queue")}`);
  }

  async #create() {
    const queue = await askUntilDone(askQueue, (answer) => call("POST", "/queues", answer));
    if (queue === null) return;
    const { name, created } = queue;
    toast(`${named(name)} ${created ? "was created" : "exists already"}.`);
    location.hash = `#/queue/${encodeURIComponent(name)}`;
  }

  update() {
    const { totals } = store;
    if (!totals) return;
    const { items, put, get, age, clients } = this.tiles;
    items.show(short(totals.items), bytes(totals.bytes));
    put.show(rate(totals.put_rate), "items per second");
    get.show(rate(totals.get_rate), "items per second");
    age.show(totals.oldest ? duration(store.age(totals.oldest)) : "–", totals.oldest ? "at the head of a queue" : "no items");
    clients.show(short(totals.connections), `${count(totals.open_reads, "open read")}, ${count(totals.waiters, "waiter")}`);
    this.table.update();
    this.#count();
    if (this.#row && this.table.shown > this.#row) {
      this.table.scrollTo(this.#row);
      this.#row = 0;
    }
  }

  key(event) {
    if (event.key === "/") {
      event.preventDefault();
      this.filter.focus();
    }
  }

  close() {
    clearTimeout(this.#timer);
    this.table.close();
  }
}

