// The harness of graphile-worker, the npm package: SETTING MODE COUNT, and the database in DATABASE_URL.
//
//   node harness.js 4x24 prepare|drain|add|latency|late|cost COUNT
//
// The setting is the number of processes and of concurrent jobs in each, for a drain and for the cost; the cost is measured
// with default settings except for the number of concurrent jobs. Latency and lateness use one such process. Prints one line
// of JSON. Packages are found by NODE_PATH.
"use strict";

const fs = require("node:fs");
const { fork } = require("node:child_process");
const { Client, Pool } = require("pg");
const { Logger, makeWorkerUtils, run } = require("graphile-worker-0.18.0");

const AHEAD_MS = 1000;
const PATIENCE_MS = 240_000;

const connectionString = process.env.DATABASE_URL;
const [setting, mode, countText] = process.argv.slice(2);
const [PROCESSES, CONCURRENT_JOBS] = setting.split("x").map(Number);
const count = Number(countText);
const silent = new Logger(() => () => {});
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The wall clock in fractions of a millisecond.
const now = () => performance.timeOrigin + performance.now();

const print = (report) => console.log(JSON.stringify(report));

async function prepare() {
  const utils = await makeWorkerUtils({ connectionString, logger: silent });
  await utils.migrate();
  await utils.release();
}

async function add() {
  const utils = await makeWorkerUtils({ connectionString, logger: silent });
  // Opens the connection and does the work that only the first call does.
  await utils.withPgClient((client) => client.query("select 1"));
  const jobs = Array.from({ length: count }, () => ({ identifier: "noop", payload: {} }));
  const start = now();
  await utils.addJobs(jobs);
  print({ seconds: (now() - start) / 1000 });
  await utils.release();
}

