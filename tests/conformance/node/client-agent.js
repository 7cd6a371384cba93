// Drives memcache-client of npm, unmodified, as agent.js does memcached; the second argument is an authority for TLS.
"use strict";

const { MemcacheClient } = require("memcache-client");
const fs = require("fs");
const readline = require("readline");

const [server, authority] = process.argv.slice(2);
const tls = authority ? { tls: { ca: fs.readFileSync(authority), servername: "localhost" } } : {};
const client = new MemcacheClient({ server, ...tls });
const lines = readline.createInterface({ input: process.stdin });

function answer(error, result) {
  const failure = error ? String(error.message || error) : null;
  process.stdout.write(JSON.stringify({ error: failure, result: result ?? null }) + "\n");
}

lines.on("line", (line) => {
  const [method, ...args] = JSON.parse(line);
  client[method](...args).then((result) => answer(null, result), (error) => answer(error));
});
lines.on("close", () => client.shutdown());
