// A table of thousands of queues, with elements only for the visible rows.

import { sample, sparkline } from "./charts.js";
import { h, setText } from "./dom.js";
import { bytes, duration, PAUSED, pausedWords, rate, short, STATES, whole } from "./format.js";
import { store, urgency } from "./store.js";

export const COLUMNS = [
  { key: "name", label: "Queue", first: "ascending" },
  { key: "items", label: "Depth", first: "descending" },
  { key: "put", label: "In/s", first: "descending" },
  { key: "get", label: "Out/s", first: "descending" },
  { key: "age", label: "Oldest", first: "descending" },
  { key: "open", label: "Open", first: "descending" },
  { key: "waiters", label: "Waiters", first: "descending" },
  { key: "bytes", label: "Size", first: "descending" },
];
const NARROW = matchMedia("(max-width: 760px)");
const SPARE = 4; // extra rows above and below the visible ones
const MOST = 120; // most rows, however high the window
const SPAN = 60_000;
const BADGES = { behind: "on disk", full: "full", failing: "cannot write", damaged: "damaged", loading: "loading" };

class Row {
  constructor() {
    this.link = h("a", { class: "name" });
    this.state = h("span", { class: "badge", hidden: true });
    this.paused = h("span", { class: "badge paused" });
    this.depth = h("b", {});
    this.spark = sparkline("depth");
    this.cells = Object.fromEntries(
      ["put", "get", "age", "open", "waiters", "bytes"].map((key) => [key, h("span", { role: "cell", class: `cell ${key}` })]));
    this.element = h("div", { role: "row", class: "row" },
      h("span", { role: "cell", class: "cell queue" }, this.link, this.state, this.paused),
      h("span", { role: "cell", class: "cell items" }, this.spark.element, this.depth),
      ...Object.values(this.cells));
  }

  show(queue, index, height) {
    this.index = index;
    this.element.style.transform = `translateY(${index * height}px)`;
    this.element.setAttribute("aria-rowindex", index + 2);
    this.element.classList.toggle("odd", index % 2 === 1);
    if (this.queue !== queue) {
      this.queue = queue;
      this.link.href = `#/queue/${encodeURIComponent(queue.name)}`;
      setText(this.link, queue.name);
      this.link.title = queue.name;
    }
    const word = BADGES[queue.state];
    this.state.hidden = !word;
    this.state.className = `badge ${queue.state}`;
    setText(this.state, word ?? "");
    this.state.title = STATES[queue.state];
    const paused = pausedWords(queue.paused);
    setText(this.paused, paused);
    this.paused.title = PAUSED[queue.paused] ?? "";
    setText(this.depth, short(queue.items));
    this.depth.title = whole(queue.items);
    this.spark.draw(sample(queue.points, (point) => point.items, store.now(), SPAN, 40));
    const { put, get, age, open, waiters, bytes: size } = this.cells;
    setText(put, rate(queue.put));
    setText(get, rate(queue.get));
    setText(age, queue.oldest ? duration(store.age(queue.oldest)) : "–");
    setText(open, short(queue.open));
    setText(waiters, short(queue.waiters));
    setText(size, bytes(queue.bytes));
    put.classList.toggle("zero", queue.put === 0);
    get.classList.toggle("zero", queue.get === 0);
    open.classList.toggle("zero", queue.open === 0);
    waiters.classList.toggle("zero", queue.waiters === 0);
  }
}

export class QueueTable {
  #rows = [];
  #order = [];
  #held = false;

