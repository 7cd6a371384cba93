// The limits of a queue and what was refused because of them, by reason.

import { h, table } from "./dom.js";
import { bytes, whole } from "./format.js";

/** The statistic of each limit, its name for people, the statistic that it limits, and its unit. */
const LIMITS = [
  ["max_items", "Items", "items", whole],
  ["max_size", "Size", "bytes", bytes],
  ["max_item_size", "One item", null, bytes],
  ["max_memory_size", "In memory", "mem_bytes", bytes],
];
const REASONS = {
  refused_too_large: "The item was too large", refused_full_items: "The queue had its most items",
  refused_full_bytes: "The queue had its most bytes", refused_memory: "Memory was full, and there is no journal",
  refused_paused: "Writes were paused", refused_forbidden: "The client was not allowed",
  refused_failed: "The journal could not be written",
};

/** Make the panel's content. */
export function limits(stats) {
  const set = LIMITS.filter(([limit]) => limit in stats);
  const refused = Object.entries(REASONS).filter(([key]) => stats[key]);
  return [
    set.length
      ? table(["Limit", "Now", "Most"], set.map(([limit, label, now, format]) => [label, now ? format(stats[now] ?? 0) : "–", format(stats[limit])]), "Limits")
      : h("p", { class: "hint", text: "There are no limits." }),
    refused.length
      ? table(["Refused since the start", "Times"], refused.map(([key, label]) => [label, whole(stats[key])]), "Refusals")
      : h("p", { class: "hint", text: "Nothing has been refused since the start." }),
  ];
}
