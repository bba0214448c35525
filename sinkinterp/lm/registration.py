"""Our model type in transformers' registries as soon as transformers' auto classes exist, and not before.

Importing transformers takes seconds, so `import sinkinterp` does not do it: it waits for the import.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_AUTO = "transformers.models.auto.modeling_auto"


class _Registering(Loader):
    """The module's own loader, followed by our registration."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register()


class _Waiting(MetaPathFinder):
    """Watches for the one import, then steps aside."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _AUTO:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


def _register() -> None:
    from . import hub

    hub.register()


def register_with_transformers() -> None:
    """Registers now if transformers' auto classes are loaded, else when they are."""
    if _AUTO in sys.modules:
        _register()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())
