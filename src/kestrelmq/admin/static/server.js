// The page of the server: status, statistics, configuration, damaged queues.

import { call } from "./api.js";
import { confirm } from "./dialogs.js";
import { h, link, pairs, setText, table, toast } from "./dom.js";
import { bytes, duration, moment, plain, REPAIR, whole } from "./format.js";
import { needs, rights } from "./rights.js";

const EVERY = 3000;

function shown(name, value) {
  if (typeof value !== "number") return String(value);
  if (name === "uptime") return duration(value * 1000);
  if (name === "time") return moment(value * 1000);
  return /^(bytes|disk)/.test(name) ? bytes(value) : whole(value);
}

export class ServerPage {
  title = "Server";
  #shown = "";

  constructor() {
    this.stats = h("div", {});
    this.damaged = h("div", {});
    this.config = h("pre", { class: "json", tabindex: "0", "aria-label": "Configuration in force" });
    this.note = h("p", { class: "hint" });
    this.element = h("div", { class: "page" },
      h("div", { class: "queue-head" }, h("h1", { text: "Server" }), h("span", { class: "spring" }),
        h("div", { class: "actions" },
          h("button", { type: "button", text: "Reload configuration", ...needs(rights, "admin"), onclick: () => this.#reload() }))),
      this.note,
      h("div", { class: "panels" },
        h("section", { class: "card panel", "aria-label": "Statistics" }, h("h2", { text: "Statistics" }), this.stats),
        h("section", { class: "card panel", "aria-label": "Damaged queues" }, h("h2", { text: "Damaged queues" }), this.damaged),
        h("section", { class: "card panel wide", "aria-label": "Configuration" }, h("h2", { text: "Configuration in force" }), this.config)));
    this.#load();
    if (rights.admin) this.#configuration();
    else setText(this.config, "Only an admin may see it.");
    this.timer = setInterval(() => this.#load(), EVERY);
  }

  async #load() {
    if (document.hidden) return;
    try {
      const server = await call("GET", "/server");
      setText(this.note, `kestrelmq ${server.version} (${server.build}), ${server.status.status} since ${moment(server.status.since)}. ${
        server.changes_allowed ? (server.token_needed ? "Changes need an admin token." : "Clients on this machine, or users who may, can make changes.") : "Changes are refused: no admin_tokens are configured."}`);
      this.stats.replaceChildren(pairs(Object.entries(server.stats).map(([name, value]) => [name, shown(name, value)])));
      this.#showDamaged(Object.entries(server.damaged), server.loading.length);
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  /** Show the damaged queues, if they changed: a new table would take the focus from its links. */
  #showDamaged(damaged, loading) {
    const text = JSON.stringify([damaged, loading]);
    if (text === this.#shown) return;
    this.#shown = text;
    this.damaged.replaceChildren(...(damaged.length
      ? [table(["Queue", "Reason"], damaged.map(([name, reason]) => [link(name), plain(reason)]), "Reasons"), h("p", { class: "hint", text: REPAIR })]
      : [h("p", { class: "hint", text: loading ? `None so far: ${loading} still loading.` : "None: every queue could be loaded." })]));
  }

  async #configuration() {
    try {
      const { config } = await call("GET", "/config");
      setText(this.config, JSON.stringify(config, null, 2));
    } catch (error) {
      setText(this.config, error.message);
    }
  }

  async #reload() {
    if (!(await confirm("Reload the configuration?", "The settings of queues and aliases will be read again from the configuration file.", "Reload"))) return;
    try {
      const { needs_restart: names } = await call("POST", "/reload");
      toast(names.length ? `Reloaded. These need a restart: ${names.join(", ")}.` : "The configuration was reloaded.");
      this.#configuration();
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
