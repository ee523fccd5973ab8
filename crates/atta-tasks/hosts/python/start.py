"""Makes the other files of this folder modules of a package, and runs main.py.

They are no files when the host runs: the worker passes their texts in an environment variable. `texts` has them by name.
"""

import importlib
import importlib.abc
import importlib.util
import sys

PACKAGE = "_atta_host"


class Texts(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules of the package from their texts."""

    def find_spec(self, name, path=None, target=None):
        if name != PACKAGE and not name.startswith(PACKAGE + "."):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name == PACKAGE)

    def exec_module(self, module):
        if module.__name__ != PACKAGE:
            name = module.__name__.rpartition(".")[2] + ".py"
            # By this name, errors.py recognizes the host's own stack frames.
            exec(compile(texts[name], "atta-host/" + name, "exec"), module.__dict__)


sys.meta_path.insert(0, Texts())
importlib.import_module(PACKAGE + ".main").run()
