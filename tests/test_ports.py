"""First lines of users of other libraries, ported word by word: each works, or one line says what to write."""

import pytest

import sinkinterp as si

NAME = "sinkinterp/text-softmax"
START = f"""
import numpy as np, torch, sinkinterp as si
name, text, other = {NAME!r}, "The capital of France is", "The capital of Spain is"
def zero(value, hook=None):
    return torch.zeros_like(value)
"""
HELD = """
model = si.load(name)
tokenizer, inputs = model.tokenizer, model.tokenizer(text, return_tensors="pt")
model.model.set_attn_implementation("eager")
outputs = model.model(**inputs, output_attentions=True)
attention, tokens = outputs.attentions, tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
pattern, values = attention[1][0], torch.randn(len(tokens))
"""
SUBJECT, TRACED = (
    "model = si.load(name)\n",
    """
ours = si.load(name)  # under the tests' checks of types, nnsight finds no source of our own family
model = si.load(ours.model.to_llama(), ours.tokenizer, backend="nnsight")
""",
)
WORKS = {
    "TransformerLens": (
        SUBJECT,
        (
            "si.HookedTransformer.from_pretrained(name, fold_ln=False, center_unembed=False)",
            "assert model.to_tokens(text).ndim == 2 and isinstance(model.to_str_tokens(text)[0], str)",
            "assert model(text, return_type='loss').ndim == 0",
            "assert model.run_with_cache(text)[1]['pattern', 1].ndim == 4",
            "model.run_with_cache(text, names_filter=lambda name: name.endswith('_pattern'), remove_batch_dim=True)",
            "out = model.run_with_hooks(text, fwd_hooks=[('blocks.1.attn.hook_pattern', zero)])\n"
            "assert not torch.equal(out, model(text))",
            "before = model(text); model.add_hook('blocks.1.attn.hook_z', zero); after = model(text)\n"
            "assert not torch.equal(before, after)\nmodel.reset_hooks(); assert torch.equal(before, model(text))",
            "before = model(text)\nwith model.hooks(fwd_hooks=[('blocks.1.attn.hook_z', zero)]):\n"
            "    assert not torch.equal(before, model(text))\nassert torch.equal(before, model(text))",
            "before = model(text); model.blocks[1].attn.hook_z.add_hook(zero)\n"
            "assert not torch.equal(before, model(text))",
            "model.generate(text, max_new_tokens=2, do_sample=False, verbose=False)",
            "model.cfg.n_layers, model.W_Q.shape, model.blocks[1].mlp.W_out.shape",
            "model.tokens_to_residual_directions(model.to_tokens(text)[0, 1])",
            "x, labels = model.run_with_cache(text)[1].accumulated_resid(layer=-1, return_labels=True)\n"
            "model.unembed(model.ln_final(x[:, 0, -1:]))",
            "assert si.utils.get_act_name('pattern', 1) == 'blocks.1.attn.hook_pattern'",
            "patched = si.patched(model, 'blocks.1.attn.hook_pattern', zero)\n"
            "with patched: after = model(text); written = model.generate(text, max_new_tokens=2, verbose=False)\n"
            "assert not torch.equal(after, model(text)) and written[:9] == text[:9]",
            "with si.patched(name, edits=[('blocks.1.attn.hook_z', zero)]) as edited:\n"
            "    edited.generate(text, max_new_tokens=2)",
            "ids = model.to_tokens(text)[:, :3], model.to_tokens(text)[:, 1:4]\n"
            "metric = lambda logits: logits[0, -1].max()\n"
            "si.patching.get_act_patch_resid_pre(model, ids[1], model.run_with_cache(ids[0])[1], metric)",
        ),
    ),
    "nnsight": (
        TRACED,
        (
            "si.LanguageModel(model.model, dispatch=True).trace; si.NNsight(model.model).trace",
            "with model.trace(text):\n    h = model.model.layers[0].output.save()\n"
            "x = model.run(text, reads={'x': si.sites.RESIDUAL.read(lambda x: x)})['x']\n"
            "torch.testing.assert_close(h, x[:, 1], atol=1e-5, rtol=1e-4)",
            "with model.trace(text):\n    model.model.layers[1].mlp.output[:] = 0\n"
            "    out = model.output.logits.save()\n"
            "assert not torch.equal(out, model.run(text).logits)",
            "with model.trace() as tracer:\n    with tracer.invoke(text):\n        a = model.lm_head.output.save()\n"
            "    with tracer.invoke(other):\n        b = model.lm_head.output.save()\na, b",
            "with model.generate(text, max_new_tokens=2) as tracer:\n    out = tracer.result.save()\nout",
            "with model.session():\n    with model.trace(text):\n        h = model.model.layers[1].output.save()\nh",
            "with model.trace(text):\n    z = model.model.layers[0].self_attn.o_proj.input.save()\nz",
            "model.config.num_hidden_layers, print(model), model.tokenizer(text)",
            "si.attention_map(model.envoy, text); si.sinks(model.envoy, text)",
        ),
    ),
    "BertViz": (
        HELD,
        (
            "page = si.head_view(attention, tokens, html_action='return'); page.data",
            "si.head_view(attention, tokens, layer=1, heads=[0], open_browser=False)",
            "si.model_view(outputs[-1], tokens, include_layers=[1], include_heads=[0], html_action='return')",
            "si.model_view(attention, tokens, prettify_tokens=False, html_action='return')",
        ),
    ),
    "CircuitsVis": (
        HELD,
        (
            "si.attention.attention_patterns(tokens=tokens, attention=pattern, open_browser=False)",
            "si.attention.attention_heads(attention=pattern, tokens=tokens, open_browser=False)",
            "assert si.tokens.colored_tokens(tokens, values).html.count('<span title=') == len(tokens)",
            "from sinkinterp import tokens as shaded\n"
            "shaded.colored_tokens(tokens, values.tolist(), positive_color='blue')",
            "si.tokens.colored_tokens_multi(tokens, torch.randn(len(tokens), 3), labels=['a', 'b', 'c'])",
            "si.activations.text_neuron_activations(tokens=tokens, activations=torch.rand(len(tokens), 2, 8))",
        ),
    ),
    "transformers": (
        HELD,
        (
            "si.AutoModelForCausalLM.from_pretrained(name); si.AutoTokenizer.from_pretrained(name)",
            "si.load(model.model, tokenizer).tokens(text)",
            "assert model(**inputs).logits.shape[:2] == inputs.input_ids.shape",
            "model.generate(**inputs, max_new_tokens=2)",
            "assert si.sinks(outputs, inputs.input_ids).rows == si.sinks(attention).rows",
            "of_model, of_weights = si.sinks(model, inputs.input_ids), si.sinks(attention)\n"
            "assert np.allclose(of_model.numbers('alpha_1'), of_weights.numbers('alpha_1'), atol=1e-5)",
            "si.show(name, text, open_browser=False); si.plot_attention(name, text)",
            "si.show(model.model, tokenizer, text, open_browser=False)",
            "si.measure(model.model, text, tokenizer=tokenizer)",
            "held = torch.stack(attention)[:, 0]; pairs = {f'layer{i}': each for i, each in enumerate(held)}\n"
            "assert si.sinks(pairs).rows == si.sinks(list(held)).rows == si.sinks(attention).rows",
            "import pandas\nframe = pandas.DataFrame(pattern[0].detach().numpy(), columns=tokens, index=tokens)\n"
            "assert si.sinks(frame).rows[0] == si.sinks(pattern[0]).rows[0]",
            "table = si.sinks(name); assert 'n=100, T=64' in table.note and len(table) == 4",
            "from pathlib import Path\nsi.view(name, text, out='a.html'); assert Path('a.html').stat().st_size > 1e5",
            "si.activation_patching(name, text, other, answer='a', wrong='b')",
            "assert name in si.models()",
        ),
    ),
}
SAID = {
    "model.trace(text)": (SUBJECT, 'backend="nnsight"'),
    "si.StandardizedTransformer(name)": ("", "si.LanguageModel(NAME)"),
    "model.transformer.h[0]": (TRACED, "print(subject.model)"),
    "model.add_hook('blocks.1.attn.hook_z', zero); si.measure(model, text)": (SUBJECT, "subject.reset_hooks()"),
    "si.HookedTransformer.from_pretrained(name, fold_ln=True)": ("", "weights are used as they are"),
    "si.head_view(attention, tokens, sentence_b_start=3)": (HELD, "both sentences"),
    "si.model_view(attention, tokens, display_mode='dark')": (HELD, "as the reader's system is"),
    "si.neuron_view.show(model, 'llama', tokenizer, text)": (HELD, "si.view(attention, tokens)"),
    "si.head_view(encoder_attention=attention, encoder_tokens=tokens)": (HELD, "one attention a call"),
    "si.attention_patterns(tokens, pattern, attention_head_names=['a'])": (HELD, "LAYER.HEAD"),
    "si.logits.token_log_probs(inputs.input_ids[0], outputs.logits[0], tokenizer.decode)": (HELD, "colored_tokens"),
    "si.tokens.colored_tokens(tokens, values[1:])": (HELD, "finite numbers, one or a row for each"),
    "si.view(name)": ("", "si.view(model, text)"),
    "model.blocks; model.lens().W_E.data[[1, 2]] = model.W_E.data[[2, 1]].clone(); si.sinks(model)": (
        SUBJECT,
        "change those of subject.model",
    ),
}
LINES = [(user, start, line) for user, (start, lines) in WORKS.items() for line in lines]


def _run(start, line, folder):
    path = folder / "lines.py"  # nnsight reads the block of a trace from its file
    path.write_text(START + start + line + "\n")
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("user", "start", "line"), LINES, ids=[f"{user}: {line[:50]}" for user, _, line in LINES])
def test_a_port_works(user, start, line, tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda page: None)
    monkeypatch.chdir(tmp_path)
    _run(start, line, tmp_path)


@pytest.mark.parametrize("line", SAID)
def test_a_port_that_would_mean_something_else_is_answered_in_one_line(line, tmp_path):
    start, fix = SAID[line]
    with pytest.raises((AttributeError, si.checks.InputError)) as error:
        _run(start, line, tmp_path)
    assert fix in str(error.value) and "\n" not in str(error.value)


def test_the_bridge_of_a_subject_is_made_once_and_anew_after_its_weights_have_changed():
    subject = si.load(NAME)
    bridge, before = subject.lens(), subject(subject.to_tokens("one"))
    assert subject.lens() is bridge
    subject.model.lm_head.weight.data *= 2  # which autograd does not count
    assert subject.lens() is not bridge and not subject(subject.to_tokens("one")).equal(before)
