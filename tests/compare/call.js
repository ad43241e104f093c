// One call to the vendor, as caller.py makes it, for the limiters of Node.
"use strict";
const http = require("node:http");
const fs = require("node:fs");

const ask = JSON.parse(process.argv[2]);
const log = fs.openSync(ask.log, "a");
const now = () => process.hrtime.bigint();
const note = (...what) => fs.writeSync(log, `[${now()},${what.map((part) => (typeof part === "bigint" ? part : JSON.stringify(part))).join(",")}]\n`);
const sleep = (seconds) => new Promise((wake) => setTimeout(wake, seconds * 1000));

// Numbers by chance that are the same in each run (mulberry32).
let seed = ask.seed;
const chance = () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};

// What a call asks of the vendor.
const wanted = (tenant) => {
  const want = now();
  const wants = `{"want":${want},"tenant":"${tenant}","ms":${50 + Math.floor(chance() * 351)}}`;
  const body = JSON.stringify({ model: "m", stream: chance() < 0.5, messages: [{ role: "user", content: wants }] });
  return { want, tenant, body };
};

// One try: its status, and how many seconds the vendor says to wait.
const post = ({ body }) =>
  new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body), connection: "close" };
    const to = { host: "127.0.0.1", port: ask.vendor, path: "/v1/chat/completions", method: "POST", headers };
    const request = http.request(to, (reply) => {
      let text = "";
      reply.on("data", (data) => (text += data));
      reply.on("error", reject);
      reply.on("end", () => {
        if (reply.statusCode === 200 && !text.includes("END-OF-ANSWER")) return reject(new Error("cut"));
        resolve({ status: reply.statusCode, after: Number(reply.headers["retry-after"] ?? 0) });
      });
    });
    request.on("error", reject);
    request.end(body);
  });

const begin = () => sleep(Number(BigInt(ask.begin) - now()) / 1e9);

// Callers: `make(tenant)` makes one call, and is done when that is.
const callers = async (make) => {
  const pending = new Map();
  process.on("SIGTERM", () => {
    for (const [want, tenant] of pending) note("pending", want, tenant);
    process.exit(0);
  });
  await begin();
  const one = async (tenant) => {
    const call = wanted(tenant);
    pending.set(call.want, tenant);
    await make(call);
    pending.delete(call.want);
  };
  const loud = async () => {
    for (;;) await one("loud");
  };
  const quiet = async () => {
    for (;;) {
      await sleep(0.5 + chance());
      await one("quiet");
    }
  };
  await Promise.all([...Array.from({ length: ask.loud }, loud), ...Array.from({ length: ask.quiet }, quiet)]);
};

module.exports = { ask, note, sleep, post, begin, callers, modules: (name) => require(`${ask.modules}/node_modules/${name}`) };
