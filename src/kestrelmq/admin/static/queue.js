// The page of one queue: charts of the last minutes, items, open reads, fanout, journal, settings.

import { call, queuePath } from "./api.js";
import { Chart, niceTime, SPANS } from "./charts.js";
import { deadLetters, redrive } from "./dead_letters.js";
import { askItem, askUntilDone, confirm } from "./dialogs.js";
import { h, link, pairs, setText, setView, table, toast } from "./dom.js";
import { axisTime, bytes, count, duration, listed, micros, moment, named, pausedWords, plain, rate, REPAIR, short, STATES, whole } from "./format.js";
import { Items } from "./items.js";
import { limits } from "./limits.js";
import { needs, rights, rightsTo, setNeeds } from "./rights.js";
import { fromApi, store } from "./store.js";
import { exportItems, importItems, transfer } from "./transfers.js";

const STEP = 15_000; // ms between requests for the history
const EVERY = 2000; // ms between requests for the details that are not in the event stream
const PAUSING = {
  reads: "Readers will find the queue empty until you resume reads. Open reads can still be ended.",
  writes: "Adding items will be refused until you resume writes.",
};
const LATENCIES = {
  set_latency_usec: "Serving an add", get_hit_latency_usec: "Serving a read", get_miss_latency_usec: "Serving an empty read",
  delivery_latency_usec: "Waiting in the queue", get_timeout_usec: "Waiting without an item",
};

/** Who has an open read, and until when if that is known. */
function holder({ client, address, owner, tag, lease_ends_in: left }) {
  const until = left === null ? "" : `until ${new Date(leaseEnd(left)).toLocaleTimeString()}`;
  const known = [owner && `owner ${named(owner)}`, client === null ? "" : address, tag && `tag ${named(tag)}`, until];
  return known.filter(Boolean).join(", ") || "–";
}

/** What is lost with a queue's waiting items, in words: how many there are, and how many delayed ones. */
const lost = ({ items = 0, delayed = 0 }) =>
  [count(items, "waiting item"), ...(delayed ? [count(delayed, "delayed item")] : [])];

/** When a lease ends, to 10 s: it must not seem to change all the time. */
const leaseEnd = (left) => Math.round((store.now() + 1000 * left) / 10_000) * 10_000;

function panel(title, ...content) {
  return h("section", { class: "card panel", "aria-label": title }, h("h2", { text: title }), ...content);
}

export class QueuePage {
  #past = [];
  #busy = false;
  #shown = new Map();
  #delayed = 0;
  #rights = new Map(); // what the user may do with this queue and its dead-letter queue

