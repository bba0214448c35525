"""Registers our model type with transformers' auto classes as soon as transformers has loaded them, and not before.

Importing transformers takes seconds, so `import sinkinterp` does not import it. It waits until someone else does.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_AUTO = "transformers.models.auto.modeling_auto"


class _RegisteringLoader(Loader):
    """The module's usual loader, followed by our registration."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register()


class _AutoClassesFinder(MetaPathFinder):
    """Waits for the import of the auto classes, then removes itself from the import system."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _AUTO:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


def register_with_transformers() -> None:
    """Lets `AutoConfig` and `AutoModelForCausalLM` load our checkpoints: now if they are loaded, else once they are."""
    if _AUTO in sys.modules:
        _register()
    elif not any(isinstance(finder, _AutoClassesFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AutoClassesFinder())


def _register() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from .model import SinkConfig, SinkForCausalLM

    AutoConfig.register(SinkConfig.model_type, SinkConfig, exist_ok=True)
    AutoModelForCausalLM.register(SinkConfig, SinkForCausalLM, exist_ok=True)
