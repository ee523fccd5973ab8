// Makes the other files of this folder CommonJS modules, and runs main.cjs. They are no files when the host runs: the
// worker passes their texts in an environment variable.
//
// The value of this script is a function of the texts by name, and of `require` and `import`.
(function (texts, require, importModule) {
  "use strict";

  const { compileFunction } = require("node:vm");

  const modules = new Map();

  function load(name) {
    let module = modules.get(name);
    if (module === undefined) {
      module = { exports: {} };
      modules.set(name, module);
      // By this name, errors.cjs recognizes the host's own stack frames.
      const options = { filename: `atta-host:${name}` };
      compileFunction(texts[name], ["require", "module", "importModule"], options)(requirePart, module, importModule);
    }
    return module.exports;
  }

  function requirePart(name) {
    return name.startsWith("./") ? load(name.slice(2)) : require(name);
  }

  load("main.cjs");
});