  constructor(name, view) {
    this.name = name;
    this.range = view.get("range") in SPANS ? view.get("range") : "minutes";
    this.title = named(name);
    this.depth = new Chart({ title: "Depth", format: short,
      series: [{ label: "items", className: "depth", read: (point) => point.items }] });
    this.rates = new Chart({ title: "Items per second", format: rate,
      series: [{ label: "in", className: "put", read: (point) => point.put }, { label: "out", className: "get", read: (point) => point.get }] });
    this.age = new Chart({ title: "Oldest item", format: axisTime, top: niceTime,
      series: [{ label: "waiting", className: "age", read: (point, time) => (point.oldest ? Math.max(0, time - point.oldest) : 0) }] });
    this.items = new Items(name);
    this.state = h("span", { class: "badge" });
    this.paused = h("span", { class: "badge paused" });
    this.pausing = Object.fromEntries(Object.keys(PAUSING).map((what) =>
      [what, h("button", { type: "button", text: `Pause ${what}`, onclick: () => this.#pause(what) })]));
    this.facts = h("p", { class: "queue-facts" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.places = Object.fromEntries(["dead", "fanout", "reads", "limits", "journal", "latency", "stats", "settings"].map((key) => [key, h("div", {})]));
    this.ranges = Object.entries(SPANS).map(([key, { label }]) =>
      h("button", { type: "button", "aria-pressed": String(key === this.range), text: label, onclick: () => this.#choose(key) }));
    this.element = this.#layout();
    this.#load();
    this.past = setInterval(() => document.hidden || this.#loadPast(), STEP);
    this.timer = setInterval(() => this.#detail(), EVERY);
  }

  #layout() {
    const { dead, fanout, reads, limits: bounds, journal, latency, stats, settings } = this.places;
    this.creating = [
      h("button", { type: "button", class: "primary", text: "Put item", onclick: () => this.#put() }),
      h("button", { type: "button", text: "Import", onclick: () => this.#transfer(importItems) }),
    ];
    this.reading = [
      h("button", { type: "button", text: "Move", onclick: () => this.#transfer(transfer) }),
      h("button", { type: "button", text: "Export", onclick: () => this.#transfer(exportItems) }),
    ];
    this.others = [
      ...Object.values(this.pausing),
      h("button", { type: "button", text: "Flush", onclick: () => this.#flush() }),
      h("button", { type: "button", class: "danger", text: "Delete", onclick: () => this.#delete() }),
    ];
    this.contents = [
      h("div", { class: "queue-line" }, this.facts, h("span", { class: "spring" }),
        h("div", { class: "choices", role: "group", "aria-label": "Time in the charts" }, ...this.ranges)),
      h("div", { class: "charts" }, this.depth.element, this.rates.element, this.age.element),
      h("div", { class: "side" }, this.items.element, panel("Open reads", reads)),
      h("div", { class: "side" },
        panel("Dead letters", dead), panel("Fanout", fanout), panel("Limits and refusals", bounds), panel("Journal", journal), panel("Latency", latency)),
      h("details", { class: "card panel" }, h("summary", { text: "All statistics" }), stats),
    ];
    this.settings = h("details", { class: "card panel" }, h("summary", { text: "Settings in force" }), settings);
    const [facts, charts, ...panels] = this.contents;
    return h("div", { class: "page queue-page" },
      h("p", { class: "crumbs" }, h("a", { href: "#/", text: "Queues" }), " / ", h("bdi", { text: this.name })),
      h("div", { class: "queue-head" },
        h("h1", {}, h("bdi", { text: this.name })), this.state, this.paused, h("span", { class: "spring" }),
        h("div", { class: "actions" },
          ...this.creating, ...this.reading, ...this.others)),
      this.problem, facts, charts, h("div", { class: "panels queue-panels" }, ...panels, this.settings));
  }

  /** Show what is known of the queue and what can be done: all, or of one that does not work or exist hardly anything. */
  #setUse(isUsable, exists = true) {
    for (const element of this.contents) element.hidden = !isUsable;
    this.settings.hidden = !exists;
    const has = this.#rightsOf(this.name);
    for (const button of this.others) setNeeds(button, has, "admin", isUsable);
    for (const button of this.reading) setNeeds(button, has, "can_read", isUsable);
    for (const button of this.creating) setNeeds(button, has, "can_write", isUsable || !exists);
  }

  #rightsOf(name) {
    return this.#rights.get(name) ?? rights;
  }

  /** Ask what the user may do with a queue, once. */
  async #learnRights(name) {
    if (!this.#rights.has(name)) this.#rights.set(name, await rightsTo(name));
  }

  #choose(range) {
    this.range = range;
    Object.keys(SPANS).forEach((key, index) => this.ranges[index].setAttribute("aria-pressed", String(key === range)));
    setView(`#/queue/${encodeURIComponent(this.name)}`, { range: range === "minutes" ? "" : range });
    this.#loadPast();
  }

  async #loadPast() {
    const { range } = this;
    let past = [];
    try {
      const { points } = await call("GET", queuePath(this.name, `/history?range=${range}`));
      past = points.map(fromApi);
    } catch {
      // The charts begin now.
    }
    if (range !== this.range) return; // another was chosen meanwhile
    this.#past = past;
    this.update();
  }

  async #load() {
    await this.#loadPast();
    await this.#detail();
    this.update();
    if (!this.contents[0].hidden) this.items.load();
  }

  update() {
    const queue = store.queues.get(this.name);
    if (!queue) {
      setText(this.state, "");
    } else {
      this.state.className = `badge ${queue.state}`;
      setText(this.state, STATES[queue.state] || "ok");
      setText(this.facts, [
        count(queue.items, "item"), ...(this.#delayed ? [`${whole(this.#delayed)} delayed`] : []), bytes(queue.bytes), `${rate(queue.put)} in and ${rate(queue.get)} out per second`,
        queue.oldest ? `oldest ${duration(store.age(queue.oldest))}` : "no oldest item",
        count(queue.open, "open read"), count(queue.waiters, "reader", "readers") + " waiting",
      ].join(" · "));
    }
    const newest = this.#past.at(-1)?.time ?? 0;
    const recent = queue?.points.filter((point) => point.time > newest + 500) ?? [];
    for (const chart of [this.depth, this.rates, this.age]) chart.draw([...this.#past, ...recent], store.now(), SPANS[this.range]);
  }

  async #detail() {
    if (this.#busy || document.hidden) return;
    this.#busy = true;
    try {
      await this.#learnRights(this.name);
      const detail = await call("GET", queuePath(this.name));
      if (detail.dead_letter_queue) await this.#learnRights(detail.dead_letter_queue.name);
      this.problem.hidden = detail.problem === null;
      const problem = plain(detail.problem ?? "");
      setText(this.problem, detail.state === "damaged" ? `${problem}. ${REPAIR}` : problem);
      const isUsable = Object.keys(detail.stats).length > 0;
      const reads = isUsable ? await call("GET", queuePath(this.name, "/open-reads")) : { total: 0, open_reads: [] };
      this.#setUse(isUsable);
      this.#show(detail, reads);
    } catch (error) {
      this.problem.hidden = false;
      const isAbsent = error.status === 404;
      if (isAbsent || error.status === 403) this.#setUse(false, false);
      setText(this.problem, isAbsent ? `There is no queue ${this.title}. It is created when an item is put on it.` : error.message);
    } finally {
      this.#busy = false;
    }
  }

  /** Redraw a part only when it changed, so that it does not disturb a user who selects text. */
  #part(key, content, make) {
    const text = JSON.stringify(content);
    if (this.#shown.get(key) === text) return;
    this.#shown.set(key, text);
    this.places[key].replaceChildren(...[make()].flat());
  }

  #show(detail, reads) {
    this.#showPaused(detail.paused);
    this.#part("fanout", [detail.master, detail.children], () => this.#fanout(detail));
    const { dead_letter_queue: target, dead_letters_of: sources, stats } = detail;
    this.#delayed = stats.delayed ?? 0;
    this.#part("dead", [target, sources, stats.items, stats.dead_lettered], () => deadLetters(detail, (name) => this.#rightsOf(name), (from) => this.#redrive(from)));
    this.#part("reads", [reads.total, reads.open_reads.map((read) => [read.xid, holder(read)])], () => this.#reads(reads));
    this.#part("journal", detail.journal, () => this.#journal(detail.journal));
    this.#part("latency", detail.latencies, () => this.#latency(detail.latencies));
    this.#part("limits", stats, () => limits(stats));
    this.#part("stats", detail.stats, () => pairs(Object.entries(detail.stats).map(([name, value]) => [name, name === "create_time" ? moment(value) : whole(value)])));
    this.#part("settings", detail.settings, () => pairs(Object.entries(detail.settings).map(([name, value]) => [name, value || "none"])));
  }

  #showPaused(paused) {
    setText(this.paused, pausedWords(paused));
    for (const [what, button] of Object.entries(this.pausing)) {
      setText(button, `${paused === "all" || paused === what ? "Resume" : "Pause"} ${what}`);
    }
  }

  #fanout({ name, master, children }) {
    if (!master && !children.length) return h("p", { class: "hint", text: "Items go to this queue only." });
    const list = (members) => h("ul", { class: "tree" }, ...members.map((child) =>
      h("li", {}, link(child.name), h("small", { text: ` ${count(child.items, "item")}` }))));
    if (master) return h("ul", { class: "tree" }, h("li", {}, link(master), h("ul", { class: "tree" }, h("li", {}, h("b", {}, h("bdi", { text: name }))))));
    return h("ul", { class: "tree" }, h("li", {}, h("b", {}, h("bdi", { text: name })), list(children)));
  }

  #reads({ total, open_reads: opened }) {
    if (!total) return h("p", { class: "hint", text: "No read is open." });
    const rows = opened.slice(0, 20).map((read) => [
      String(read.xid), `${bytes(read.size)}, added ${moment(read.add_time)}`, String(read.deliveries), holder(read),
      h("button", { type: "button", class: "small", "aria-label": `Requeue read ${read.xid}`, text: "Requeue", ...needs(rights, "admin"), onclick: () => this.#requeue([read.xid]) }),
    ]);
    return [
      h("p", { class: "panel-line" }, h("span", { text: `${count(total, "open read")}${total > 20 ? ", the first 20 shown" : ""}.` }),
        h("button", { type: "button", text: "Requeue all", ...needs(rights, "admin"), onclick: () => this.#requeue(null, total) })),
      table(["Read", "Item", "Delivery", "Held by", "Action"], rows, "Open reads"),
    ];
  }

  #journal(files) {
    if (!files.length) return h("p", { class: "hint", text: "This queue has no journal." });
    const total = files.reduce((sum, file) => sum + file.bytes, 0);
    return [
      h("p", { class: "hint", text: `${count(files.length, "file")}, ${bytes(total)}, in the order of replay.` }),
      table(["File", "Size"], files.map((file) => [file.name, bytes(file.bytes)]), "Journal files"),
    ];
  }

  #latency(latencies) {
    const known = Object.entries(LATENCIES).filter(([key]) => latencies[key]?.count);
    if (!known.length) return h("p", { class: "hint", text: "There are no measurements yet." });
    return table(["Time", "Median", "99 %", "Longest"], known.map(([key, label]) => {
      const { p50, p99, maximum } = latencies[key];
      return [label, micros(p50), micros(p99), micros(maximum)];
    }), "Latency");
  }

  async #act(act, done) {
    try {
      const message = done(await act());
      toast(message);
      await this.#detail();
      return true;
    } catch (error) {
      toast(error.message, "error");
      return false;
    }
  }

  async #put() {
    const path = queuePath(this.name, "/items");
    const stored = await askUntilDone((item, problem) => askItem(this.name, item, problem), (item) => call("POST", path, item));
    if (stored === null) return;
    toast(`${count(stored.size, "byte")} put on ${this.title}.`);
    await this.#detail();
    this.items.load();
  }

  /** Do one of `transfers`, and say what was done. */
  async #transfer(act) {
    try {
      const said = await act(this.name);
      if (said === null) return;
      toast(said);
    } catch (error) {
      toast(error.message, "error");
    }
    await this.#detail();
    this.items.load();
  }

  /** The statistics; shows an error and returns null if they cannot be read. */
  async #stats() {
    try {
      return (await call("GET", queuePath(this.name))).stats;
    } catch (error) {
      toast(error.message, "error");
      return null;
    }
  }

  async #pause(what) {
    const pause = this.pausing[what].textContent.startsWith("Pause");
    if (pause && !(await confirm(`Pause ${what} of ${this.title}?`, PAUSING[what], `Pause ${what}`))) return;
    const path = queuePath(this.name, pause ? "/pause" : "/resume");
    await this.#act(() => call("POST", path, { operations: what }), () =>
      `${what === "reads" ? "Reads" : "Writes"} of ${this.title} are ${pause ? "paused" : "resumed"}.`);
  }

  async #flush() {
    const stats = await this.#stats();
    if (stats === null) return;
    const what = `${listed(lost(stats))} of ${this.title} will be lost. Open reads stay open.`;
    if (!(await confirm(`Flush ${this.title}?`, what, `Flush ${this.title}`))) return;
    const path = queuePath(this.name, "/flush");
    if (await this.#act(() => call("POST", path), ({ flushed }) => `${count(flushed, "item")} of ${this.title} dropped.`)) this.items.load();
  }

  async #delete() {
    const stats = await this.#stats();
    if (stats === null) return;
    const held = [...lost(stats), ...(stats.open_transactions ? [count(stats.open_transactions, "open read")] : [])];
    const what = `The queue ${this.title} and its journal will be deleted permanently, with ${listed(held)}.`;
    if (!(await confirm(`Delete ${this.title}?`, what, `Delete ${this.title}`))) return;
    try {
      await call("DELETE", queuePath(this.name));
      toast(`${this.title} was deleted.`);
      location.hash = "#/";
    } catch (error) {
      toast(error.message, "error");
    }
  }

  async #requeue(xids, total = 1) {
    const what = `${count(total, "item")} of ${this.title} will go back to the head of the queue. A reader that still works on such an item can no longer confirm it, and another reader will get it.`;
    if (!(await confirm(`Requeue on ${this.title}?`, what, `Requeue on ${this.title}`))) return;
    const path = queuePath(this.name, "/open-reads/requeue");
    if (await this.#act(() => call("POST", path, { xids }), ({ requeued }) => `${count(requeued, "item")} back in ${this.title}.`)) this.items.load();
  }

  async #redrive(from) {
    if (!(await redrive(from))) return;
    await this.#detail();
    this.items.load();
  }

  key() {}

  close() {
    clearInterval(this.timer);
    clearInterval(this.past);
    for (const chart of [this.depth, this.rates, this.age]) chart.close();
  }
}
