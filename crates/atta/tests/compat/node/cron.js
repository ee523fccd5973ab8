// The cron of a released version of Graphile Worker, beside others on the same schema:
//
//   node cron.js VERSION URL CRONTAB
//
// Runs until it is killed, and leaves the jobs alone.
"use strict";

const [version, connectionString, crontab] = process.argv.slice(2);
const worker = require(`graphile-worker-${version}`);

worker
  .run({
    connectionString,
    crontab,
    taskList: { other: () => {} },
    concurrency: 1,
    pollInterval: 3600000,
    noHandleSignals: true,
  })
  .then((runner) => runner.promise)
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  });
