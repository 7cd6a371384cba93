// The state of all queues, kept up to date by the server's events and read by the pages.

import { call } from "./api.js";

const KEPT = 150; // points of each queue
const SILENCE = 10_000; // ms without an event after which the stream is opened again

/** A queue: the fields of its row in the event stream, and its recent points. */
class Queue {
  constructor(name) {
    this.name = name;
    this.lower = name.toLowerCase();
    this.points = [];
  }

  set([, items, bytes, put, get, oldest, open, waiters, state, paused], time) {
    Object.assign(this, { items, bytes, put, get, oldest, open, waiters, state, paused });
    this.points.push({ time, items, put, get, oldest });
    if (this.points.length > KEPT) this.points.shift();
  }
}

/** How much a queue needs someone's care: 2 if it does not work, 1 if it is full or paused, otherwise 0. */
export function urgency({ state, paused }) {
  if (state === "failing" || state === "damaged") return 2;
  return paused || state === "full" ? 1 : 0;
}

export class Store extends EventTarget {
  queues = new Map();
  totals = null;
  points = []; // of all queues together
  connected = false;
  #before = new Map(); // the queues as they were when the stream was opened again
  #source = null;
  #heard = 0;
  #offset = 0; // ms to add to this browser's clock to get the server's time

  open() {
    this.#connect();
    setInterval(() => {
      if (Date.now() - this.#heard > SILENCE) this.#connect();
    }, 2000);
  }

  /** The server's time, in milliseconds. */
  now() {
    return Date.now() + this.#offset;
  }

  /** How long the oldest item of a queue, or of all, has waited. */
  age(oldest) {
    return oldest ? Math.max(0, this.now() - oldest) : 0;
  }

  async loadPast() {
    const { points } = await call("GET", "/history");
    const first = this.points[0]?.time ?? Infinity;
    this.points = [...points.map(fromApi).filter((point) => point.time < first), ...this.points];
  }

  #connect() {
    this.#source?.close();
    this.#heard = Date.now();
    this.#source = new EventSource("/api/v1/events");
    this.#source.onerror = () => this.#set(false);
    this.#on("reset", () => {
      this.#before = this.queues;
      this.queues = new Map();
    });
    this.#on("gone", (names) => names.forEach((name) => this.queues.delete(name)));
    this.#on("rows", (rows) => {
      const time = this.now();
      for (const row of rows) {
        let queue = this.queues.get(row[0]);
        if (!queue) this.queues.set(row[0], (queue = this.#before.get(row[0]) ?? new Queue(row[0])));
        queue.set(row, time);
      }
    });
    this.#on("server", (totals) => {
      this.#offset = totals.time - Date.now();
      this.totals = totals;
      this.points.push({
        time: totals.time, items: totals.items, put: totals.put_rate, get: totals.get_rate,
        oldest: totals.oldest, connections: totals.connections,
      });
      if (this.points.length > 400) this.points.shift();
      this.#set(true);
      this.dispatchEvent(new Event("tick"));
    });
  }

  #on(name, act) {
    const source = this.#source;
    source.addEventListener(name, (event) => {
      if (source !== this.#source) return;
      this.#heard = Date.now();
      act(JSON.parse(event.data));
    });
  }

  #set(connected) {
    if (connected === this.connected) return;
    this.connected = connected;
    this.dispatchEvent(new Event("connection"));
  }
}

/** Convert a point of the API's history to a point of the store. */
export const fromApi = ({ time, items, put_rate, get_rate, oldest }) => ({
  time, items, put: put_rate, get: get_rate, oldest,
});

export const store = new Store();
