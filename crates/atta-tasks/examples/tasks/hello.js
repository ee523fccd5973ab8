// A task in JavaScript: an exported function.
module.exports = async (payload, helpers) => {
  helpers.logger.info(`Hello, ${payload.name}!`);
};
