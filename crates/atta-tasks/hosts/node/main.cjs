// The host of JavaScript and TypeScript tasks. docs/guides/hosts.md describes the messages, and
// docs/guides/tasks-in-javascript.md what tasks get.
//
// One process, one socket, many jobs at a time. Helpers are created only when a task asks for them: a job that does
// nothing should cost almost nothing. This file loads the tasks and distributes the messages. transport.cjs has the
// socket, runs.cjs the runs, helpers.cjs what tasks get, logger.cjs the log, database.cjs the connections.
/* global importModule */
"use strict";

const path = require("node:path");
const { pathToFileURL } = require("node:url");

const { readableText } = require("./errors.cjs");
const { abortAll, reply } = require("./helpers.cjs");
const { currentRun, log } = require("./logger.cjs");
const { abortRuns, runSoon, sendFailed, tasks } = require("./runs.cjs");
const { receive, send, worker } = require("./transport.cjs");

// Processes that are started from here must not evaluate this script again.
process.execArgv = [];
// Frames of the host and of libraries count towards the limit; those of the task must still be visible.
Error.stackTraceLimit = Math.max(Error.stackTraceLimit ?? 0, 30);

async function loadTask({ identifier, path: file }) {
  let loaded;
  try {
    loaded = await importModule(pathToFileURL(file).href);
  } catch (error) {
    throw error instanceof Error ? withHint(error, file) : error;
  }
  // CommonJS modules, ES modules, and ES modules that were compiled to CommonJS.
  let found = loaded.default ?? loaded["module.exports"];
  if (typeof found !== "function" && found && typeof found.default === "function") found = found.default;
  if (typeof found !== "function") {
    throw new Error(`${file} does not export a function: module.exports = async (payload, helpers) => {}`);
  }
  return found;
}

function withHint(error, file) {
  const isTypeScript = /\.[cm]?ts$/.test(file);
  if (isTypeScript && !process.features.typescript) {
    error.message += ` (Node 22.18 or newer runs TypeScript; this is ${process.version})`;
  } else if (/outside a module|Unexpected token 'export'/.test(error.message)) {
    error.message += ` (for an ES module, use the extension .mjs, or set "type": "module" in package.json)`;
  } else if (error instanceof SyntaxError && !String(error.stack).includes(path.basename(file) + ":")) {
    // For ES modules, Node does not report the position.
    error.message += ` (to see the position, run: node --check ${file})`;
  }
  return error;
}

function hello(message) {
  worker.id = message.worker ?? null;
  worker.concurrency = message.concurrency ?? 1;
  worker.connection = message.connection ?? null;
  worker.folder = message.tasks.length > 0 ? path.dirname(message.tasks[0].path) : undefined;
  const loading = message.tasks.map((task) => {
    const loaded = loadTask(task);
    tasks.set(task.identifier, loaded);
    return loaded.then(
      (found) => tasks.set(task.identifier, found),
      (error) => send({ unloaded: task.identifier, error: readableText(error) }),
    );
  });
  Promise.all(loading).then(() => send({ ready: `node ${process.version}`, reports_start: true }));
}

function abort(runs) {
  if (runs === true) abortAll();
  else abortRuns(runs);
}

/** Handles a message that can't be parsed: whoever waits for it gets an error. */
function refuse(line, { message }) {
  const [, kind, number] = /^\{"(run|reply)":(\d+),/.exec(line) ?? [];
  const why = `Node can't parse the JSON: ${message}`;
  if (kind === "run") sendFailed(Number(number), `the payload is invalid: ${why}`);
  else if (kind === "reply") reply({ reply: Number(number), error: `the jobs were added, but ${why}` });
  else log("error", undefined, `ignored an invalid message of the worker: ${message}`);
}

function handleLine(line) {
  let message;
  try {
    message = JSON.parse(line);
  } catch (error) {
    return refuse(line, error);
  }
  if (message.ping !== undefined) send({ pong: message.ping });
  else if (message.run !== undefined) runSoon(message);
  else if (message.reply !== undefined) reply(message);
  else if (message.abort !== undefined) abort(message.abort);
  else if (message.hello !== undefined) hello(message);
  else if (message.worker !== undefined) worker.id = message.worker;
}

receive(handleLine);

// An unhandled rejection is a mistake of one task, and no reason to stop the others.
process.on("unhandledRejection", (error) => {
  log("error", currentRun.getStore(), `a promise was rejected without a handler: ${readableText(error)}`);
});
