// Callers behind a Bottleneck that is clustered over Redis, as its README says.
"use strict";
const { ask, note, sleep, post, callers, modules } = require("./call.js");
const Bottleneck = modules("bottleneck");

const limiter = new Bottleneck({
  id: "compare",
  datastore: "redis",
  Redis: modules("redis"),
  clearDatastore: false,
  clientOptions: { host: "127.0.0.1", port: ask.redis },
  maxConcurrent: ask.at_once,
  minTime: Math.ceil(1000 / ask.rate),
});
limiter.on("error", (error) => note("error", String(error)));

// `expiration` is strongly recommended: it frees the slots of a process that died.
callers(async (call) => {
  for (;;) {
    let reply;
    try {
      reply = await limiter.schedule({ expiration: 10_000 }, () => post(call));
    } catch (error) {
      note("broken", String(error));
      continue;
    }
    if (reply.status === 200) return;
    note("vendor", reply.status);
    await sleep(reply.after || 0.5);
  }
});
