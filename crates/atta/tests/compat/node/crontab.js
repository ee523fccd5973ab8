// What a released version of Graphile Worker makes of crontabs, by its own parser and its own matcher:
//
//   node crontab.js VERSION < questions > answers
//
// questions: {texts: [text], patterns: [[pattern, minute]], minutes: [minute]}; minutes are counted from 1970.
// answers: {texts: [items, or null for what is refused], patterns: [a 0 or a 1 for each of timesFor]}
"use strict";

const { readFileSync } = require("node:fs");
const { parseCrontab, parseCronItem } = require(`graphile-worker-${process.argv[2]}`);
const { texts, patterns, minutes } = JSON.parse(readFileSync(0, "utf8"));

function read(text) {
  try {
    return parseCrontab(text).map(({ task, identifier, options, payload, match }) => ({
      task,
      identifier,
      options,
      payload,
      sets: match.parsedCronMatch,
    }));
  } catch {
    return null;
  }
}

// Every minute of a day and that time of every day in two years, so that each field is seen, and some others.
function timesFor(minute) {
  const [day, time] = [Math.floor(minute / 1440), minute % 1440];
  const ofDay = Array.from({ length: 1440 }, (_, n) => day * 1440 + n);
  const ofYears = Array.from({ length: 731 }, (_, n) => (day + n) * 1440 + time);
  return [...ofDay, ...ofYears, ...minutes];
}

function digest(minute) {
  const date = new Date(minute * 60000);
  return {
    min: date.getUTCMinutes(),
    hour: date.getUTCHours(),
    date: date.getUTCDate(),
    month: date.getUTCMonth() + 1,
    dow: date.getUTCDay(),
  };
}

function matched([pattern, minute]) {
  const { match } = parseCronItem({ task: "t", match: pattern });
  return timesFor(minute)
    .map((time) => (match(digest(time)) ? "1" : "0"))
    .join("");
}

process.stdout.write(JSON.stringify({ texts: texts.map(read), patterns: patterns.map(matched) }));
