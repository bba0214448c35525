"""A server of nnsight requests that has models but not us, each request in a process of its own.

`remote_subject` makes a subject whose requests are serialised as for NDIF and written to a file. `python -I` on this
very file has imported what a server has, refuses every other library, and forks for each request; the child has the
model of a folder, unpickles and runs the payload, notes what it names and imports, and sends back plain tensors.
"""

import builtins
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCKED = {"sinkinterp", "jaxtyping", "beartype", "plotly", "datasets", "typer", "transformer_lens", "pytest"}
REQUESTS = []  # of this test run: size in bytes, seconds, modules that the payload names, modules that it imports


class Server:
    """The process that waits for requests on models, each in its folder."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, folder, blob, env):
        import torch

        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "payload").write_bytes(blob)
            start = time.perf_counter()
            self.process.stdin.write(json.dumps([str(folder), scratch, env]) + "\n")
            self.process.stdin.flush()
            reply = json.loads(self.process.stdout.readline())
            REQUESTS.append({"bytes": len(blob), "seconds": time.perf_counter() - start} | reply)
            if "error" in reply:
                raise RuntimeError(reply["error"])
            return torch.load(Path(scratch) / "answers", weights_only=True)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def remote_subject(server, folder):
    """The server's model of a folder as a subject."""
    from nnsight import TransformersModel

    from sinkinterp.backends.ndif.remote_subject import RemoteSubject, Request

    class ToServer(Request):
        def request(self, request, tracer):
            return server.answer(folder, self._serialize(tracer), request.env)

    envoy = TransformersModel(str(folder), task="text-generation", tokenizer=tokenizer())
    assert all(parameter.is_meta for parameter in envoy._module.parameters())
    env = envoy._remoteable_get_env()
    return RemoteSubject(envoy, "remote", lambda: ToServer("key", host="http://nowhere", env=env))


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a")


class Refusal:
    """Finds no module of a library that a server lacks."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} on the server")


def execute(model, scratch):
    """Runs the payload in `scratch` on a model; what it named and imported."""
    import torch
    from nnsight.intervention.serialization import CustomCloudUnpickler
    from nnsight.schema.request import RequestModel
    from nnsight.tracing.tracer import _saves, dec, inc

    named, imported, original = set(), set(), builtins.__import__

    class Noting(CustomCloudUnpickler):
        def find_class(self, module, name):
            named.add(module.split(".")[0])
            before = set(imported)
            found = super().find_class(module, name)
            imported.intersection_update(before)  # what pickle itself imports is named already
            return (lambda name: (imported.add(name), found(name))[1]) if name == "subimport" else found

    def noting(name, space=None, local=None, fromlist=(), level=0):
        if (space or {}).get("__name__", "__main__") == "__main__":  # code of the payload belongs to no module
            imported.add(name)
        return original(name, space, local, fromlist, level)

    blob = (Path(scratch) / "payload").read_bytes()
    inc()
    builtins.__import__ = noting
    try:
        tracer = RequestModel.deserialize(blob, model._remoteable_persistent_objects(), True, Noting)
        tracer.execute(tracer.info.code)
        saved = {name: value for name, value in tracer.info.frame.f_locals.items() if id(value) in _saves()}
    finally:
        builtins.__import__ = original
        dec()
    torch.save(saved, Path(scratch) / "answers")
    assert not {name.split(".")[0] for name in sys.modules} & BLOCKED
    return {"named": sorted(named), "imported": sorted(imported)}


def serve():
    sys.meta_path.insert(0, Refusal())
    import torch
    from nnsight import TransformersModel
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    models = {}
    for line in sys.stdin:
        folder, scratch, env = json.loads(line)
        if folder not in models:  # each child has a copy that no other child changes
            module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            models[folder] = TransformersModel(module, task="text-generation", tokenizer=tokenizer())
        if os.fork():
            os.wait()
            continue
        try:
            models[folder]._remoteable_set_env(env)
            reply = execute(models[folder], scratch)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)
        os._exit(0)


if __name__ == "__main__":
    serve()
