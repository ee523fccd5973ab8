// A task in JavaScript: a function of the payload. Add a job of it by
//   atta add hello '{"name": "Bobby"}'
// or from SQL:
//   select graphile_worker.add_job('hello', '{"name": "Bobby"}');
module.exports = async (payload, helpers) => {
  helpers.logger.info(`Hello, ${payload.name ?? "world"}!`);
};