  constructor() {
    this.filter = "";
    this.only = "all";
    this.sort = "name";
    this.order = "ascending";
    this.space = h("div", { class: "space", role: "rowgroup" });
    this.heads = new Map();
    this.head = h("div", { role: "row", class: "row head", "aria-rowindex": "1" }, ...COLUMNS.map((column) => this.#header(column)));
    this.scroller = h("div", { class: "scroller" }, this.space);
    this.table = h("div", { role: "table", class: "table", "aria-label": "Queues" },
      h("div", { role: "rowgroup", class: "heads" }, this.head), this.scroller);
    this.empty = h("p", { class: "empty", hidden: true });
    this.element = h("div", { class: "card table-card" }, this.table, this.empty);
    this.scroller.addEventListener("scroll", () => this.#draw(), { passive: true });
    this.scroller.addEventListener("pointerenter", () => { this.#held = true; });
    this.scroller.addEventListener("pointerleave", () => { this.#held = false; });
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    this.observer = new ResizeObserver(() => this.#draw());
    this.observer.observe(this.scroller);
  }

  close() {
    this.observer.disconnect();
  }

  get height() {
    return NARROW.matches ? 76 : 44;
  }

  #header({ key, label, first }) {
    const button = h("button", { type: "button", text: label, onclick: () => this.#sortBy(key, first) });
    const cell = h("span", { role: "columnheader", class: `cell ${key === "name" ? "queue" : key}` }, button);
    this.heads.set(key, cell);
    return cell;
  }

  #sortBy(key, first) {
    const other = first === "ascending" ? "descending" : "ascending";
    this.setSort(key, this.sort === key && this.order === first ? other : first);
    this.dispatch?.();
  }

  setSort(key, order) {
    this.sort = key;
    this.order = order;
    this.update(true);
  }

  /** Show changes. The order does not change while the pointer or the focus is in the rows. */
  update(reorder = false) {
    const held = this.#held || this.scroller.contains(document.activeElement);
    if (held && !reorder) this.#keepOrder();
    else this.#sortRows();
    this.#draw();
  }

  /** Keep the order: drop queues that are gone, add new ones at the end. */
  #keepOrder() {
    const found = new Set(this.#found());
    const stay = this.#order.filter((queue) => found.delete(queue));
    this.#order = stay.length ? [...stay, ...found] : this.#sorted([...found]);
  }

  #found() {
    const wanted = this.filter.toLowerCase();
    const found = [];
    for (const queue of store.queues.values()) {
      if (queue.lower.includes(wanted) && this.#fits(queue)) found.push(queue);
    }
    return found;
  }

  /** Sort `found`: queues that need care are first in any order. */
  #sorted(found) {
    const sign = this.order === "ascending" ? 1 : -1;
    const byName = (a, b) => (a.name < b.name ? -1 : 1);
    const value = this.sort === "age" ? (queue) => store.age(queue.oldest) : (queue) => queue[this.sort];
    const chosen = this.sort === "name"
      ? (a, b) => sign * byName(a, b)
      : (a, b) => sign * (value(a) - value(b)) || byName(a, b);
    return found.sort((a, b) => urgency(b) - urgency(a) || chosen(a, b));
  }

  #sortRows() {
    this.#order = this.#sorted(this.#found());
    for (const [key, cell] of this.heads) {
      if (key === this.sort) cell.setAttribute("aria-sort", this.order);
      else cell.removeAttribute("aria-sort");
    }
  }

  #fits(queue) {
    switch (this.only) {
      case "waiting": return queue.items > 0;
      case "busy": return queue.put > 0 || queue.get > 0;
      case "problems": return urgency(queue) > 0;
      default: return true;
    }
  }

  #draw() {
    const { height } = this;
    const total = this.#order.length;
    const box = this.scroller;
    this.space.style.height = `${total * height}px`;
    this.table.setAttribute("aria-rowcount", total + 1);
    this.empty.hidden = total > 0;
    if (total === 0) {
      setText(this.empty, store.queues.size ? "No queue fits the filter." : store.totals ? "No queues yet. A queue is created when an item is put on it." : "Waiting for the server…");
    }
    const first = Math.max(0, Math.floor(box.scrollTop / height) - SPARE);
    const sight = Math.min(MOST, Math.ceil(box.clientHeight / height) + 2 * SPARE);
    const last = Math.min(total, first + sight);
    while (this.#rows.length < last - first) {
      const row = new Row();
      this.#rows.push(row);
      this.space.append(row.element);
    }
    this.#assign(first, last, height);
  }

  /** Show each queue in the row that showed it before, so that the focus stays where it is. */
  #assign(first, last, height) {
    const wanted = new Map();
    for (let index = first; index < last; index += 1) wanted.set(this.#order[index], index);
    const free = [];
    for (const row of this.#rows) {
      const index = wanted.get(row.queue);
      if (index === undefined) {
        free.push(row);
      } else {
        wanted.delete(row.queue);
        row.element.hidden = false;
        row.show(row.queue, index, height);
      }
    }
    for (const [queue, index] of wanted) {
      const row = free.pop();
      row.element.hidden = false;
      row.show(queue, index, height);
    }
    for (const row of free) {
      row.element.hidden = true;
      row.queue = undefined;
    }
    this.#arrange();
  }

  /**
   * Put the elements in the order that is seen, in which the Tab key and a screen reader go through them.
   * The one that has the focus would lose it if it were moved, so the others are put around it.
   */
  #arrange() {
    const shown = this.#rows.filter((row) => row.queue).sort((a, b) => a.index - b.index).map((row) => row.element);
    const fixed = Math.max(0, shown.findIndex((element) => element.contains(document.activeElement)));
    for (let index = fixed - 1; index >= 0; index -= 1) {
      if (shown[index + 1].previousElementSibling !== shown[index]) shown[index + 1].before(shown[index]);
    }
    for (let index = fixed + 1; index < shown.length; index += 1) {
      if (shown[index - 1].nextElementSibling !== shown[index]) shown[index - 1].after(shown[index]);
    }
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.height) - 1);
    const current = this.#rows.find((row) => row.queue && row.element.contains(document.activeElement));
    if (!current) return;
    const target = {
      ArrowDown: current.index + 1, ArrowUp: current.index - 1, PageDown: current.index + page,
      PageUp: current.index - page, Home: 0, End: this.#order.length - 1,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.focus(Math.min(this.#order.length - 1, Math.max(0, target)));
  }

  /** Move the focus to a row, and scroll so that it is visible. */
  focus(index) {
    const { height, scroller } = this;
    const top = index * height;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    if (top + height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + height - scroller.clientHeight;
    this.#draw();
    this.#rows.find((row) => row.queue === this.#order[index])?.link.focus({ preventScroll: true });
  }

  /** The first row in sight. */
  get first() {
    return Math.round(this.scroller.scrollTop / this.height);
  }

  scrollTo(row) {
    this.scroller.scrollTop = row * this.height;
  }

  get shown() {
    return this.#order.length;
  }
}
