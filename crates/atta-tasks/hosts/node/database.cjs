// Connections to the database for tasks, by the project's own package pg. The worker has resolved all settings: this file
// only translates their names.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");
const path = require("node:path");

const { currentRun, log } = require("./logger.cjs");
const { worker } = require("./transport.cjs");

/** The promise of a pool, once a task asked for one. */
let pool;

function findPg() {
  const places = [worker.folder, process.cwd()].filter(Boolean);
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

/** Opens a pool by the first attempt that succeeds. The worker has decided which there are, and in which order. */
async function openPool() {
  const pg = findPg();
  if (!worker.connection) throw new Error("the worker has no settings for a connection: set DATABASE_URL");
  const { attempts, session } = worker.connection;
  let failure;
  for (const attempt of attempts) {
    const opened = new pg.Pool({ ...toPgOptions(attempt), max: Math.max(worker.concurrency, 10) });
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

/** An attempt to connect, by pg's names. If the user has set no name for connections, it is the worker's id. */
function toPgOptions(attempt) {
  return {
    host: attempt.host,
    port: attempt.port,
    user: attempt.user,
    password: attempt.password ?? undefined,
    database: attempt.database,
    options: attempt.options ?? undefined,
    application_name: attempt.application_name ?? worker.id ?? "atta",
    // pg's name for no limit is 0.
    connectionTimeoutMillis: (attempt.connect_timeout ?? 0) * 1000,
    keepAlive: attempt.keepalives,
    ssl: attempt.tls ? toTlsOptions(attempt.tls) : false,
    sslnegotiation: attempt.tls?.is_direct ? "direct" : undefined,
  };
}

/** Reads the files, so that a new connection uses new ones. */
function toTlsOptions(tls) {
  const read = (file) => (file ? fs.readFileSync(file) : undefined);
  const options = {
    rejectUnauthorized: tls.checks_chain,
    ca: read(tls.root_certificates),
    crl: read(tls.revoked),
    cert: read(tls.certificate),
    key: read(tls.key),
    minVersion: tls.min_version,
    maxVersion: tls.max_version,
  };
  // The name is set even if pg connects to an address.
  if (tls.server_name) options.servername = tls.server_name;
  if (!tls.checks_name) options.checkServerIdentity = () => undefined;
  return options;
}

/** Of several servers, only some may be acceptable: target_session_attrs. */
async function expectSession(client, session) {
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

module.exports = { query, withPgClient };
