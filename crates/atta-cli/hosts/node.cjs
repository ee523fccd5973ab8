// The host of JavaScript and TypeScript tasks. docs/guides/hosts.md describes the messages, and
// docs/guides/tasks-in-javascript.md what tasks get.
//
// One process, one socket (file descriptor 3), many jobs at a time. Each line is a message. All messages of one turn of
// the event loop are sent in one write, and helpers are created only when a task asks for them: a job that does nothing
// should cost almost nothing.
//
// The value of this script is a function of `require` and `import`.
(function (require, importModule) {
  "use strict";

  const { AsyncLocalStorage } = require("node:async_hooks");
  const fs = require("node:fs");
  const { createRequire } = require("node:module");
  const net = require("node:net");
  const path = require("node:path");
  const { pathToFileURL } = require("node:url");
  const util = require("node:util");

  const LONGEST_LOG = 8 * 1024;
  const LONGEST_ERROR = 32 * 1024;

  // Processes that are started from here must not evaluate this script again.
  process.execArgv = [];
  // Frames of the host and of libraries count towards the limit; those of the task must still be visible.
  Error.stackTraceLimit = Math.max(Error.stackTraceLimit ?? 0, 30);

  const socket = new net.Socket({ fd: 3, readable: true, writable: true });
  const currentRun = new AsyncLocalStorage();

  /** Identifier to function, or to the promise of one. */
  const tasks = new Map();
  /** Runs that have not started, by their numbers. A run that is aborted before that is removed and never starts. */
  const pending = new Map();
  let willStart = false;
  /** Run number to the controller of its abort signal, for runs whose task asked for one. */
  const controllers = new Map();
  /** Call number to the promise that waits for the reply. */
  const calls = new Map();
  let nextCall = 1;
  let settings = { concurrency: 1, connection: "", schema: "graphile_worker" };
  let workerId = null;
  let isAborted = false;

  // Sending messages: finished runs and other lines are collected, and sent once per turn of the event loop.
  let done = [];
  let lines = "";
  let willFlush = false;

  function flush() {
    willFlush = false;
    let text = lines;
    lines = "";
    if (done.length > 0) {
      text += '{"done":[' + done.join(",") + "]}\n";
      done = [];
    }
    if (text !== "") socket.write(text);
  }

  function flushSoon() {
    if (!willFlush) {
      willFlush = true;
      setImmediate(flush);
    }
  }

  function send(message) {
    // The end of a run is sent after the messages of that run, and before those of others.
    if (done.length > 0) {
      lines += '{"done":[' + done.join(",") + "]}\n";
      done = [];
    }
    lines += JSON.stringify(message) + "\n";
    flushSoon();
  }

  function sendDone(run) {
    done.push(run);
    flushSoon();
  }

  /** Sends the message at once: nothing that a task does after this can prevent that. */
  function sendStarted(run) {
    flush();
    socket.write(`{"started":[${run}]}\n`);
  }

  function sendFailed(run, error) {
    let text;
    try {
      text = errorText(error);
    } catch (readError) {
      text = `the task failed, and the text of its error can't be read: ${readError?.message}`;
    }
    send({ failed: run, error: text });
  }

  function cut(text, longest) {
    return text.length <= longest ? text : `${text.slice(0, longest)}… (${text.length - longest} more characters)`;
  }

  /** Where a file can't be parsed: path and line, the line itself and a caret. Node puts that before the rest. */
  function placeOf(stack, name) {
    if (!/^(\/|file:)\S*:\d+\n/.test(stack)) return "";
    const end = stack.indexOf(`\n${name}:`);
    return end < 0 ? "" : "\n" + stack.slice(0, end).trimEnd();
  }

  const HOST_FRAME = /\(eval at <anonymous> \(\[eval\]|^    at \[eval\]/;
  const NODE_FRAME = /\(node:internal\/|\(node:async_hooks|at (async )?node:internal/;

  /** The stack frames of an error, without the host's own and Node's. A helper's frames are above those of the task. */
  function framesOf(stack) {
    const start = stack.indexOf("\n    at ");
    if (start < 0) return "";
    const frames = stack.slice(start + 1).split("\n");
    const own = frames.filter((frame) => !HOST_FRAME.test(frame) && !NODE_FRAME.test(frame));
    // The frame in which the host waits for all tasks to be loaded.
    if (/at async Promise\.all \(index \d+\)$/.test(own.at(-1))) own.pop();
    return own.map((frame) => "\n" + frame).join("");
  }

  /** The class of an error and its code; empty for a plain Error without a code. */
  function kindOf(error) {
    const isVague = !error.name || String(error.name).toLowerCase() === "error";
    const name = (isVague && error.constructor?.name) || String(error.name || "Error");
    const hasCode = ["string", "number"].includes(typeof error.code);
    if (["Error", "Object"].includes(name) && !hasCode) return "";
    return `\n${name === "Object" ? "Error" : name}` + (hasCode ? `, code: ${error.code}` : "");
  }

  /** The message of an error first, then where it came from. */
  function errorText(error, depth = 0) {
    if (!(error instanceof Error) && !(error && typeof error.message === "string")) {
      return cut(typeof error === "string" ? error : util.inspect(error), LONGEST_ERROR);
    }
    const message = error.message || error.name || "Error";
    const stack = typeof error.stack === "string" ? error.stack : "";
    let text = message + kindOf(error) + placeOf(stack, error.name) + framesOf(stack);
    if (Array.isArray(error.errors) && depth < 3) {
      for (const one of error.errors) text += "\n- " + errorText(one, depth + 1);
    }
    if (error.cause !== undefined && depth < 3) text += "\ncaused by: " + errorText(error.cause, depth + 1);
    return cut(text, LONGEST_ERROR);
  }

  // Logs.

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
    const { StringDecoder } = require("node:string_decoder");
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
  const printed = [takeOver(process.stdout, "info"), takeOver(process.stderr, "warn")];

  // Helpers.

  const toDate = (micros) => new Date(Math.floor(micros / 1000));

  /** The running job: it counts as locked by this worker, whatever its row contains. */
  const makeOwnJob = (columns, task, payload) => ({
    ...makeJob(columns, task, payload),
    locked_at: new Date(),
    locked_by: workerId,
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
      // JSON has no invalid date: the job would run at once.
      for (const { runAt, run_at: sqlRunAt } of add) {
        for (const time of [runAt, sqlRunAt]) {
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

  // Connections, by the project's own pg.

  /** The promise of a pool, once a task asked for one. */
  let pool;

  function findPg() {
    const places = [settings.folder, process.cwd()].filter(Boolean);
    for (const place of places) {
      try {
        return createRequire(path.join(place, "noop.js"))("pg");
      } catch (error) {
        if (error.code !== "MODULE_NOT_FOUND") throw error;
      }
    }
    const hint = `run npm install pg in your project (searched from ${places.join(" and ")})`;
    throw new Error(`helpers.query and helpers.withPgClient need the package pg: ${hint}`);
  }

  /** Opens a pool by the first way of connecting that works. */
  async function openPool() {
    const pg = findPg();
    let failure;
    for (const { session, ...way } of waysToConnect(settings.connection)) {
      const opened = new pg.Pool({ ...way, max: Math.max(settings.concurrency, 10) });
      opened.on("error", (error) => log("warn", undefined, `a connection of helpers.query failed: ${error.message}`));
      try {
        const client = await opened.connect();
        try {
          await expectSession(client, session);
        } finally {
          client.release();
        }
        return opened;
      } catch (error) {
        await opened.end();
        // With sslmode=prefer, the error of the attempt without TLS is more useful than that the server has no TLS.
        if (!failure || /does not support SSL/.test(failure.message)) failure = error;
      }
    }
    throw failure;
  }

  /** Each server, with and without TLS, in the order in which libpq tries them: pg itself tries only one. */
  function waysToConnect(text) {
    if (text === "" || /^postgres(ql)?:\/\//.test(text)) {
      const connectionString = text || process.env.DATABASE_URL;
      return [{ fallback_application_name: applicationName(), ...(connectionString && { connectionString }) }];
    }
    const pairs = {};
    for (const [, key, quoted, plain] of text.matchAll(/(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))/gs)) {
      pairs[key] = (quoted ?? plain).replace(/\\(.)/gs, "$1");
    }
    const list = (key) => (pairs[key] ?? "").split(",");
    const [hosts, addresses, ports] = [list("host"), list("hostaddr"), list("port")];
    return hosts.flatMap((host, index) => {
      const way = {
        host: addresses[index] || host || "localhost",
        port: Number(ports[index] || ports[0] || 5432),
        user: pairs.user,
        password: pairs.password,
        database: pairs.dbname,
        options: pairs.options,
        application_name: pairs.application_name ?? applicationName(),
        connectionTimeoutMillis: Number(pairs.connect_timeout ?? 10) * 1000,
        keepAlive: pairs.keepalives !== "0",
        sslnegotiation: pairs.sslnegotiation,
        session: pairs.target_session_attrs,
      };
      return host.startsWith("/") ? [{ ...way, ssl: false }] : tlsChoices(pairs, host).map((ssl) => ({ ...way, ssl }));
    });
  }

  /** The name that the server shows for a connection for which the user has set none: the worker's id. */
  function applicationName() {
    return workerId ?? "atta";
  }

  /** What libpq's sslmode means for pg. */
  function tlsChoices(pairs, host) {
    const mode = pairs.sslmode ?? (pairs.sslrootcert === "system" ? "verify-full" : "prefer");
    if (mode === "disable") return [false];
    const read = (file) => (file ? fs.readFileSync(file) : undefined);
    const isGiven = pairs.sslcert && pairs.sslcertmode !== "disable";
    const tls = {
      rejectUnauthorized: mode.startsWith("verify-") || (mode !== "no-verify" && Boolean(pairs.sslrootcert)),
      ca: pairs.sslrootcert === "system" ? undefined : read(pairs.sslrootcert),
      crl: read(pairs.sslcrl),
      cert: isGiven ? read(pairs.sslcert) : undefined,
      key: isGiven ? read(pairs.sslkey ?? pairs.sslcert.replace(/\.[^./]*$/, "") + ".key") : undefined,
      minVersion: pairs.ssl_min_protocol_version,
      maxVersion: pairs.ssl_max_protocol_version,
    };
    // The name is set even if the address is given.
    if (net.isIP(host) === 0) tls.servername = host;
    if (mode !== "verify-full") tls.checkServerIdentity = () => undefined;
    if (mode === "prefer") return [tls, false];
    return mode === "allow" ? [false, tls] : [tls];
  }

  /** Of several servers, only some may be acceptable: target_session_attrs. */
  async function expectSession(client, session = "any") {
    if (["any", "prefer-standby"].includes(session)) return;
    const sql = "select pg_is_in_recovery() as standby, current_setting('transaction_read_only') = 'on' as read_only";
    const { standby, read_only } = (await client.query(sql)).rows[0];
    const is = { primary: !standby, standby, "read-write": !read_only, "read-only": read_only };
    if (!is[session]) throw new Error(`the server is not ${session}`);
  }

  async function borrowClient() {
    const opening = (pool ??= openPool());
    try {
      return await (await opening).connect();
    } catch (error) {
      // The next call starts again with the first way to connect. An error of the server itself is kept: it would
      // refuse again.
      if (pool === opening && error.severity === undefined) pool = undefined;
      throw error;
    }
  }

  async function withPgClient(callback) {
    const client = await borrowClient();
    let isSound = false;
    try {
      const result = await callback(client);
      isSound = true;
      return result;
    } finally {
      // A failed callback may leave the connection in any state. An open transaction is rolled back by closing the
      // connection.
      const isOpen = ["T", "E"].includes(client.getTransactionStatus?.());
      if (isSound && isOpen) {
        const problem = "a callback of helpers.withPgClient left a transaction open, which was rolled back";
        log("warn", currentRun.getStore(), `${problem}: commit it in the callback`);
      }
      client.release(!isSound || isOpen);
    }
  }

  const PASSING = new Set(["40001", "40P01", "57P03", "EHOSTUNREACH", "ETIMEDOUT", "ECONNREFUSED", "ECONNRESET"]);

  withPgClient.withRetries = async (callback) => {
    for (let attempt = 1; ; attempt++) {
      try {
        return await withPgClient(callback);
      } catch (error) {
        if (attempt >= 20 || !PASSING.has(error.code)) throw error;
        const pause = Math.min(200 * 1.5 ** attempt, 30_000) * (0.5 + Math.random());
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
  };

  const query = (text, values) => withPgClient((client) => client.query(text, values));

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
      (logger ??= new Logger({ label: "job", workerId, taskIdentifier: task, jobId: columns.id }, run));
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

  // Running jobs.

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
      settled.forEach((one, index) => {
        if (one.status === "rejected") items.push({ index, error: messageOf(one.reason) });
      });
      if (items.length === 0) return end(run);
      forget(run);
      send({ failed: run, error: "some items of the batch failed", items });
    });
  }

  function messageOf(error) {
    try {
      return cut(error && typeof error.message === "string" ? error.message : String(error), LONGEST_ERROR);
    } catch {
      return "the item failed, and the text of its error can't be read";
    }
  }

  function end(run, ...error) {
    forget(run);
    if (error.length === 0) sendDone(run);
    else sendFailed(run, error[0]);
  }

  function forget(run) {
    if (controllers.size > 0) controllers.delete(run);
    for (const stream of printed) stream.end(run);
  }

  // Receiving messages.

  async function loadTask({ identifier, path: file }) {
    let loaded;
    try {
      loaded = await importModule(pathToFileURL(file).href);
    } catch (error) {
      throw withHint(error, file);
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
    settings = message;
    workerId = message.worker ?? null;
    settings.folder = message.tasks.length > 0 ? path.dirname(message.tasks[0].path) : undefined;
    const loading = message.tasks.map((task) => {
      const loaded = loadTask(task);
      tasks.set(task.identifier, loaded);
      return loaded.then(
        (found) => tasks.set(task.identifier, found),
        (error) => send({ unloaded: task.identifier, error: errorText(error) }),
      );
    });
    Promise.all(loading).then(() => send({ ready: `node ${process.version}`, reports_start: true }));
  }

  function abort(runs) {
    if (runs === true) {
      isAborted = true;
      for (const controller of controllers.values()) controller.abort(new Error("the worker is shutting down"));
      return;
    }
    for (const run of runs) {
      if (pending.delete(run)) {
        sendFailed(run, "the run was given up before it started");
        continue;
      }
      controllers.get(run)?.abort(new Error("the worker gave up this run"));
      controllers.delete(run);
    }
  }

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
    else if (message.worker !== undefined) workerId = message.worker;
  }

  let received = "";
  socket.setEncoding("utf8");
  socket.on("data", (chunk) => {
    let begin = 0;
    let end = chunk.indexOf("\n");
    if (end < 0) {
      received += chunk;
      return;
    }
    if (received !== "") {
      handleLine(received + chunk.slice(0, end));
      received = "";
      begin = end + 1;
      end = chunk.indexOf("\n", begin);
    }
    while (end >= 0) {
      handleLine(chunk.slice(begin, end));
      begin = end + 1;
      end = chunk.indexOf("\n", begin);
    }
    received = chunk.slice(begin);
  });
  // A task may end the process: messages from before that are still sent.
  process.on("exit", () => {
    for (const stream of printed) stream.endAll();
    willFlush = false;
    flush();
  });

  // The worker has ended, or has closed the socket to end this host.
  const leave = () => process.exit(0);
  socket.on("end", leave);
  socket.on("error", leave);
  socket.on("close", leave);

  // An unhandled rejection is a mistake of one task, and no reason to stop the others.
  process.on("unhandledRejection", (error) => {
    log("error", currentRun.getStore(), `a promise was rejected without a handler: ${errorText(error)}`);
  });
});
