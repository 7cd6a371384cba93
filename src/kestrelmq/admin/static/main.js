// The frame around the pages: navigation, the status switch, the theme.

import { askSignIn, call } from "./api.js";
import { ClientsPage } from "./clients.js";
import { confirm } from "./dialogs.js";
import { setText, toast } from "./dom.js";
import { moment } from "./format.js";
import { Overview } from "./overview.js";
import { QueuePage } from "./queue.js";
import { rights, setNeeds } from "./rights.js";
import { ServerPage } from "./server.js";
import { store } from "./store.js";

const MEANINGS = {
  UP: "everything is served",
  WRITEAVOID: "the server leaves the write set, but still accepts items",
  READONLY: "adding, flushing and deleting are refused",
  QUIESCENT: "reading and adding are refused",
};
const main = document.getElementById("main");
const live = document.getElementById("live");
const lost = document.getElementById("lost");
const status = document.getElementById("status");
const memory = {};
let page = null;

/** The address of a page, and what it says of the page's view. */
function place() {
  const [path, query = ""] = location.hash.split("?", 2);
  return { path, view: new URLSearchParams(query) };
}

function pageFor({ path, view }) {
  const queue = path.match(/^#\/queue\/(.+)$/);
  if (queue) {
    try {
      return new QueuePage(decodeURIComponent(queue[1]), view);
    } catch {
      return new Overview(memory, view);
    }
  }
  if (path === "#/clients") return new ClientsPage(view);
  return path === "#/server" ? new ServerPage() : new Overview(memory, view);
}

function show(focus = true) {
  page?.close();
  const { path } = place();
  page = pageFor(place());
  main.replaceChildren(page.element);
  page.update();
  document.title = `${page.title} · kestrelmq`;
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.hash === (["#/clients", "#/server"].includes(path) ? path : "#/");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function showStatus() {
  const value = store.connected ? store.totals.status : "";
  if (!value || document.activeElement !== status) status.value = value;
  status.dataset.status = value;
}

async function changeStatus() {
  const wanted = status.value;
  const label = status.selectedOptions[0].textContent;
  status.blur();
  if (await confirm(`Set the status to ${label}?`, `${label}: ${MEANINGS[wanted]}.`, `Set to ${label}`)) {
    try {
      const answer = await call("PUT", "/status", { status: wanted });
      store.totals.status = answer.status;
      toast(`The status is ${label}.`);
    } catch (error) {
      toast(error.message, "error");
    }
  }
  showStatus();
}

function showConnection() {
  setText(live, store.connected ? "Live" : "Reconnecting");
  live.classList.toggle("on", store.connected);
  document.body.classList.toggle("stale", !store.connected);
  lost.hidden = store.connected;
  if (!store.connected) setText(lost, `The server cannot be reached. What you see is from ${moment(store.totals?.time)} and may be wrong.`);
  showStatus();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("kestrelmq-theme", theme);
}

function initialTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return localStorage.getItem("kestrelmq-theme") ?? (dark ? "dark" : "light");
}

document.documentElement.dataset.theme = initialTheme();
document.getElementById("theme").addEventListener("click", () =>
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
status.addEventListener("change", changeStatus);
addEventListener("hashchange", () => show());
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) page.key(event);
});
store.addEventListener("connection", showConnection);
store.addEventListener("tick", () => {
  showStatus();
  if (!document.hidden) page.update();
});
const out = document.getElementById("sign-out");
out.addEventListener("click", async () => {
  await call("DELETE", "/session");
  location.reload();
});
const session = await call("GET", "/session").catch(() => null);
if (session?.has_users) {
  if (session.user === null) await askSignIn();
  out.title = `Signed in as ${session.user}`;
  out.hidden = false;
  Object.assign(rights, session);
  document.getElementById("clients").hidden = !rights.admin;
  setNeeds(status, rights, "admin");
}
show(false);
store.open();
store.loadPast().catch(() => {});
