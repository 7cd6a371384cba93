// Drives the memcached client of npm, unmodified: a JSON command a line in, a JSON answer a line out.
"use strict";

const Memcached = require("memcached");
const readline = require("readline");

const client = new Memcached(process.argv[2], { retries: 0, timeout: 30000, poolSize: 1 });
const lines = readline.createInterface({ input: process.stdin });

function answer(error, result) {
  const failure = error ? String(error.message || error) : null;
  process.stdout.write(JSON.stringify({ error: failure, result: result ?? null }) + "\n");
}

lines.on("line", (line) => {
  const [method, ...args] = JSON.parse(line);
  client[method](...args, answer);
});
lines.on("close", () => client.end());
