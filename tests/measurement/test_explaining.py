"""Scores in parts add up in every head, and planted sinks are found."""

import pytest
import torch
from backends import encoder_decoders, test_alibi
from backends.zoo import model_of, subject_of, tokens_of
from refusals import refused
from transformers import BambaConfig, BambaForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import sinkinterp as si
from sinkinterp._experiments import load_module
from sinkinterp.backends.anatomy import removed_after
from sinkinterp.backends.encoder import NoEncoder
from sinkinterp.backends.frozen import frozen
from sinkinterp.backends.load import load
from sinkinterp.measurement import explaining
from sinkinterp.measurement.explaining import cut_maps, path_edit
from sinkinterp.measurement.lens import POSITION_BIAS, head_pairs, logit_parts, parts_by_block, whole_score
from sinkinterp.runs.inputs import Inputs

FAMILIES = (
    "gpt2", "opt", "pythia", "llama with biases", "mistral with a window", "qwen3 with normed queries", "qwen3-moe",
    "gemma3", "gemma2 with softcap", "gpt-oss with sink logits",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_add_up_to_the_score_in_every_head(family):
    adds_up(subject_of(family), tokens_of(11))


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon, eager", "alibi", "t5"])
def test_a_bias_of_positions_is_a_part_of_the_score(name):
    adds_up(test_alibi.subject_of(name), tokens_of(11), POSITION_BIAS)


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_the_parts_of_a_decoder_add_up_beside_cross_attention(name):
    subject = load(encoder_decoders.model_of(name), encoder=encoder_decoders.source_of(name))
    adds_up(subject, tokens_of(11) % encoder_decoders.VOCAB, POSITION_BIAS if name == "t5" else None, is_crossed=True)


def test_a_head_below_uniform_attention_has_no_share_removed():
    answers = [si.explain(subject_of("gpt2"), tokens_of(11), head=head) for head in ((0, 2), (1, 3), (2, 3))]
    for answer, is_above in zip(answers, (True, False, False), strict=True):
        score, removed = answer.heads[0], [row["removed"] for row in answer.cuts.records()]
        assert score.is_above_null is is_above and removed
        assert ("not above uniform" in answer.sentence) == all(share is None for share in removed) == (not is_above)
        assert ("below the others'" in answer.sentence) == bool(score.score.mean() < 0)
        assert ("hardly a sink to explain" in answer.sentence) == bool(score.alpha.mean() <= 0.3)


def test_equal_answers_are_refused_whose_logits_do_not_differ():
    model, text = "sinkinterp/repeats-softmax", "one two"
    refused(lambda: si.explain(model, text, answer="a", instead="a", progress=False), "are both 'a'")


def test_a_forward_of_a_modules_own_stays():
    model = model_of("gpt2")
    part, calls = model.transformer.h[0].mlp, []
    run = part.forward
    part.forward = lambda x: calls.append(1) or run(x)
    own = part.forward
    si.explain(model, tokens_of(11), head=(1, 0))
    assert part.forward is own and calls


def adds_up(subject, tokens, last_part=None, is_crossed=False):
    before = subject.run(tokens).logits
    with frozen(subject, tokens) as run:
        for layer, values, cuts in parts_by_block(run):
            torch.testing.assert_close(sum(values.values()), run.trace["x"][:, layer], atol=1e-5, rtol=1e-5)
            if layer not in run.calls:
                continue  # the last output
            call, heads = run.calls[layer], list(range(subject.shape.n_heads))
            names, pairs, score, first_keys = head_pairs(run, layer, heads, values, on_slot=False)
            direct = by_hand(call)
            torch.testing.assert_close(score, direct, rtol=1e-4, atol=1e-6)
            largest = torch.maximum(pairs.abs().amax((2, 3)), direct.abs())
            assert ((pairs.sum((2, 3)) - direct).abs() <= 1e-4 * largest).all()
            assert pairs.shape[2] == len(names) and first_keys.shape[2] == len(values) and set(cuts) <= set(values)
            torch.testing.assert_close(first_keys.sum(2), first_keys_by_hand(run, call), rtol=1e-4, atol=1e-5)
            assert last_part is None or (names[-1] == last_part and pairs[..., -1, -1].abs().max() > 0)
        rest = [v - v[:, :1] for name, v in values.items() if name.startswith("bias")]
        assert is_crossed or all(v.abs().max() < 1e-5 for v in rest)  # a block's biases are the same everywhere
        crossed = [name for name in values if name.startswith("cross-attention")]
        assert len(crossed) == (subject.shape.n_layers if is_crossed else 0)
    assert subject.run(tokens).logits.equal(before)  # the model is as it was


def by_hand(call):
    """Mean over queries of q.k_1 less the mean of q.k_j over the other keys that the query sees, with loops."""
    batch, n_heads, n, _ = call.q.shape
    k = call.k.repeat_interleave(n_heads // call.k.shape[1], 1)
    allowed = call.allowed().expand(batch, n_heads, n, n)
    bias = None if call.bias is None else call.bias.expand(batch, n_heads, n, n)
    answer = torch.zeros(batch, n_heads)
    for b in range(batch):
        for h in range(n_heads):
            gaps = []
            for i in range(n):
                others = [j for j in range(1, n) if allowed[b, h, i, j]]
                if allowed[b, h, i, 0] and others:
                    products = (k[b, h] @ call.q[b, h, i]) * call.scale
                    products = products if bias is None else products + bias[b, h, i]
                    gaps.append(products[0] - products[others].mean())
            answer[b, h] = torch.stack(gaps).mean()
    return answer


def first_keys_by_hand(run, call):
    """The first key of every head less the mean of the others, without what biases alone make, with loops."""
    own = run.call(call.layer, torch.zeros_like(run.trace["x"][:, call.layer]))
    made = (call.k - own.k).repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    others = sum(made[:, :, j] for j in range(1, made.shape[2])) / (made.shape[2] - 1)
    return made[:, :, 0] - others


def test_cut_directly_all_parts_leave_a_first_key_that_is_the_mean_of_the_others():
    subject, tokens, layer = subject_of("llama with grouped queries"), tokens_of(11), 2
    with frozen(subject, tokens) as run:
        values = next(values for block, values, _ in parts_by_block(run) if block == layer)
        first_keys = head_pairs(run, layer, [1], values, on_slot=False).first_keys
    key = first_keys[:, 0].sum(1, keepdim=True).expand(-1, subject.shape.n_kv_heads, -1)
    edit = path_edit({layer: key}, [(layer, 1 // (subject.shape.n_heads // subject.shape.n_kv_heads))], 11)
    reads = {"keys": lambda call: call.k}
    before, after = (subject.run(tokens, reads=reads, edits=edits)["keys"][:, layer, 0] for edits in ([], [edit]))
    mean = torch.stack([before[:, j] for j in range(1, 11)]).mean(0)
    torch.testing.assert_close(after[:, 0], mean, rtol=1e-4, atol=1e-5)
    assert after[:, 1:].equal(before[:, 1:])


def test_a_sink_that_one_known_neuron_makes_is_found():
    subject, tokens = load(planted_gpt2()), torch.randint(31, (6, 13), generator=torch.Generator().manual_seed(2))
    answer = si.explain(subject, tokens, head=(1, 1), progress=False)
    (head,), path = answer.heads, answer.path
    assert [head.parts[i] for i in head.main_parts()] == ["MLP 0"] and max(head.shares()) > 0.9
    assert path is not None and (path.dim, path.writer, path.neurons[0].index, path.n_neurons) == (7, "MLP 0", 5, 1)
    assert path.neurons[0].share > 0.95 and set(path.readers) == {(1, 1)}
    removed = dict(zip(answer.cuts.frame["cut"].tolist(), answer.cuts.frame["removed"].tolist(), strict=True))
    assert removed["MLP 0, in the stream"] > 0.8 and removed["MLP 0, directly"] > 0.8
    assert max(removed["random parts, in the stream"], removed["random parts, directly"]) < 0.1
    by_cut = {row["cut"]: row["alpha_1 of readers"] for row in answer.path_cuts.records()}
    assert by_cut["path: the readers' first keys"] < 0.5 * by_cut["none"]
    control = f"directly (random parts: {removed['random parts, directly']:.0%})"
    assert "1 neuron makes" in answer.sentence and control in answer.sentence and len(answer.plot().data) >= 3
    untouched, cut = cut_maps(subject, tokens, answer)[1, 1]
    assert untouched.weights[:, 0].mean() == pytest.approx(head.alpha.mean().item(), abs=1e-5) and cut.cut == "MLP 0"
    assert untouched.loss == pytest.approx(answer.path_cuts.records()[0]["loss"], abs=1e-5)
    assert cut.weights[:, 0].mean() == pytest.approx(answer.cuts.records()[0]["alpha_1"], abs=1e-5)
    choices = [trace.meta["choice"] for trace in answer.plot((1, 1), [untouched, cut]).data if trace.meta]
    assert choices == ["nothing", "nothing", "MLP 0", "MLP 0"]
    refused(lambda: answer.plot((0, 0)))


SHIPPED = {"sinkinterp/demo-softmax": "position", "sinkinterp/demo-k_bias": "k*"}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_toy_twins_are_explained_by_what_was_planted(name):
    subject = load(name)
    answer = si.explain(subject, Inputs(16, 32).token_set(subject, name), progress=False)
    (head,) = answer.heads
    shares = dict(zip(head.parts, head.shares(), strict=True))
    assert shares.pop(SHIPPED[name]) > 0.9 and max(map(abs, shares.values())) < 0.1
    assert answer.cuts.records()[0]["removed"] > 0.8 and abs(answer.cuts.records()[1]["removed"]) < 0.1


def middle_model(dim=7, is_embedded=False):
    """A Llama with a large entry at token 3 alone from block 1 on, and larger ones at all tokens from block 3 on."""
    config = LlamaConfig(
        vocab_size=31, hidden_size=24, intermediate_size=13, num_hidden_layers=5, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(std=0.05)[:, 0] = 1
        model.model.embed_tokens.weight[:, 1] = 0
        model.model.embed_tokens.weight[3, 1] = 4 if not is_embedded else 400
        for block in model.model.layers:
            for matrix in (block.self_attn.o_proj, block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj):
                matrix.weight.mul_(1e-4)
        writer, of_all = model.model.layers[0].mlp, model.model.layers[2].mlp
        for mlp, read, written, size in ((writer, 1, dim, 1.0), (of_all, 0, 11, 5e6)):
            mlp.gate_proj.weight[2, read] = mlp.up_proj.weight[2, read] = 4
            mlp.down_proj.weight[written, 2] = size
        second = model.model.layers[1].mlp  # adds a little to the entry, and much of it to the other tokens'
        for neuron, read, slope, size in ((2, 0, 4, 0.055), (3, dim, 1, 0.5)):
            second.gate_proj.weight[neuron, read] = second.up_proj.weight[neuron, read] = slope
            second.down_proj.weight[dim, neuron] = size
    return model


@pytest.mark.parametrize("is_embedded", [False, True])
def test_an_entry_that_stands_out_in_a_middle_block_is_found_where_a_later_block_has_larger_ones_of_all_tokens(
    is_embedded,
):
    tokens = torch.randint(4, 31, (5, 13), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = 3
    subject = load(middle_model(dim=7, is_embedded=is_embedded))
    report = si.measure(subject, tokens, instruments=si.measurement.instruments.MASSIVE, progress=False)
    answer, x = si.explain(subject, tokens, head=(3, 1), progress=False), residuals(subject, tokens)
    first, others = x[:, :, 0].mean(0).abs(), x[:, :, 1:].abs().mean((0, 2))
    assert first[-2].argmax() == 11 or is_embedded  # the largest of all is that of every token
    if is_embedded:
        assert answer.path is None and "The embedding makes" in answer.sentence
        return
    path = answer.path
    assert (path.dim, path.writer) == (7, "MLP 0") and "MLP 0 writes" in answer.sentence
    assert path.block == 1 and first[2, 7] > first[1, 7] > 10 * others[2, 7]  # it stands out most before it is largest
    assert path.times == pytest.approx(float(first[path.block, 7] / others[path.block, 7]), rel=1e-4)
    massive = (x[:, :, 0, 7].abs() > 100) & (x[:, :, 0, 7].abs() >= 1000 * medians(x))
    blocks = (massive.float().mean(0) > 0.5).nonzero().flatten().tolist()
    assert (path.life.first, path.life.last) == (blocks[0], blocks[-1] + 1)  # the last output is normed in `x`
    if blocks:  # `measure` finds them too
        assert (report.extra("massive_entries")[:, blocks] >= 1).all()


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_part_erases_an_entry_if_it_takes_half_of_the_largest_that_it_was(share):
    tokens = torch.randint(4, 31, (5, 13), generator=torch.Generator().manual_seed(2))
    tokens[:, 0], model, given = 3, middle_model(dim=7), []
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[7, 2:4] *= 30  # the entry grows after block 1
        eraser = model.model.layers[2].mlp
        eraser.gate_proj.weight[5, 7] = eraser.up_proj.weight[5, 7] = 1
        with removed_after([eraser.down_proj.register_forward_pre_hook(lambda module, args: given.append(args[0]))]):
            x = residuals(load(model), tokens)[:, :, 0, 7].mean(0)
        eraser.down_proj.weight[7, 5] = -share * x[2] / given[-1][:, 0, 5].mean()
        path = si.explain(model, tokens, head=(3, 1), progress=False).path
    assert (path.block, path.dim) == (1, 7) and 0.4 * x[2] > 0.5 * x[1] > 0
    if share < 0.5:
        assert path.eraser is None and "erases" not in path.sentence()
    else:
        name, erased = path.eraser
        assert name == "MLP 2" and erased == pytest.approx(share, abs=0.01)


def residuals(subject, tokens):
    """`sequence block pos d_model`, by transformers alone but for the last, which it norms."""
    with torch.no_grad():
        states = subject.model(tokens, output_hidden_states=True).hidden_states
    return torch.stack(states[:-1], 1)


def medians(x):
    """Lower median of every sequence and block, by sorting."""
    flat = x.abs().flatten(2).sort(-1).values
    return flat[..., (flat.shape[-1] - 1) // 2]


def test_without_a_massive_entry_the_nearest_block_is_named():
    subject, tokens = subject_of("gpt2"), tokens_of(11)
    answer, x = si.explain(subject, tokens, head=(1, 3), progress=False), residuals(subject, tokens)
    first, others = x[:, :, 0].mean(0).abs(), x[:, :, 1:].abs().mean((0, 2))
    dims = first.argmax(-1)
    times = torch.tensor([first[b, d] / others[b, d] for b, d in enumerate(dims)])
    assert answer.path is None and times.max() < 10
    assert (answer.no_path.block, answer.no_path.dim) == (int(times.argmax()), int(dims[times.argmax()]))
    assert answer.no_path.times == pytest.approx(float(times.max()), rel=1e-4)
    assert "At no block" in answer.sentence


def test_parts_that_no_edit_cuts_have_the_name_of_what_they_are():
    tokens = tokens_of(11) % 61
    tokens[:, 0] = 3
    subject = load(hybrid_with_a_massive_mixer(tokens))
    answer = si.explain(subject, tokens, head=(3, 1), progress=False)
    names = set(answer.heads[0].parts)
    assert {"mixer 0", "mixer 2", "bias 1"} <= names and not {"bias 0", "bias 2"} & names
    assert answer.path.writer == "mixer 2" and "mixer 2 writes" in answer.sentence
    assert "whole write" not in answer.path_cuts.frame["cut"].tolist()


def hybrid_with_a_massive_mixer(tokens):
    """A Bamba whose second Mamba block writes 3,000 into dimension 5 at the first token, and nothing at the others."""
    torch.manual_seed(0)
    config = BambaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_indices=[1, 3], mamba_n_heads=4, mamba_d_state=8, mamba_d_head=16,
        mamba_expand=2, mamba_n_groups=1, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model, given = BambaForCausalLM(config).eval(), []
    projection = model.model.layers[2].mamba.out_proj
    with torch.no_grad():
        with removed_after([projection.register_forward_pre_hook(lambda module, args: given.append(args[0]))]):
            model(tokens)
        wanted = torch.zeros(tokens.shape, dtype=torch.double)
        wanted[:, 0] = 3000
        solved = torch.linalg.pinv(given[0].flatten(0, 1).double()) @ wanted.flatten()
        projection.weight[5] = solved.float()
    return model


def test_a_model_whose_slot_is_a_logit_is_explained_by_its_first_token():
    model = model_of("gpt-oss with sink logits")
    for block in model.model.layers:
        block.self_attn.sinks.data.fill_(9)
    report = si.measure(model, tokens_of(11), progress=False)
    assert report.slot_importance.mean() > report.alpha().mean()  # the logit takes most
    answer = si.explain(model, tokens_of(11), head=(1, 0), progress=False)
    assert answer.target == "the first token" and answer.heads[0].error < 1e-3


def test_a_decoder_whose_encoder_is_off_is_explained_and_its_cross_attention_is_none():
    subject = load(encoder_decoders.model_of("whisper"), encoder=NoEncoder())
    answer = si.explain(subject, tokens_of(11) % encoder_decoders.VOCAB, head=(2, 1), progress=False)
    assert not any(name.startswith("cross-attention") for name in answer.heads[0].parts)


def planted_gpt2(neuron=5, dim=7):
    """A GPT-2 with the published circuit: MLP 0 turns p1 into a dimension that keys read and a query bias asks for."""
    config = GPT2Config(vocab_size=31, n_embd=24, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        first, second = model.transformer.h
        for block in (first, second):
            for matrix in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
                matrix.weight.mul_(0.1)
        model.transformer.wte.weight.mul_(5)
        model.transformer.wpe.weight[1:] -= model.transformer.wpe.weight[1:13].mean(0)  # so p1's mean is zero
        model.transformer.wpe.weight[0, 2] = 1
        first.mlp.c_fc.weight[2, neuron], first.mlp.c_proj.weight[neuron, dim] = 3, 3
        first.mlp.c_fc.bias[neuron] = -9  # so that only p1 reaches it
        second.attn.c_attn.weight[dim, 24 + 12 : 24 + 24] = 1  # keys of head 1
        second.attn.c_attn.bias[12:24] = 1  # its queries
        second.attn.c_attn.bias[24:48].normal_()
    return model


def test_the_published_cuts_of_gpt2_are_parts_that_explain_finds():
    subject, tokens = load(planted_gpt2()), torch.randint(31, (6, 13), generator=torch.Generator().manual_seed(2))
    circuit, cuts = (getattr(load_module("gpt2_circuit"), name) for name in ("Circuit", "CUTS"))
    circuit = circuit(subject, 13, (7,))

    def scores_and_alpha(cut):
        (edit,) = cut if isinstance(cut, list) else cuts[cut](circuit)
        trace = subject.run(tokens, reads={"s": lambda call: whole_score(call, False)}, edits=[edit])
        report = si.measure(subject, tokens, edits=[edit], positions=(0,), progress=False)
        return trace["s"][:, 1, 1], report.alpha()[:, 1, 1].mean().item(), trace.logits

    answer = si.explain(subject, tokens, head=(1, 1), progress=False)
    (head,), path = answer.heads, answer.path
    keys, queries = (
        dict(zip(head.parts, x.mean(0) / head.score.mean(), strict=True)) for x in (head.of_keys(), head.of_queries())
    )
    assert [head.parts[i] for i in head.main_parts()] == ["MLP 0"] and keys["MLP 0"] > 0.9
    assert queries["own bias"] > 0.9 and path.neurons[0].index == 5
    own, sink, null = head.parts.index("own bias"), head.alpha.mean().item(), head.null.mean().item()
    assert sink > null + 0.5
    score, alpha, _ = scores_and_alpha("b_Q = 0")  # what is left is what the other parts of the query make, exactly
    torch.testing.assert_close(score, head.pairs.sum((1, 2)) - head.pairs[:, own].sum(1), rtol=1e-4, atol=1e-5)
    assert alpha < null + 0.05
    score, alpha, _ = scores_and_alpha("control: b_K = 0")  # the bias of keys makes nothing of any score
    torch.testing.assert_close(score, head.score, rtol=1e-4, atol=1e-5)
    assert head.of_keys()[:, own].abs().max() < 1e-5 and alpha == pytest.approx(sink, abs=1e-5)
    dropped, cut = scores_and_alpha("drop p1"), scores_and_alpha([head.cuts["position"]])
    torch.testing.assert_close(dropped[2], cut[2], rtol=1e-4, atol=1e-5)  # other positions have a mean of zero
    for name in ("drop p1", "no positions", "no first MLP", "zero 3 columns of W_K"):
        assert scores_and_alpha(name)[1] < null + 0.05, name
    assert scores_and_alpha("control: no first token")[1] > 0.9 * sink


def test_a_model_that_cannot_be_explained_is_refused():
    model = load(model_of("gpt2"), backend="transformer_lens")
    refused(lambda: si.explain(model, tokens_of(7), progress=False), "backend")


def test_what_a_head_writes_into_the_answer_is_its_part_of_the_difference_of_the_logits(monkeypatch):
    monkeypatch.setattr(explaining, "answer_token", lambda subject, text: int(text))
    subject, tokens = subject_of("gpt2"), tokens_of(11)
    answer = si.explain(subject, tokens, head=(1, 3), answer="5", instead="7", progress=False)
    own = logit_parts(subject, tokens, torch.full((5,), 5), torch.full((5,), 7))["head 1.3"]
    logits = subject.run(tokens).logits[:, -1]
    assert answer.written.difference == pytest.approx((logits[:, 5] - logits[:, 7]).mean().item(), abs=1e-4)
    (row,) = answer.parts().where(part="head 1.3").records()
    assert row["into the answer"] == pytest.approx(own.mean().item(), abs=1e-5) and row["as key"] is None
    assert all(row["into the answer"] is not None for row in answer.parts().records() if row["part"].startswith("MLP"))
    assert f"writes {own.mean():.3g} itself into the logit of '5' less '7'" in answer.sentence
    assert "into the answer" not in si.explain(subject, tokens, head=(1, 3), progress=False).parts().frame
    every = answer.writers()
    assert (
        set(every.frame["part"]) == set(answer.written.parts) and "head 2.0" in answer.written.parts
    )  # after the explained head
    assert sum(every.numbers("into the answer")) == pytest.approx(answer.written.difference, abs=1e-4)
    assert every.records()[:12] == next(table for table in answer.tables() if table.title == every.title).records()
    refused(lambda: si.explain(subject, tokens, head=(1, 3), answer="5"), "answer")
