// The second argument of a task: the job, adding jobs, and the abort signal.
"use strict";

const { query, withPgClient } = require("./database.cjs");
const { framesOf } = require("./errors.cjs");
const { Logger } = require("./logger.cjs");
const { send, worker } = require("./transport.cjs");

/** Run number to the controller of its abort signal, for runs whose task asked for one, or that were aborted. */
const controllers = new Map();
let isAborted = false;
/** Call number to the promise that waits for the reply. */
const calls = new Map();
let nextCall = 1;

function abortController(run) {
  let controller = controllers.get(run);
  if (!controller) {
    controller = new AbortController();
    controllers.set(run, controller);
    if (isAborted) controller.abort(new Error("the worker is shutting down"));
  }
  return controller;
}

function makeHelpers(run, task, columns, payload) {
  let job;
  let logger;
  let abortPromise;
  const getLogger = () =>
    (logger ??= new Logger({ label: "job", workerId: worker.id, taskIdentifier: task, jobId: columns.id }, run));
  return {
    get job() {
      return (job ??= makeOwnJob(columns, task, payload));
    },
    get logger() {
      return getLogger();
    },
    get abortSignal() {
      return abortController(run).signal;
    },
    get abortPromise() {
      if (!abortPromise) {
        const { signal } = abortController(run);
        abortPromise = new Promise((_, reject) => {
          if (signal.aborted) reject(signal.reason);
          else signal.addEventListener("abort", () => reject(signal.reason), { once: true });
        });
        abortPromise.catch(() => {});
      }
      return abortPromise;
    },
    getQueueName(id) {
      const own = columns.job_queue_id ?? null;
      if (id === undefined || id === null || id === own) return columns.queue_name ?? null;
      return Promise.reject(new Error("getQueueName can return only the queue of the running job"));
    },
    addJob,
    addJobs,
    query,
    withPgClient,
    debug: (message, meta) => getLogger().debug(message, meta),
  };
}

const toDate = (micros) => new Date(Math.floor(micros / 1000));

/** The running job: it counts as locked by this worker, whatever its row contains. */
const makeOwnJob = (columns, task, payload) => ({
  ...makeJob(columns, task, payload),
  locked_at: new Date(),
  locked_by: worker.id,
  is_available: false,
});

function makeJob(columns, task, payload) {
  const maxAttempts = columns.max_attempts ?? 25;
  const created = columns.created_at ?? columns.run_at;
  let flags = null;
  if (columns.flags) {
    flags = {};
    for (const flag of columns.flags) flags[flag] = true;
  }
  return {
    id: columns.id,
    task_id: columns.task_id,
    job_queue_id: columns.job_queue_id ?? null,
    queue_name: columns.queue_name ?? null,
    payload,
    priority: columns.priority ?? 0,
    run_at: toDate(columns.run_at),
    attempts: columns.attempts,
    max_attempts: maxAttempts,
    last_error: columns.last_error ?? null,
    created_at: toDate(created),
    updated_at: toDate(columns.updated_at ?? created),
    key: columns.key ?? null,
    revision: columns.revision ?? 0,
    flags,
    locked_at: columns.locked_at === undefined ? null : toDate(columns.locked_at),
    locked_by: columns.locked_by ?? null,
    is_available: columns.locked_at === undefined && columns.attempts < maxAttempts,
    task_identifier: task,
  };
}

/** Asks the worker to add jobs. */
function call(add, preserveRunAt) {
  return new Promise((resolve, reject) => {
    if (!Array.isArray(add)) throw new TypeError("the jobs to add must be an array");
    // JSON has no invalid date: the job would run at once.
    for (const job of add) {
      for (const time of [job?.runAt, job?.run_at]) {
        if (time instanceof Date && Number.isNaN(time.getTime())) throw new RangeError("runAt is an invalid date");
      }
    }
    const number = nextCall++;
    // The stack of the error must show where the task made the call.
    const where = new Error();
    calls.set(number, { resolve, reject, where });
    const message = { call: number, add };
    if (preserveRunAt) message.preserve_run_at = true;
    send(message);
  });
}

async function addJob(identifier, payload = {}, spec = {}) {
  const [added] = await call([{ ...spec, identifier, payload: payload ?? {} }], false);
  return makeJob(added.job, identifier, added.payload);
}

async function addJobs(specs, preserveRunAt = false) {
  const added = await call(specs, preserveRunAt);
  return added.map(({ job, payload }) => makeJob(job, job.task_identifier, payload));
}

/** The worker has replied to a call. */
function reply(message) {
  const waiting = calls.get(message.reply);
  if (!waiting) return;
  calls.delete(message.reply);
  if (message.error === undefined) return waiting.resolve(message.result);
  const { where } = waiting;
  where.message = message.error;
  where.stack = `Error: ${message.error}${framesOf(String(where.stack))}`;
  if (message.code !== undefined) where.code = message.code;
  waiting.reject(where);
}

/** Fires the abort signals of all runs, and of those that follow. */
function abortAll() {
  isAborted = true;
  for (const controller of controllers.values()) controller.abort(new Error("the worker is shutting down"));
}

/** Fires the abort signal of a run that has started and has not ended, also if its task asks for the signal later. */
function abortRun(run) {
  abortController(run).abort(new Error("the worker gave up this run"));
}

/** The run has ended. */
function forgetSignal(run) {
  if (controllers.size > 0) controllers.delete(run);
}

module.exports = { abortAll, abortRun, forgetSignal, makeHelpers, reply };