// One process of a drain: reports that it is ready, starts on a message from its parent, and reports how many jobs it
// has run.
async function drainMember() {
  let done = 0;
  const pgPool = new Pool({ connectionString, max: 10 });
  await pgPool.query("select 1");
  process.on("disconnect", () => process.exit(0));
  process.on("message", async () => {
    setInterval(() => process.send({ done }), 5);
    await run({
      pgPool,
      logger: silent,
      concurrency: CONCURRENT_JOBS,
      noHandleSignals: true,
      taskList: {
        noop: () => {
          done += 1;
        },
      },
      preset: {
        worker: {
          localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
  });
  process.send({ ready: true });
}

// One process that works with default settings while its parent adds jobs.
async function costMember() {
  let done = 0;
  const runner = await run({
    connectionString,
    logger: silent,
    concurrency: CONCURRENT_JOBS,
    noHandleSignals: true,
    taskList: {
      noop: () => {
        done += 1;
      },
    },
  });
  process.on("disconnect", () => runner.stop().finally(() => process.exit(0)));
  setInterval(() => process.send({ done }), 5);
}

// The CPU time of a server with all its processes, in seconds, as in bench/common.
function cpuSeconds(postgres) {
  let ticks = 0;
  for (const name of fs.readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    let stat;
    try {
      stat = fs.readFileSync(`/proc/${name}/stat`, "latin1");
    } catch {
      continue;
    }
    const fields = stat.slice(stat.lastIndexOf(") ") + 2).split(" ");
    const sum = (...places) => places.reduce((total, place) => total + Number(fields[place]), 0);
    if (name === String(postgres)) ticks += sum(11, 12, 13, 14);
    else if (fields[1] === String(postgres)) ticks += sum(11, 12);
  }
  return ticks / 100;
}

// Adds jobs one by one at the rate of BENCH_RATE per second, and prints what each job that ran cost the server. The first
// second does not count.
async function cost() {
  const rate = Number(process.env.BENCH_RATE);
  const postgres = process.env.BENCH_POSTGRES_PID;
  const pgPool = new Pool({ connectionString, max: 16 });
  const utils = await makeWorkerUtils({ pgPool, logger: silent });
  const done = new Array(PROCESSES).fill(0);
  const members = done.map((_, index) => {
    const member = fork(__filename, [setting, "cost-member", "0"]);
    member.on("message", (message) => {
      done[index] = message.done;
    });
    return member;
  });
  // The first jobs show that the workers run.
  await sleep(1500);
  const ran = () => done.reduce((sum, n) => sum + n, 0);
  let start, cpu, before;
  const adding = new Set();
  const delays = [];
  const begin = now();
  for (let n = 0; n < rate * (count + 1); n++) {
    if (n === rate) [start, cpu, before] = [now(), cpuSeconds(postgres), ran()];
    await sleep(begin + (n * 1000) / rate - now());
    const since = now();
    const one = utils.addJob("noop", {}).then(() => {
      adding.delete(one);
      delays.push(now() - since);
    });
    adding.add(one);
    if (adding.size >= 16) await Promise.race(adding);
  }
  const [seconds, used, jobs] = [(now() - start) / 1000, cpuSeconds(postgres) - cpu, ran() - before];
  delays.sort((a, b) => a - b);
  print({ cpu_ms: (used * 1000) / Math.max(jobs, 1), rate: jobs / seconds, add_ms: delays[delays.length >> 1] });
  await Promise.all(adding);
  for (const member of members) member.disconnect();
  await utils.release();
  await pgPool.end();
}

async function drain() {
  const client = new Client({ connectionString });
  await client.connect();
  const done = new Array(PROCESSES).fill(0);
  let ready = 0;
  const members = done.map((_, index) => {
    const member = fork(__filename, [setting, "drain-member", "0"]);
    member.on("message", (message) => {
      if (message.ready) ready += 1;
      else done[index] = message.done;
    });
    return member;
  });
  try {
    while (ready < PROCESSES) await sleep(5);
    const start = now();
    for (const member of members) member.send("start");
    // The table is queried only after the last job has run: the query reads all dead rows in it.
    while (done.reduce((sum, n) => sum + n, 0) < count) await patience(start);
    for (;;) {
      const { rows } = await client.query(
        "select not exists (select from graphile_worker._private_jobs) as is_empty",
      );
      if (rows[0].is_empty) break;
      await patience(start);
    }
    print({ seconds: (now() - start) / 1000 });
  } finally {
    for (const member of members) member.disconnect();
    await client.end();
  }
}

async function patience(start) {
  if (now() - start > PATIENCE_MS) throw new Error("the jobs do not end");
  await sleep(1);
}

// A worker whose jobs report how late they start, compared with the time in their payload.
async function withPinger(work) {
  const waiting = [];
  const delays = [];
  const runner = await run({
    connectionString,
    logger: silent,
    concurrency: CONCURRENT_JOBS,
    noHandleSignals: true,
    taskList: {
      ping: ({ due }) => {
        const delay = now() - due;
        const first = waiting.shift();
        if (first) first(delay);
        else delays.push(delay);
      },
    },
  });
  const next = () =>
    delays.length > 0 ? delays.shift() : new Promise((resolve) => waiting.push(resolve));
  // Waits for the worker's first poll and its LISTEN.
  await sleep(500);
  await work(runner, next);
  await runner.stop();
}

async function latency() {
  await withPinger(async (runner, next) => {
    const warmUp = Math.min(Math.max(Math.floor(count / 20), 1), 20);
    const seen = [];
    for (let n = 0; n < warmUp + count; n++) {
      await runner.addJob("ping", { due: now() });
      const delay = await next();
      if (n >= warmUp) seen.push(delay);
    }
    printPercentiles(seen);
  });
}

// All are added before the first is due: an add wakes a worker, and a worker that is woken all the time is never late.
async function late() {
  await withPinger(async (runner, next) => {
    const seen = [];
    for (let n = 0; n < count; n++) {
      // A Date has whole milliseconds, so the payload has them too.
      const due = Math.ceil(now()) + AHEAD_MS;
      await runner.addJob("ping", { due }, { runAt: new Date(due) });
    }
    for (let n = 0; n < count; n++) seen.push(await next());
    printPercentiles(seen);
  });
}

function printPercentiles(seen) {
  seen.sort((a, b) => a - b);
  const at = (share) => Number(seen[Math.max(Math.ceil(share * seen.length) - 1, 0)].toFixed(3));
  print({ p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1) });
}

const members = { "drain-member": drainMember, "cost-member": costMember };
const modes = { prepare, drain, add, latency, late, cost, ...members };
const work = modes[mode];
if (!work || Number.isNaN(count)) {
  console.error("usage: SETTING prepare|drain|add|latency|late|cost COUNT");
  process.exit(2);
}
work().catch((error) => {
  console.error(error);
  process.exit(2);
});
