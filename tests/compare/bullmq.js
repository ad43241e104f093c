// A worker of BullMQ that makes calls, or with `callers` the program that adds jobs and waits until each is done.
"use strict";
const { ask, note, post, callers, modules } = require("./call.js");
const { Queue, QueueEvents, Worker } = modules("bullmq");
const Redis = modules("ioredis");

const connection = () => new Redis({ port: ask.redis, maxRetriesPerRequest: null });

const work = () => {
  const worker = new Worker(
    "calls",
    async (job) => {
      const reply = await post(job.data);
      if (reply.status === 200) return;
      note("vendor", reply.status);
      // As the manual of BullMQ says what to do when a service says 429.
      await worker.rateLimit(1000 * (reply.after || 0.5));
      throw Worker.RateLimitError();
    },
    { connection: connection(), concurrency: 22, limiter: ask.limiter ?? undefined, removeOnComplete: { count: 1000 } },
  );
  worker.on("error", (error) => note("error", String(error)));
  worker.on("failed", (_, error) => note("broken", String(error)));
};

const add = async () => {
  const queue = new Queue("calls", { connection: connection() });
  const events = new QueueEvents("calls", { connection: connection() });
  events.setMaxListeners(0);
  await queue.setGlobalConcurrency(ask.at_once);
  await events.waitUntilReady();
  await callers(async (call) => {
    const data = { body: call.body };
    for (;;) {
      const job = await queue.add("call", data, { attempts: 10, backoff: { type: "exponential", delay: 500 } });
      try {
        await job.waitUntilFinished(events, 30_000);
        return;
      } catch (error) {
        note("broken", String(error));
      }
    }
  });
};

ask.loud ? add() : work();
