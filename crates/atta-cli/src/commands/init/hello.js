// A task in JavaScript: an exported function. To add a job, run
//   atta add hello '{"name": "Bobby"}'
// or from SQL:
//   select graphile_worker.add_job('hello', '{"name": "Bobby"}');
module.exports = async (payload, helpers) => {
  helpers.logger.info(`Hello, ${payload.name ?? "world"}!`);
};
