"""Registers our model type with transformers' auto classes as soon as transformers has loaded them, and not before.

Importing transformers takes seconds, so `import sinkinterp` does not import it. It waits until someone else does.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_AUTO = "transformers.models.auto.modeling_auto"


class _AutoClassesFinder(MetaPathFinder):
    """Waits for the import of the auto classes, then removes itself from the import system."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _AUTO:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
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
