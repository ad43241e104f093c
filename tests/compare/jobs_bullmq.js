// Jobs of BullMQ: `fill` adds them, `work` is one of three workers. Groups are in its Pro version only, so tenants have
// one queue, where jobs of the shut one are put off as the manual says (`moveToDelayed`), or a queue each, of which one is
// paused.
"use strict";
const fs = require("node:fs");
const env = process.env;
const { DelayedError, Queue, Worker } = require(`${env.MODULES}/node_modules/bullmq`);

const connection = { host: "127.0.0.1", port: Number(env.REDIS), maxRetriesPerRequest: null };
const tenants = env.TENANTS.split(",");
const each = env.QUEUES === "each";
const queueOf = (tenant) => (each ? `sync-${tenant}` : "sync");

const fill = async () => {
  const queues = new Map();
  const add = async (tenant, count) => {
    const name = queueOf(tenant);
    if (!queues.has(name)) queues.set(name, new Queue(name, { connection }));
    const jobs = Array.from({ length: count }, () => ({ name: "sync", data: { tenant } }));
    while (jobs.length) await queues.get(name).addBulk(jobs.splice(0, 1000));
  };
  await add("shut", Number(env.SHUT));
  for (const tenant of tenants.slice(1)) await add(tenant, 1);
  if (each) await queues.get(queueOf("shut")).pause();
  process.exit(0);
};

const work = async () => {
  const started = fs.openSync(env.STARTED, "w");
  const run = async (job, token) => {
    fs.writeSync(started, `${job.data.tenant} ${process.hrtime.bigint()}\n`);
    if (job.data.tenant !== "shut") return;
    await job.moveToDelayed(Date.now() + 3_600_000, token);
    throw new DelayedError();
  };
  const names = [...new Set(tenants.map(queueOf))];
  const workers = names.map((name) => new Worker(name, run, { connection, concurrency: 10, autorun: false }));
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  fs.writeFileSync(env.READY, "");
  while (!fs.existsSync(env.GO)) await new Promise((wake) => setTimeout(wake, 10));
  for (const worker of workers) worker.run();
};

process.argv[2] === "fill" ? fill() : work();
