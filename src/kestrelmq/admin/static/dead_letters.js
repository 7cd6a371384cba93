// Dead letters: the queue that they go to and the queues that they come from, with counts, and redrive.

import { call, queuePath } from "./api.js";
import { confirm } from "./dialogs.js";
import { h, link, table, toast } from "./dom.js";
import { count, named, plain, whole } from "./format.js";
import { needs } from "./rights.js";

/** Make the panel's content; `rightsOf(queue)` is what the user may do with one of the two, and `redrive(from)` moves the dead letters of a queue back to where they came from. */
export function deadLetters({ name, settings, stats, dead_letter_queue: target, dead_letters_of: sources }, rightsOf, redrive) {
  if (!target && !sources.length) return h("p", { class: "hint", text: "This queue has no dead-letter queue, and is not one." });
  const button = (from, items) => h("button", {
    type: "button", class: "small", ...needs(rightsOf(from), "can_read", items > 0), "aria-label": `Redrive ${named(from)}`, text: "Redrive",
    onclick: () => redrive(from),
  });
  const parts = [];
  if (target) {
    const limit = Number(settings.max_deliveries);
    parts.push(
      h("p", { class: "hint", text: `Items go there ${limit ? `after ${count(limit, "delivery", "deliveries")}` : "when a reader rejects them"}; ${count(stats.dead_lettered ?? 0, "item")} since the start.` }),
      table(["Dead-letter queue", "Items", "Action"],
        [[link(target.name), whole(target.items), button(target.name, target.items)]], "Dead-letter queue"));
  }
  if (sources.length) {
    const items = stats.items ?? 0;
    parts.push(
      h("p", { class: "hint", text: `The dead letters of ${sources.length === 1 ? "this queue" : "these queues"} come here.` }),
      table(["Queue", "Items"], sources.map((source) => [link(source.name), whole(source.items)]), "Sources of dead letters"),
      button(name, items));
  }
  return parts;
}

/** Move the dead letters of `from` back after a question; return whether anything was done. */
export async function redrive(from) {
  try {
    const { stats } = await call("GET", queuePath(from));
    const what = `${count(stats.items ?? 0, "item")} of ${named(from)} will be added to the queues that they came from, and to no fanout children of those. What came from unknown queues stays.`;
    if (!(await confirm(`Redrive ${named(from)}?`, what, `Redrive ${named(from)}`))) return false;
    const { count: moved, stopped } = await call("POST", queuePath(from, "/redrive"), {});
    toast(`${count(moved, "item")} of ${named(from)} moved back.${stopped ? ` ${plain(stopped)}.` : ""}`, stopped ? "error" : "info");
    return true;
  } catch (error) {
    toast(error.message, "error");
    return false;
  }
}
