// The texts of errors: the message first, then where the error came from.
"use strict";

const util = require("node:util");

const LONGEST_ERROR = 32 * 1024;

function cut(text, longest) {
  return text.length <= longest ? text : `${text.slice(0, longest)}… (${text.length - longest} more characters)`;
}

/** Where a file can't be parsed: path and line, the line itself and a caret. Node puts that before the rest. */
function placeOf(stack, name) {
  if (!/^(\/|file:)\S*:\d+\n/.test(stack)) return "";
  const end = stack.indexOf(`\n${name}:`);
  return end < 0 ? "" : "\n" + stack.slice(0, end).trimEnd();
}

const HOST_FRAME = /[( ]atta-host:|\(eval at <anonymous> \(\[eval\]|^    at \[eval\]/;
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

/** The text of an error, whatever was thrown: reading it may throw again. */
function readableText(error) {
  try {
    return errorText(error);
  } catch (readError) {
    return `the task failed, and the text of its error can't be read: ${readError?.message}`;
  }
}

/** Only the message, for an item of a batch. */
function messageOf(error) {
  try {
    return cut(error && typeof error.message === "string" ? error.message : String(error), LONGEST_ERROR);
  } catch {
    return "the item failed, and the text of its error can't be read";
  }
}

module.exports = { cut, errorText, framesOf, LONGEST_ERROR, messageOf, readableText };
