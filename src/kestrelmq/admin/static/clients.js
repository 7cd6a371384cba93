// The page of the connected clients: what each does, and a button that disconnects it. Below them the
// owners of reserved reads, who may have no connection, and a button that releases what they hold.

import { call } from "./api.js";
import { confirm } from "./dialogs.js";
import { h, link, setText, setView, table, toast } from "./dom.js";
import { count, duration, moment, whole } from "./format.js";
import { store } from "./store.js";

const EVERY = 2000;
const PAGE = 100;
const STATES = { idle: "idle", waiting: "waits for an item", working: "works on a request", stalled: "does not read its replies" };

/** Return links to the queues of a list as `reserve` takes it, with the commas in names escaped. */
function links(list) {
  return list.split(",").map((name) => h("div", {}, link(name.replaceAll("%2C", ",").replaceAll("%25", "%"))));
}

export class ClientsPage {
  title = "Clients";
  #offset = 0;
  #total = 0;
  #shown = "";
  #owned = "";
  #busy = false;

  constructor(view) {
    this.#offset = Math.max(0, Math.trunc(Number(view.get("from"))) || 0);
    this.note = h("p", { class: "hint", role: "status", text: "Waiting for the server…" });
    this.list = h("div", {});
    this.owners = h("div", {});
    this.back = h("button", { type: "button", disabled: true, text: "Back", onclick: () => this.#go(-PAGE) });
    this.forth = h("button", { type: "button", disabled: true, text: "Next", onclick: () => this.#go(PAGE) });
    this.element = h("div", { class: "page" },
      h("h1", { text: "Clients" }), this.note,
      h("section", { class: "card panel", "aria-label": "Connected clients" }, this.list,
        h("div", { class: "pages", role: "group", "aria-label": "Pages of clients" }, this.back, this.forth)),
      h("section", { class: "card panel", "aria-label": "Owners of reserved reads" }, h("h2", { text: "Owners of reserved reads" }), this.owners));
    this.#load();
    this.timer = setInterval(() => this.#load(), EVERY);
  }

  #go(by) {
    this.#offset = Math.max(0, this.#offset + by);
    setView("#/clients", { from: this.#offset });
    this.#load();
  }

  async #load() {
    if (this.#busy || document.hidden) return;
    this.#busy = true;
    try {
      const { total, clients } = await call("GET", `/clients?offset=${this.#offset}&limit=${PAGE}`);
      this.#total = total;
      setText(this.note, total > PAGE ? `${count(total, "client")}; those from ${whole(this.#offset + 1)} on are shown.` : `${count(total, "client")}.`);
      this.#show(clients);
      this.#own(await call("GET", `/owners?limit=${PAGE}`));
    } catch (error) {
      setText(this.note, error.message);
    } finally {
      this.#busy = false;
    }
  }

  /** Show the rows, if they changed: a new table would take the focus from its buttons. */
  #show(clients) {
    this.back.disabled = this.#offset === 0;
    this.forth.disabled = this.#offset + PAGE >= this.#total;
    const text = JSON.stringify(clients);
    if (text === this.#shown) return;
    this.#shown = text;
    const focused = document.activeElement?.dataset.client;
    this.list.replaceChildren(clients.length
      ? table(["Client", "Protocol", "Connected", "Commands", "State", "Queue", "Open reads", "Action"], clients.map((client) => this.#row(client)), "Clients")
      : h("p", { class: "hint", text: "No client to show." }));
    if (focused) this.list.querySelector(`[data-client="${focused}"]`)?.focus();
  }

  /** Show the owners, likewise; ages to 10 s. */
  #own({ total, owners }) {
    const rows = owners.map((one) => ({ ...one, age: Math.floor(one.age / 10) * 10 }));
    const text = JSON.stringify([total, rows]);
    if (text === this.#owned) return;
    this.#owned = text;
    const focused = document.activeElement?.dataset.owner;
    this.owners.replaceChildren(...rows.length
      ? [...total > PAGE ? [h("p", { class: "hint", text: `${count(total, "owner")}; the first ${PAGE} are shown.` })] : [],
        table(["Owner", "Open reads", "Queues", "Open tags", "Has had reads for", "Connections", "Action"], rows.map((one) => this.#owner(one)), "Owners")]
      : [h("p", { class: "hint", text: "No owner has reads." })]);
    if (focused) [...this.owners.querySelectorAll("[data-owner]")].find((one) => one.dataset.owner === focused)?.focus();
  }

  #owner({ owner, reads, queues, tags, age, connections }) {
    return [
      h("bdi", { text: owner }), whole(reads), whole(queues), whole(tags), reads ? duration(1000 * age) : "–", whole(connections),
      h("button", { type: "button", class: "small danger", "data-owner": owner, "aria-label": `Release the reads of ${owner}`, text: "Release", onclick: () => this.#release(owner, reads) }),
    ];
  }

  async #release(owner, reads) {
    const what = `${count(reads, "open read")} of ${owner} will go back to the queues, and others will get the items. If ${owner} has stored them already, they are stored twice.`;
    if (!(await confirm(`Release the reads of ${owner}?`, what, `Release ${owner}`))) return;
    try {
      const { released } = await call("POST", "/release-owner", { owner });
      toast(`${count(released, "read")} of ${owner} went back.`);
      await this.#load();
    } catch (error) {
      toast(error.message, "error");
    }
  }

  #row({ id, name, user, address, protocol, since, commands, state, queue, open_reads: opened }) {
    const reads = Object.entries(opened).map(([name, number]) => h("div", {}, link(name), ` ${whole(number)}`));
    return [
      [name ? h("b", {}, h("bdi", { text: name })) : null, h("div", { text: address }), user ? h("div", { text: `user ${user}` }) : null], protocol, h("span", { title: `${duration(store.age(since))} ago`, text: moment(since) }), whole(commands),
      h("span", { class: `badge ${state}`, text: STATES[state] ?? state }), queue ? links(queue) : "–", reads.length ? reads : "–",
      h("button", { type: "button", class: "small danger", "data-client": id, "aria-label": `Disconnect ${address}`, text: "Disconnect", onclick: () => this.#disconnect(id, address, opened) }),
    ];
  }

  async #disconnect(id, address, opened) {
    const reads = Object.values(opened).reduce((sum, number) => sum + number, 0);
    const what = `${address} will be disconnected.${reads ? ` Its ${count(reads, "open read")} will go back to the queue, and others will get the items.` : ""}`;
    if (!(await confirm(`Disconnect ${address}?`, what, `Disconnect ${address}`))) return;
    try {
      await call("DELETE", `/clients/${id}`);
      toast(`${address} was disconnected.`);
      await this.#load();
    } catch (error) {
      toast(error.message, "error");
    }
  }

  update() {}

  key() {}

  close() {
    clearInterval(this.timer);
  }
}
