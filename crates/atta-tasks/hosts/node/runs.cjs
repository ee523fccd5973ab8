// Runs jobs: from the message that asks for a run to the message with its result.
"use strict";

const { cut, LONGEST_ERROR, messageOf, readableText } = require("./errors.cjs");
const { abortRun, forgetSignal, makeHelpers } = require("./helpers.cjs");
const { currentRun, log, takeOver } = require("./logger.cjs");
const { flush, send, sendDone, sendStarted } = require("./transport.cjs");

/** Identifier to function, or to the promise of one. */
const tasks = new Map();
/** Runs that have not started, by their numbers. A run that is aborted before that is removed and never starts. */
const pending = new Map();
/** Runs that have started and have not ended, by their numbers. */
const started = new Set();
let willStart = false;

const printed = [takeOver(process.stdout, "info"), takeOver(process.stderr, "warn")];

/** Starts runs after all messages that have arrived: an abort may be among them, if a task blocked this process. */
function runSoon(message) {
  pending.set(message.run, message);
  if (!willStart) {
    willStart = true;
    setImmediate(runPending);
  }
}

function runPending() {
  willStart = false;
  for (const message of pending.values()) {
    pending.delete(message.run);
    runTask(message);
  }
}

function runTask(message) {
  const { run, task } = message;
  const known = tasks.get(task);
  if (typeof known === "function") return startTask(known, message);
  if (known === undefined) return sendFailed(run, new Error(`this host has no task ${task}`));
  known.then(
    (loaded) => startTask(loaded, message),
    (error) => sendFailed(run, error),
  );
}

function startTask(taskFunction, { run, task, payload, job, report_start: reportStart }) {
  if (reportStart) sendStarted(run);
  started.add(run);
  let result;
  try {
    const helpers = makeHelpers(run, task, job, payload);
    result = currentRun.run(run, taskFunction, payload, helpers);
    if (result !== null && typeof result === "object" && typeof result.then === "function") {
      result.then(
        (value) => succeed(run, payload, value),
        (error) => end(run, error),
      );
      return;
    }
    const kind = Object.prototype.toString.call(result);
    if (kind === "[object Generator]" || kind === "[object AsyncGenerator]") {
      throw new TypeError("the task is a generator function, so its body did not run: remove the * from it");
    }
  } catch (error) {
    return end(run, error);
  }
  succeed(run, payload, result);
}

function succeed(run, payload, value) {
  if (!Array.isArray(payload) || !Array.isArray(value)) return end(run);
  if (value.length !== payload.length) {
    const counts = `${value.length} results for ${payload.length} items`;
    log("warn", run, `the task returned ${counts}, so all items count as completed`);
    return end(run);
  }
  Promise.allSettled(value).then((settled) => {
    const items = [];
    // All texts together become the error of the job.
    let left = LONGEST_ERROR;
    settled.forEach((one, index) => {
      if (one.status !== "rejected") return;
      const error = left > 0 ? cut(messageOf(one.reason), left) : "";
      left -= error.length;
      items.push({ index, error });
    });
    if (items.length === 0) return end(run);
    forget(run);
    send({ failed: run, error: "some items of the batch failed", items });
  });
}

function end(run, ...error) {
  forget(run);
  if (error.length === 0) sendDone(run);
  else sendFailed(run, error[0]);
}

function forget(run) {
  started.delete(run);
  forgetSignal(run);
  for (const stream of printed) stream.end(run);
}

function sendFailed(run, error) {
  send({ failed: run, error: readableText(error) });
}

/** The worker has given up these runs. */
function abortRuns(runs) {
  for (const run of runs) {
    if (pending.delete(run)) sendFailed(run, "the run was given up before it started");
    else if (started.has(run)) abortRun(run);
  }
}

// A task may end the process: messages from before that are still sent.
process.on("exit", () => {
  for (const stream of printed) stream.endAll();
  flush();
});

module.exports = { abortRuns, runSoon, sendFailed, tasks };
