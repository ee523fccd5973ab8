// The socket to the worker (file descriptor 3): each line is a message. All messages of one turn of the event loop are
// sent in one write.
"use strict";

const fs = require("node:fs");
const net = require("node:net");

const SOCKET = 3;
const socket = new net.Socket({ fd: SOCKET, readable: true, writable: true });

/** A text of this length is sent at once. A string has at most 2²⁹ characters. */
const LONG = 1 << 20;
/** Nobody changes it: to wait for a change until a time is over is to sleep. */
const sleeper = new Int32Array(new SharedArrayBuffer(4));

/** What is known about the worker: its id, and the settings in its first message. */
const worker = { id: null, concurrency: 1, connection: null, folder: undefined };

// Finished runs and other lines are collected, and sent once per turn of the event loop.
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
  if (text !== "") write(text);
}

/**
 * Writes the text before it returns. A task that logs faster than the worker reads has to wait, as it would on a pipe;
 * otherwise its output would fill the memory.
 */
function write(text) {
  let bytes = Buffer.from(text);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(fs.writeSync(SOCKET, bytes));
    } catch (error) {
      // Any other error means that the worker has ended, or that a task has closed the socket.
      if (!["EAGAIN", "EINTR"].includes(error.code)) process.exit(0);
      Atomics.wait(sleeper, 0, 0, 1);
    }
  }
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
  if (lines.length > LONG) flush();
  else flushSoon();
}

function sendDone(run) {
  done.push(run);
  flushSoon();
}

/** Sends the message at once: nothing that a task does after this can prevent that. */
function sendStarted(run) {
  flush();
  write(`{"started":[${run}]}\n`);
}

/** Calls a function with each line from the worker. When the worker has closed the socket, the process ends. */
function receive(onLine) {
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
      onLine(received + chunk.slice(0, end));
      received = "";
      begin = end + 1;
      end = chunk.indexOf("\n", begin);
    }
    while (end >= 0) {
      onLine(chunk.slice(begin, end));
      begin = end + 1;
      end = chunk.indexOf("\n", begin);
    }
    received = chunk.slice(begin);
  });
  // The worker has ended, or has closed the socket to end this host.
  const leave = () => process.exit(0);
  socket.on("end", leave);
  socket.on("error", leave);
  socket.on("close", leave);
}

module.exports = { flush, receive, send, sendDone, sendStarted, worker };
