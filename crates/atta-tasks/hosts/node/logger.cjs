// What tasks log and print.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { StringDecoder } = require("node:string_decoder");
const util = require("node:util");

const { cut } = require("./errors.cjs");
const { send } = require("./transport.cjs");

const LONGEST_LOG = 8 * 1024;

/** The number of the run whose code is executed now. */
const currentRun = new AsyncLocalStorage();

function log(level, run, message, meta) {
  const entry = { log: level, message: cut(String(message), LONGEST_LOG) };
  if (run !== undefined) entry.run = run;
  if (meta !== undefined && meta !== null) {
    try {
      entry.meta = JSON.parse(JSON.stringify(meta));
    } catch {
      entry.meta = util.inspect(meta);
    }
  }
  send(entry);
}

class Logger {
  constructor(scope, run) {
    this._scope = scope;
    this._run = run;
  }
  error(message, meta) {
    log("error", this._run, message, meta);
  }
  warn(message, meta) {
    log("warn", this._run, message, meta);
  }
  info(message, meta) {
    log("info", this._run, message, meta);
  }
  debug(message, meta) {
    log("debug", this._run, message, meta);
  }
  scope(more) {
    const logger = new Logger({ ...this._scope, ...more }, this._run);
    // Metadata that the user added is sent with each message; data that the worker already knows are not.
    const added = { ...this._added, ...more };
    logger._added = added;
    for (const level of ["error", "warn", "info", "debug"]) {
      logger[level] = (message, meta) => log(level, this._run, message, { ...added, ...meta });
    }
    return logger;
  }
}

/**
 * Sends what tasks print to the log, line by line, with the job if it is known. The end of a run ends its line; a
 * line that belongs to no run ends after a moment. Returns a function that ends the line of a run, and one that ends
 * all lines.
 */
function takeOver(stream, level) {
  /** Run number to the start of its line, and to the decoder of its bytes. */
  const begun = new Map();
  let timer;
  const end = (run) => {
    if (begun.size === 0) return;
    const line = begun.get(run);
    begun.delete(run);
    const text = line === undefined ? "" : line.rest + (line.decoder?.end() ?? "");
    if (text !== "") log(level, run, text);
  };
  stream.write = (chunk, encoding, callback) => {
    if (typeof encoding === "function") callback = encoding;
    const run = currentRun.getStore();
    const line = begun.get(run) ?? { rest: "", decoder: undefined };
    const isText = typeof chunk === "string";
    const text = isText ? chunk : (line.decoder ??= new StringDecoder("utf8")).write(Buffer.from(chunk));
    const parts = (line.rest + text).split("\n");
    line.rest = parts.pop();
    if (line.rest.length > LONGEST_LOG) {
      parts.push(line.rest);
      line.rest = "";
    }
    if (line.rest !== "" || line.decoder) begun.set(run, line);
    else begun.delete(run);
    for (const part of parts) log(level, run, part.endsWith("\r") ? part.slice(0, -1) : part);
    if (run === undefined) timer ??= setTimeout(() => ((timer = undefined), end(undefined)), 100).unref();
    if (callback) process.nextTick(callback);
    return true;
  };
  return { end, endAll: () => [...begun.keys()].forEach(end) };
}

module.exports = { currentRun, log, Logger, takeOver };
