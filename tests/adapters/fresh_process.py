"""An nnsight server of one request: a fresh isolated process that holds the model but not us.

`remote_subject` makes a subject whose requests are serialised as for NDIF, written to a file, and run by `python -I`
on this very file. There an import hook refuses every library but the server's own, notes which modules are imported
while the payload is unpickled and run, and what comes back are plain tensors.
"""

import builtins
import json
import pickletools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCKED = ("sinkinterp", "einops", "jaxtyping", "beartype", "plotly", "datasets", "typer", "transformer_lens", "pytest")
REQUESTS = []  # of this process: size in bytes, seconds, what the payload names and what it imports


def remote_subject(folder, patience=120):
    """The model of a folder behind a fresh process for every request."""
    from nnsight import TransformersModel

    from sinkinterp.adapters.remote import RemoteSubject, Request

    class Fresh(Request):
        def request(self, request, tracer):
            blob = self._serialize(tracer)
            with tempfile.TemporaryDirectory() as scratch:
                (Path(scratch) / "payload").write_bytes(blob)
                start = time.perf_counter()
                command = [sys.executable, "-I", __file__, str(folder), scratch, json.dumps(self.env)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
                assert done.returncode == 0, done.stderr[-3000:]
                seconds = time.perf_counter() - start
                REQUESTS.append(
                    {"bytes": len(blob), "seconds": seconds, "names": names_in(blob), **json.loads(done.stdout)}
                )
                return self.finalize_plain((Path(scratch) / "answers").read_bytes())

        def finalize_plain(self, content):
            import io

            import torch

            return torch.load(io.BytesIO(content), weights_only=True)

    envoy = TransformersModel(str(folder), task="text-generation", tokenizer=tokenizer())
    return RemoteSubject(envoy, "remote", lambda: Fresh("key", host="http://nowhere", env=envoy._remoteable_get_env()))


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), pad_token="a")


def names_in(blob):
    """The modules that a payload names to be unpickled."""
    import zstandard

    strings, found = [], set()
    for opcode, argument, _ in pickletools.genops(zstandard.ZstdDecompressor().decompress(blob)):
        if opcode.name == "GLOBAL":
            found.add(argument.split()[0])
        elif opcode.name == "STACK_GLOBAL":
            found.add(strings[-2])
        if isinstance(argument, str) and "UNICODE" in opcode.name:
            strings.append(argument)
        if opcode.name in ("MEMOIZE", "BINGET", "LONG_BINGET"):
            pass
    return sorted(found)


class Refusal:
    """Finds no module of a library that a server lacks."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} on the server")


def serve(folder, scratch, env):
    """Runs the payload in `scratch` on the model in `folder`; returns the modules that the payload imported."""
    sys.meta_path.insert(0, Refusal())
    import torch
    from nnsight import TransformersModel
    from nnsight.schema.request import RequestModel
    from nnsight.tracing.backend import Backend
    from nnsight.tracing.tracer import dec, inc, push_result  # noqa: F401
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = TransformersModel(module, task="text-generation", tokenizer=tokenizer())
    model._remoteable_set_env(env)
    imported = set()
    original = builtins.__import__

    def noting(name, space=None, local=None, fromlist=(), level=0):
        origin = (space or {}).get("__name__")
        if origin is None or origin == "__main__":  # code of the payload belongs to no module
            imported.add(name)
        return original(name, space, local, fromlist, level)

    builtins.__import__ = noting
    blob = (Path(scratch) / "payload").read_bytes()
    tracer = RequestModel.deserialize(blob, model._remoteable_persistent_objects(), compress=True)
    inc()
    try:
        tracer.backend = Backend()
        tracer.execute(tracer.info.code)
        from nnsight.tracing.tracer import _saves

        saved = {k: v for k, v in tracer.info.frame.f_locals.items() if id(v) in _saves()}
    finally:
        dec()
        builtins.__import__ = original
    torch.save(saved, Path(scratch) / "answers")
    assert not {name.split(".")[0] for name in sys.modules} & set(BLOCKED)
    return sorted(imported - {"nnsight.tracing.tracer"})


if __name__ == "__main__":
    print(json.dumps({"imports": serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))}))
