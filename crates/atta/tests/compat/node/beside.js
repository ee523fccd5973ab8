// A worker of one released version of Graphile Worker, beside others on the same schema:
//
//   node beside.js VERSION URL
//
// Runs until it is killed. Needs the tables public.ledger and public.gate.
"use strict";

const [version, connectionString] = process.argv.slice(2);
const worker = require(`graphile-worker-${version}`);
// Claims ahead of its slots from the version on that does so without breaking queues.
const preset = version === "0.17.3" ? {} : { worker: { localQueue: { size: 8 } } };

async function write_down(helpers, work) {
  const { rows } = await helpers.query(
    "insert into public.ledger (by, job_id, attempt) values ('node', $1, $2) returning id",
    [helpers.job.id, helpers.job.attempts],
  );
  await work();
  await helpers.query("update public.ledger set ended_at = clock_timestamp() where id = $1", [rows[0].id]);
}

const taskList = {
  node_step: (payload, helpers) =>
    write_down(helpers, () => new Promise((resolve) => setTimeout(resolve, payload.ms ?? 0))),

  node_adds: (payload, helpers) =>
    write_down(helpers, async () => {
      const { runAt, ...spec } = payload.spec ?? {};
      for (let n = 0; n < payload.count; n++) {
        await helpers.addJob(payload.task, { n }, runAt ? { ...spec, runAt: new Date(runAt) } : spec);
      }
    }),

  node_holds: (payload, helpers) =>
    write_down(helpers, async () => {
      for (;;) {
        const { rows } = await helpers.query("select from public.gate");
        if (rows.length > 0) return;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }),
};

worker
  .run({ connectionString, preset, taskList, concurrency: 4, pollInterval: 100, noHandleSignals: true })
  .then((runner) => runner.promise)
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  });
