// One released version of Graphile Worker, at work on a database:
//
//   node release.js VERSION URL migrate   installs or upgrades the schema
//   node release.js VERSION URL add       the same, and adds jobs in every way its addJob knows
//   node release.js VERSION URL work      runs jobs until none is due
//   node release.js VERSION URL listen    runs jobs until it is told to stop, by whatever means
//   node release.js VERSION URL add_through SCHEMA   adds two jobs by the functions of that schema
//
// Needs the table public.ran (by text, job_id bigint, task text, payload json), where tasks leave their mark.
"use strict";

const [version, connectionString, command, schema] = process.argv.slice(2);
const worker = require(`graphile-worker-${version}`);
const options = { connectionString, pollInterval: 100, noHandleSignals: true };

async function mark(payload, helpers) {
  const { id, task_identifier: task } = helpers.job;
  await helpers.query("insert into public.ran (by, job_id, task, payload) values ($1, $2, $3, $4)", [
    version,
    id,
    task,
    JSON.stringify(payload),
  ]);
}

const taskList = {
  mark,
  mark_and_add: async (payload, helpers) => {
    await mark(payload, helpers);
    await helpers.addJob("mark", { addedBy: version }, { jobKey: "added", queueName: "serial" });
  },
  fail: async () => {
    throw new Error("it went wrong on purpose");
  },
};

const commands = {
  migrate: () => worker.runMigrations(options),

  add: async () => {
    await worker.runMigrations(options);
    const utils = await worker.makeWorkerUtils(options);
    const later = new Date("2100-01-02T03:04:05.678Z");
    await utils.addJob("from_node", { plain: true });
    await utils.addJob("from_node", { text: "Grüße, 世界", nested: [1, { a: null }] });
    await utils.addJob("from_node", { queued: 1 }, { queueName: "node queue" });
    await utils.addJob("from_node", { queued: 2 }, { queueName: "node queue" });
    await utils.addJob("from_node_later", {}, { runAt: later, maxAttempts: 3 });
    await utils.addJob("from_node", { keyed: "first" }, { jobKey: "node key" });
    await utils.addJob("from_node", { keyed: "second" }, { jobKey: "node key" });
    // What a version does not know yet, it leaves out.
    await utils.addJob("from_node", {}, { priority: -5, flags: ["red", "blue"], jobKeyMode: "preserve_run_at" });
    await utils.release();
  },

  add_through: async () => {
    const utils = await worker.makeWorkerUtils({ ...options, schema });
    await utils.addJob("mark", { one: 1 }, { queueName: "serial", jobKey: "one" });
    await utils.addJobs([{ identifier: "mark", payload: { two: 2 } }]);
    await utils.release();
  },

  work: () => worker.runOnce({ ...options, taskList }),

  listen: async () => {
    const runner = await worker.run({ ...options, taskList });
    await runner.promise;
  },
};

commands[command]().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
