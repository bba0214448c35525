"""Transformers models as subjects, through transformers' own attention interface: untouched weights, no patching."""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import Edit, Reads, Site, reads_of, sites
from ..attention.shapes import Gap, ModelShape, metric, per_sequence, tolerance_of, with_users_frames
from ..checks import InputError, check_context, instance_of, refusal, refusing
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import ChangeResidual, Edits, Put, edits_of
from . import anatomy, contract
from .adapters import replaces_bos
from .attached import PATCHES, computed_by, eval_mode, recorded_by, used_alone
from .bridge import bridge_of
from .contract import Abilities
from .hooks import BASES, OURS, attention_set_to, recorded_stream
from .model_files import check_causal, context_of
from .own_attention import note_of
from .recorder import Answers, Recorder
from .subject import NO_ENCODER, Logits, Subject, Trace

KEPT = "logits_to_keep"  # transformers' argument: of how many positions, from the last, logits are computed


class HuggingFaceSubject(Subject):
    """A causal transformers model that is read and edited while it runs. Afterwards it is as it was before.

    Raises InputError where the model does not use transformers' attention interface, or fails the contract.
    """

    reads_caches = True  # whether calls of a pass that continues a cache hold all its keys
    takes_position_ids = True  # whether the model takes positions as a keyword
    key_sources: Mapping[int, int] = {}  # the layers that take keys and values of an earlier layer, and that layer
    has_encoder = False  # whether this class runs encoder-decoder models
    contract_fix = ""  # what a user does where the contract fails

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        self.model, self.name = model, name or type(model).__name__
        with used_alone(model):
            self._read_model(model)

    def lens(self) -> Any:
        """A new TransformerLens bridge over a copy of the model, with its tokenizer; see `bridge_of`.

        It costs the memory of the weights once more, and seconds to half a minute: keep what it returns. Edits and
        measurements of the subject do not see hooks of the bridge. Raises InputError where TransformerLens cannot run
        the model.
        """
        self._check_ready()
        if not isinstance(self.model, PreTrainedModel):
            return super().lens()
        return bridge_of(self.model, self.tokenizer)

    def _read_model(self, model: PreTrainedModel) -> None:
        """Finds the modules, sizes and abilities of the model. Raises InputError as the class does."""
        if not self.has_encoder:
            check_is_decoder(model, self.name)
        check_causal(type(model), model.config, self.name)
        self._check_ready()
        self.revision = getattr(model.config, "_commit_hash", None) or ""
        self.implementation = model.config._attn_implementation.removeprefix(OURS)
        if self.implementation not in BASES:
            fix = "load it with attn_implementation='sdpa'"
            raise InputError(f"{self.name} runs {self.implementation!r} attention; {fix}")
        tokens = contract.sample_tokens(self._embedding.num_embeddings)
        fix = "give a causal language model that runs on token ids"
        with refusal(f"{self.name} does not run", fix), anatomy.position_tables(model, tokens.shape[1]) as tables:
            bare = self._run_model(tokens)
        blocks = anatomy.blocks_of(model)
        self.attention_note = note_of(blocks) or ("slots in the place of BOS" if replaces_bos(model) else "")
        self.modules = anatomy.StreamModules(self._embedding, tuple(tables), blocks, anatomy.taps_of(blocks))
        if any(map(anatomy.cross_attention, blocks)):  # as in WhisperForCausalLM, which leaves the encoder out
            self.encoder = NO_ENCODER
        self._check_contract(bare)

    def __repr__(self) -> str:
        shape = self.shape
        sizes = f"{shape.n_layers} layers x {shape.n_heads} heads, d_model {shape.d_model}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"<Subject {self.name}: {sizes}, {self.backend}, {dtype} on {self.device}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.libraries or not isinstance(self.model, PreTrainedModel):
            raise InputError(f"the subject of {self.name} cannot be copied or pickled; copy its model, and load that")
        self.__dict__.pop("label", None)  # made again when it is asked for
        return super().__reduce_ex__(protocol)

    def _check_contract(self, bare: Logits) -> None:
        """Finds the sizes and abilities of the model. Raises InputError where it fails the contract."""
        tokens = contract.with_other_ending(contract.sample_tokens(self._embedding.num_embeddings))
        recorder = Recorder(contract.FIRST_READS)
        logits = self._pass(tokens, recorder)
        self.shape = self._shape_of(recorder)
        taps = _complete(self.modules.taps, self.shape)
        self.modules = replace(self.modules, taps=taps, n_kv_heads=self.shape.n_kv_heads)
        answers = recorder.stacked_answers(self.shape, self.device)
        self._early_bias = contract.check_logits(self._tested, answers, logits, bare)
        self.key_sources = contract.key_sources(answers["keys"], self.shape.attention_layers)
        shared = [f"layer {n} takes the keys and values of layer {other}" for n, other in self.key_sources.items()]
        self.attention_note = "; ".join(filter(None, (self.attention_note, *shared)))
        self._abilities = self._abilities_found(bare[:, :3])
        if not self._abilities.positions_are_plain:  # a prefix mask shows early positions what comes after the third
            self._abilities = self._abilities_found(bare)
        if not self._abilities.positions_are_plain:
            self._abilities_found(bare, gives_positions=False)
        able = {site: taps for site, taps in self.modules.taps.items() if site in self._abilities.taps}
        self.modules = replace(self.modules, taps=able)
        mlp_layers = self.shape.mlp_layers if sites.MLP in able else ()
        self.shape = replace(self.shape, mlp_layers=mlp_layers, d_mlp=self._abilities.d_mlp)

    def _abilities_found(self, bare: Logits, gives_positions: bool = True) -> Abilities:
        """What `contract.check_edits` finds."""
        return contract.check_edits(self._tested, bare, self._early_bias, gives_positions)

    @property
    def _tested(self) -> contract.Tested:
        return contract.Tested(self.name, self.shape, self.modules.taps, self._answers, self.contract_fix)

    def _answers(
        self, tokens: Tokens, reads: Reads, edits: Sequence[Edit], position_ids: Tensor | None
    ) -> tuple[Answers, Logits]:
        """The answers and logits of a pass of the contract; see `contract.Pass`."""
        given = {} if position_ids is None or not self._takes_ids else {"position_ids": position_ids.to(self.device)}
        trace = self._trace(tokens, Recorder(reads_of(reads), edits), **given)
        return trace.answers, trace.logits

    @property
    def _takes_ids(self) -> bool:
        """Whether positions can be given to the model."""
        parameters = inspect.signature(self.model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return takes_any or "position_ids" in parameters

    @with_users_frames
    def run(
        self, tokens: TokensLike | Any, *, reads: Reads = {}, edits: Edits = (), gradients: bool = False,
        logits: bool = True, blocks: range | None = None,
    ) -> Trace:  # fmt: skip
        """One forward pass; see `Subject.run`. Raises InputError for tokens or edits that do not fit."""
        tokens = self.ids_of(tokens)
        self._check_ready()
        self.check_ids(tokens, self.shape.n_ctx)
        edits = edits_of(edits)
        self.check_edits(edits, tokens.shape[1])
        recorder = Recorder(reads_of(reads), edits, gradients, idle=self._idle_outside(blocks))
        for read in recorder.reads.values():
            self._check_tapped(read.site)
        inputs = self.positions(edits, tokens.shape[1]) | ({} if logits else self._last_alone)
        trace = self._trace(tokens, recorder, **inputs)
        if trace.logits[:, -1].isnan().any():
            raise InputError(f"{self.name} returns logits that are not numbers")
        for name, answer in trace.answers.items():
            per_sequence(answer, len(tokens), metric(name))
        return trace

    def _trace(self, tokens: Tokens, recorder: Recorder, **inputs: Any) -> Trace:
        """The answers of a recorder's reads, and the logits, of a pass without its idle blocks."""
        left_out = computed_by({self.modules.blocks[block]: _pass_on for block in recorder.idle})
        mapped = self.maps_shown_to(recorder) if recorder.edits_weights else nullcontext()
        with used_alone(self.model), left_out, mapped:
            logits = self._pass(tokens, recorder, **inputs)
            return Trace(recorder.stacked_answers(self.shape, self.device), logits)

    def _idle_outside(self, blocks: range | None) -> frozenset[int]:
        """The blocks that are left out of a pass where these are enough; none in a model that needs them all."""
        instance_of(blocks, (range, type(None)), "blocks are a range of them, such as range(3, 6)")
        every = range(self.shape.n_layers)
        others = frozenset(every).difference(every if blocks is None else blocks)
        return others if others and self.leaves_out_blocks else frozenset()

    @cached_property
    def leaves_out_blocks(self) -> bool:
        """Whether blocks go on from a residual without those before them: two short passes have the same logits."""
        if type(self) is not HuggingFaceSubject or self.modules.stacks_streams:
            return False
        tokens, seen, middle = contract.sample_tokens(self.shape.vocab), list[Any](), self.shape.n_layers // 2
        with self.modules.blocks[0].register_forward_hook(lambda block, args, output: seen.append(output)):
            whole = self.run(tokens, reads={"x": sites.RESIDUAL.read(lambda x: x.clone())})
        if not isinstance(seen[-1], Tensor):
            return False
        edit = ChangeResidual(Put({middle: whole["x"][:, middle]}), layers=[middle])
        part = self._trace(tokens, Recorder(edits=[edit], idle=frozenset(range(middle))))
        return Gap.of(part.logits, whole.logits).is_within(tolerance_of(self.dtype))

    @cached_property
    def _last_alone(self) -> dict[str, Any]:
        """The argument that makes the model compute the logits of the last position alone, if it takes one.

        A tensor: for a number, Gemma 4 gives its last layers no other position.
        """
        can = type(self) is HuggingFaceSubject and KEPT in inspect.signature(self.model.forward).parameters
        return {KEPT: torch.tensor([-1])} if can else {}

    def _pass(self, tokens: Tokens, recorder: Recorder, **inputs: Any) -> Logits:
        """The logits of one forward pass that is shown to `recorder`."""
        shown = recorded_by(recorder, self.modules.layers, self.modules.n_kv_heads)
        with recorded_stream(self.modules, recorder), attention_set_to(self.model, self.recorded_attention), shown:
            return self._run_model(tokens, gradients=recorder.gradients, **inputs)

    def maps(self) -> Iterable[anatomy.HeadMap]:
        """The modules that make queries, keys and values, where they are known."""
        blocks = {layer: self.modules.blocks[layer] for layer in self.shape.attention_layers}
        return anatomy.maps_of(blocks, self.shape.d_head)

    def maps_shown_to(self, recorder: Recorder) -> AbstractContextManager[None]:
        """In the block, the recorder's edits of weights change the output of these modules."""
        return anatomy.maps_edited(self.modules.blocks, self.maps(), self.shape, recorder)

    def check_maps(self, edits: Sequence[Edit]) -> None:
        """Raises InputError where edits of weights do not fit, which one short pass under them tells."""
        of_weights = [edit for edit in edits if any(map(edit.touches, sites.WEIGHT_SITES))]
        if of_weights:
            self._trace(contract.sample_tokens(self.shape.vocab), Recorder(edits=of_weights))

    @property
    def recorded_attention(self) -> str:
        """The name of the attention implementation that shows every call to the recorder."""
        return OURS + self.implementation

    @contextmanager
    def shown_to(self, recorder: Recorder) -> Iterator[None]:
        """In the block, every forward pass of the model itself is shown to the recorder, which begins each of them."""
        stream = recorded_stream(self.modules, recorder, comes_first=True)
        with stream, attention_set_to(self.model, self.recorded_attention):
            yield

    @property
    def _embedding(self) -> nn.Embedding:
        embedding = self.model.get_input_embeddings()
        if not hasattr(embedding, "num_embeddings"):
            kind = type(embedding).__name__
            raise InputError(f"the embedding of {self.name} is a {kind}")
        return embedding

    def _run_model(self, tokens: Tokens, *, gradients: bool = False, **inputs: Any) -> Logits:
        """Logits of one pass, without dropout."""
        with torch.set_grad_enabled(gradients), eval_mode(self.model):
            return self._logits(tokens.to(self.device), **inputs)

    def _logits(self, tokens: Tokens, **inputs: Any) -> Logits:
        """What the model returns for these tokens."""
        # an explicit all-ones mask: without it, transformers takes swapped position ids for packed sequences
        output = self.model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **inputs)
        if not isinstance(getattr(output, "logits", None), Tensor):
            raise InputError(f"{self.name} returns no logits; load it with its head, as AutoModelForCausalLM does")
        return output.logits

    def _shape_of(self, recorder: Recorder) -> ModelShape:
        """The sizes of the model, from a pass with the reads `sizes` and `width`."""
        sizes = {layer: answers["sizes"] for layer, answers in recorder.answers[sites.CALL].items()}
        residuals = recorder.answers[sites.RESIDUAL]
        if not sizes or not residuals:
            what, fix = "residuals" if sizes else "attention of transformers' interface", self.contract_fix
            raise InputError(f"{type(self.model).__name__} shows no {what}{fix and f'; {fix}'}")
        n_heads, _, d_head, d_value = next(iter(sizes.values())).tolist()
        embedding = self._embedding
        return ModelShape(
            n_layers=len(self.modules.blocks),
            attention_layers=tuple(sorted(sizes)),
            n_heads=n_heads,
            n_kv_heads=math.lcm(*(n_kv_heads for _, n_kv_heads, *_ in map(Tensor.tolist, sizes.values()))),
            d_head=d_head,
            d_model=int(residuals[0]["width"].item()),
            vocab=embedding.num_embeddings,
            n_ctx=self._n_ctx,
            mlp_layers=tuple(range(len(self.modules.blocks))) if all(self.modules.taps.get(sites.MLP, [None])) else (),
            d_embedding=embedding.embedding_dim,
            d_value=d_value,
        )

    @property
    def _n_ctx(self) -> int | None:
        """The longest sequence that the model knows of; None without a limit."""
        return context_of(self.model.config)

    def read_beyond_context(self) -> None:
        """Lets texts be longer than the model's context. Raises InputError where it has no positions there."""
        limit = self.shape.n_ctx
        if limit is None:
            return
        if not self._reads_on:
            raise InputError(f"{self.name} has no positions beyond {limit}")
        self.shape = replace(self.shape, n_ctx=None)
        notes = (self.attention_note, f"its context of {limit} tokens is no limit")
        self.attention_note = "; ".join(filter(None, notes))

    @property
    def _reads_on(self) -> bool:
        """Whether the model has positions beyond its context."""
        is_of_transformers = isinstance(self.model, PreTrainedModel)  # of others, a table is all that says a context
        has_table = self.modules.tables or any(self._n_ctx in buffer.shape for buffer in self.model.buffers())
        refuses_itself = hasattr(self.model, "to_llama")  # a model of our own family
        return is_of_transformers and not has_table and not refuses_itself

    def positions(self, edits: Sequence[Edit], length: int) -> dict[str, Tensor]:
        """The model's keyword for the positions that edits give to tokens; empty where they change none."""
        ids = torch.arange(length)
        edited = sites.POSITION_IDS.edited(ids, edits)
        if edited.equal(ids):
            return {}
        self._check_last_position(int(edited.max()))
        return {"position_ids": edited[None].to(self.device)}

    @refusing
    def _check_last_position(self, last: int) -> Iterator[str]:
        if not self._abilities.takes_positions:
            yield f"{self.name} has no positions that could be swapped"
        if not self._abilities.positions_are_plain:
            yield f"{self.name} uses positions outside embeddings and rotations, or not from 0"
        rows = self.shape.n_ctx
        if self.modules.tables and rows is not None and last >= rows:
            yield f"position {last} is outside {self.name}'s table of {rows}; shift by less"

    @refusing
    def check_edits(self, edits: Sequence[Edit], length: int) -> Iterator[str]:
        """Raises InputError for an edit that does not fit the model, or sequences of this length."""
        for edit in edits:
            for site in filter(edit.touches, sites.TAPPED):
                self._check_tapped(site)
            edit.check(self.shape, length)
            for layer, other in self.key_sources.items():
                for site in (site for site in sites.WEIGHT_SITES if site is not sites.QUERY_WEIGHTS):
                    if edit.touches(site):
                        what = f"the {site.label} of layer {other} also make those of layer {layer}"
                        yield f"{self.name}: {what}; edit the call of each layer instead"
            if edit.touches(sites.POSITION_EMBEDDING) and not self.modules.tables:
                yield f"{self.name} has no table of learned positions; take a model with one (GPT-2, OPT)"

    @refusing
    def _check_ready(self) -> Iterator[str]:
        if self.model in PATCHES:
            yield f"{self.name} is inside si.patched(...); measure it outside, with edits=... instead"
        if self.device.type == "meta":
            yield f"the weights of {self.name} are not in memory (device meta)"

    def _check_tapped(self, site: Site) -> None:
        if site in sites.TAPPED and site not in self.modules.taps:
            raise InputError(f"{self.name}: not every block shows its {site.label}; take residuals (ChangeResidual)")

    @refusing
    def check_ids(self, tokens: Any, most: int | None = None) -> Iterator[str]:
        """Raises InputError for what are not token ids, `sequence pos`, of the vocabulary, `most` in a sequence."""
        if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.ndim != 2 or not tokens.numel():
            got = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            yield f"{self.name} runs on a tensor of token ids, `sequence pos`; got {got!r}"
        if tokens.is_meta or tokens.layout is not torch.strided:
            got = "device meta" if tokens.is_meta else tokens.layout
            yield f"token ids are a dense tensor in memory; got {got}; give their list, or tokens.to_dense()"
        low, high, vocab = int(tokens.min()), int(tokens.max()), self.shape.vocab
        if low < 0 or high >= vocab:
            wrong = low if low < 0 else high
            fix = "give the text, or" if self.tokenizer is not None else "without any, a model of ours reads its task;"
            yield f"token id {wrong} is outside {self.name}'s vocabulary of {vocab}; {fix} ids are 0 to {vocab - 1}"
        fix = f"use length={most}" + "; load it with beyond_context=True to read on" * self._reads_on
        check_context(tokens.shape[1], most, self.name, fix)


def _pass_on(*args: Any, **kwargs: Any) -> Any:
    """Returns what a block is given."""
    return args[0] if args else kwargs["hidden_states"]


def _complete(taps: anatomy.Taps, shape: ModelShape) -> anatomy.Taps:
    """The taps at sites that every layer of the model has: an edit of all layers must reach all."""
    return {
        site: [tap if block in site.layers(shape) else None for block, tap in enumerate(of_blocks)]
        for site, of_blocks in taps.items()
        if site.layers(shape) and all(of_blocks[block] for block in site.layers(shape))
    }


def check_is_decoder(model: PreTrainedModel, name: str) -> None:
    """Raises InputError for an encoder-decoder model."""
    if model.config.is_encoder_decoder:
        fix = "load it with backend='huggingface' and encoder=NoEncoder(), or an input of its encoder"
        raise InputError(f"{name} has an encoder; {fix}")
