// A worker of Graphile Worker 0.18 among the others of the chaos:
//
//   node chaos.js INSTANCE URL LEDGER_URL CRONTAB
//
// Writes to the same ledger as ours, past the proxy, until it is written.
"use strict";

const { randomUUID } = require("crypto");
const { Pool } = require("pg");
const worker = require("graphile-worker-0.18.0");

const [instance, connectionString, ledgerUrl, crontab] = process.argv.slice(2);
const ledger = new Pool({ connectionString: ledgerUrl, max: 4 });
ledger.on("error", () => {});

// Nobody would end it any more.
const parent = process.ppid;
setInterval(() => process.ppid === parent || process.exit(1), 500);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function insist(sql, parameters) {
  for (;;) {
    try {
      return await ledger.query(sql, parameters);
    } catch (error) {
      await sleep(50);
    }
  }
}

async function begin(job) {
  const id = randomUUID();
  await insist(
    `insert into chaos.runs
       (id, instance, worker_id, job_id, kind, revision, attempt, claimed_at, run_at, payload)
     values ($1, $2, $3, $4, $5, $6, $7, coalesce($8, clock_timestamp()), $9, $10) on conflict do nothing`,
    [
      id,
      instance,
      job.locked_by ?? "node",
      job.id,
      job.task_identifier,
      job.revision,
      job.attempts,
      job.locked_at,
      job.run_at,
      JSON.stringify(job.payload),
    ],
  );
  return id;
}

const end = (id, isDone, items) =>
  insist(
    `update chaos.runs
     set ended_at = coalesce(ended_at, clock_timestamp()), is_done = $2, items_done = $3 where id = $1`,
    [id, isDone, items],
  );

async function work(payload, { job }) {
  const run = await begin(job);
  await sleep(payload.ms ?? 0);
  const until = Date.now() + (payload.blocks_ms ?? 0) / 4;
  while (Date.now() < until);
  const fails = job.attempts <= (payload.fails ?? 0);
  await end(run, !fails, []);
  if (fails) throw new Error("as planned");
}

async function batch(items, { job }) {
  const run = await begin(job);
  const fails = (item) => job.attempts === 1 && item.n % 7 === 0;
  const done = items.filter((item) => !fails(item)).map((item) => item.n);
  await end(run, done.length === items.length, done);
  return items.map((item) => (fails(item) ? Promise.reject(new Error("as planned")) : null));
}

const kinds = "plain blocking late slow retrying failing scheduled replace preserve dedupe queued tick".split(" ");
const taskList = { batch, ...Object.fromEntries(kinds.map((kind) => [kind, work])) };

worker
  .run({ connectionString, taskList, crontab, concurrency: 3, pollInterval: 500 })
  .then((runner) => runner.promise)
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  })
  .finally(() => process.exit());
