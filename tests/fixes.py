# ruff: noqa: E501  a line is what is typed
"""Every fix that a message names: what is wrong and what the message tells to type, or the test that types it.

The words are those of the message. The first line is refused with them, and the second is what they say.
"""

TYPED = {
    # edits and calls
    "give edits of scores first": (
        "si.measure(llama, T, edits=[SET, lambda call: replace(call, q=2 * call.q)])",
        "si.measure(llama, T, edits=[lambda call: replace(call, q=2 * call.q), SET])",
    ),
    "take a copy first, x.clone()": (
        "llama.run(T, edits=[iv.ChangeResidual(lambda x: x.mul_(2))])",
        "llama.run(T, edits=[iv.ChangeResidual(lambda x: x.clone().mul_(2))])",
    ),
    "must return a call": (
        "si.measure(llama, T, edits=lambda call: call.q)",
        "[si.measure(llama, T, edits=f) for f in (lambda call: replace(call, q=call.q), SET, lambda call: call)]",
    ),
    "give one or a list of them, such as edits=": (
        "si.measure(llama, T, edits=3)", "si.measure(llama, T, edits=si.SwapPositions(0, 4))",
    ),
    "write {}(), with its values": (
        "si.measure(llama, T, edits=si.SwapPositions)", "si.measure(llama, T, edits=si.SwapPositions(0, 4))",
    ),
    "only names a site; give one": (
        "si.measure(llama, T, edits=iv.ChangeOutputs())",
        "[si.measure(llama, T, edits=iv.ChangeOutputs(f)) for f in (iv.Zero(), lambda x: x)]",
    ),
    "name two different positions": (
        "si.measure(llama, T, edits=si.SwapPositions(2, 2))", "si.measure(llama, T, edits=si.SwapPositions(2, 3))",
    ),
    ": give a list of {}": (
        "si.attention_map(llama, T[:1], heads='1.0')", "si.attention_map(llama, T[:1], heads=[(1, 0)])",
    ),
    "; name one of them": (
        "si.measure(llama, T, edits=iv.ChangeOutputs(iv.Zero(), layers=[3]))",
        "si.measure(llama, T, edits=iv.ChangeOutputs(iv.Zero(), layers=[2]))",
    ),
    "leave them out for all": (
        "iv.ChangeOutputs(iv.Zero(), layers=[])", "si.measure(llama, T, edits=iv.ChangeOutputs(iv.Zero()))",
    ),
    "name their layers, as (layer,": (
        "iv.ChangeOutputs(iv.Zero(), layers=[1], heads=[(1, 2)])",
        "[iv.ChangeOutputs(iv.Zero(), **one) for one in ({'layers': [1]}, {'heads': [(1, 2)]})]",
    ),
    "no activations were taken of layer": (
        "llama.run(T, edits=[iv.ChangeResidual(iv.Put({1: torch.zeros(2, 11, 48)}), layers=[2])])",
        "llama.run(T, edits=[iv.ChangeResidual(iv.Put({1: torch.zeros(2, 11, 48)}), layers=[1])])",
    ),
    "a site is where something is read or put, and has no operation": (
        "iv.ChangeMLP(iv.Zero()).read()", "iv.ChangeMLP().read()",
    ),
    "has no kv_heads; give heads": (
        "iv.Change(si.sites.QUERIES, iv.Zero(), kv_heads=[(0, 1)])", "iv.Change(si.sites.QUERIES, iv.Zero(), heads=[(0, 1)])",
    ),
    "has no heads; leave them out": (
        "iv.Change(si.sites.MLP, iv.Zero(), heads=[(0, 1)])", "iv.Change(si.sites.MLP, iv.Zero())",
    ),
    "the {} is not read; take {}": (
        "si.sites.POSITION_IDS.read(lambda x: x)", "si.sites.CALL.read(lambda call: call.q)",
    ),
    "has a slot already; use": (
        "oss.run(T, edits=[iv.AddSinkLogit(1.0)])", "oss.run(T, edits=[iv.ZeroKeySlot()])",
    ),
    "take a model with biases": (
        "llama.run(T, edits=[iv.ZeroKeyBias()])",
        "[subject_of(name).run(T, edits=[iv.ZeroKeyBias()]) for name in ('gpt2', 'opt', 'qwen2')]",
    ),
    "take a model with K biases or sink logits": (
        "llama.run(T, edits=[iv.ZeroKeySlot()])", "oss.run(T, edits=[iv.ZeroKeySlot()])",
    ),
    "take a model with one (GPT-2, OPT)": (
        "llama.run(T, edits=[iv.Change(si.sites.POSITION_EMBEDDING, iv.Zero())])",
        "[subject_of(name).run(T, edits=[iv.Change(si.sites.POSITION_EMBEDDING, iv.Zero())]) for name in ('gpt2', 'opt')]",
    ),
    "which PNorm() restores; use it": (
        "kernels.Kernel(similarity=kernels.Exp(), normaliser=kernels.Unit())",
        "kernels.Kernel(similarity=kernels.Exp(), normaliser=kernels.PNorm())",
    ),
    # texts
    "is not the name of a data set; give the Path of a file, Path(": (
        "si.texts('t.jsonl')", "si.texts(Path('t.jsonl'))",
    ),
    # models
    "give that object itself": ("si.load(weakref.proxy(m))", "si.load(m)"),
    "is computed without dropout; call model.eval(), or set it to 0": (
        "dropping()(T)", "[dropping().eval()(T), dropping(0.0)(T)]",
    ),
    "copy its model, and load that": (
        "copy.deepcopy(si.load(module()))", "si.load(copy.deepcopy(module()))",
    ),
    "measure it outside, with edits": (
        "inside(lambda m: si.measure(m, T))", "si.measure(m, T, edits=si.SwapPositions(0, 4))",
    ),
    "give their list, or tokens.to_dense()": (
        "llama.run(T.to_sparse())", "[llama.run(T.to_sparse().to_dense()), si.measure(llama, T.tolist())]",
    ),
    "move the model yourself: model.to": (
        "si.load(model(), dtype='float64')", "si.load(model().to(torch.float64))",
    ),
    "is loaded already; use it as it is": ("si.load(llama, dtype='float64')", "si.measure(llama, T)"),
    "run it once, then give it": ("si.load(lazy())", "si.load(run_once(lazy()))"),
    "load it with attn_implementation='sdpa'": ("si.load(attending('flex_attention'))", "si.load(attending('sdpa'))"),
    "set model.config.num_hidden_layers, now {}, to that": ("si.load(of_layers(4))", "si.load(of_layers(3))"),
    "load it with beyond_context=True": ("llama.run(LONG)", "si.load(model(), beyond_context=True).run(LONG)"),
    "use length={}": ("llama.run(LONG)", "llama.run(LONG[:, :64])"),
    "load it with backend='huggingface' and encoder=NoEncoder()": (
        "si.load(bart(), backend='nnsight')", "si.load(bart(), backend='huggingface', encoder=encoder.NoEncoder())",
    ),
    "give parts=ModuleParts(forward=lambda": (
        "si.load(scoring())", "si.load(scoring(), parts=si.ModuleParts(forward=lambda m, ids: m(ids).scores))",
    ),
    "is not a dtype that models run in": (
        "si.load(folder, dtype='int8')", "[si.load(folder, dtype=x) for x in ('float32', 'bfloat16')]",
    ),
    "take it out of config.json": (
        "si.load(with_config(folder, _attn_implementation='kernels/flash', attn_implementation='kernels/flash'))",
        "si.load(with_config(folder, _attn_implementation=None, attn_implementation=None))",
    ),
    "which TransformerLens cannot run; use subject.run": (
        "si.load(module()).lens()", "si.load(module()).run(T % 13)",
    ),
    "give the name of one, or any with encode and decode": (
        "si.load(model(), tokenizer=3)", "si.load(model(), tokenizer=SimpleNamespace(encode=lambda t: [1], decode=str))",
    ),
    "si.sinks(weights) takes attention weights": ("si.load(attentions)", "si.sinks(attentions)"),
    # blocks of edits
    "fill the cache inside the block": (
        "[before := m(T).past_key_values, inside(lambda m: m(T[:, :1], past_key_values=before), si.SwapPositions(0, 4))]",
        "inside(lambda m: m(T[:, :1], past_key_values=m(T).past_key_values), si.SwapPositions(0, 4))",
    ),
    "end inner ones first": (
        "crossed(si.patched(m, SET), si.patched(m, SET))", "nested(si.patched(m, SET), si.patched(m, SET))",
    ),
    "enter the block there": (
        "inside(lambda m: in_thread(lambda: m(T)))", "in_thread(lambda: inside(lambda m: m(T)))",
    ),
    "call the model itself, not a part of it": (
        "inside(lambda m: m.model(T))", "inside(lambda m: m(T))",
    ),
    "set it before the block": (
        "inside(lambda m: (m.set_attn_implementation('eager'), m(T)))",
        "(m.set_attn_implementation('eager'), inside(lambda m: m(T)), m.set_attn_implementation('sdpa'))",
    ),
    "and position_ids are not 0, 1, 2, ...; leave them out": (
        "inside(lambda m: m(T, position_ids=torch.arange(11)[None] + 3), si.SwapPositions(0, 4))",
        "inside(lambda m: m(T), si.SwapPositions(0, 4))",
    ),
    "not masks of its own; leave attention_mask out": (
        "inside(lambda m: m(T, attention_mask=(torch.rand(2, 1, 11, 11) > 0.3).tril()))", "inside(lambda m: m(T))",
    ),
    "name positions that it has by then, or pass the whole prompt at once, without prefill_chunk_size": (
        "inside(lambda m: m.generate(T[:1], max_new_tokens=2, prefill_chunk_size=4, do_sample=False), FAR)",
        "inside(lambda m: m.generate(T[:1], max_new_tokens=2, do_sample=False), FAR)",
    ),
    # encoders
    "give TokenIds(...) or NoEncoder()": (
        "si.load(bart(), encoder=encoder.Text('a b'))",
        "[si.load(bart(), encoder=e) for e in (encoder.TokenIds((3, 4)), encoder.NoEncoder())]",
    ),
    "the encoder of {} reads {}; give {}": (
        "si.load(bart(), encoder=encoder.Silence())", "si.load(bart(), encoder=encoder.NoEncoder())",
    ),
    "whose encoder needs an input: add": ("si.load(bart())", "si.load(bart(), encoder=encoder.NoEncoder())"),
    "runs without cross-attention; give its encoder an input": (
        "si.load(bart(), encoder=encoder.NoEncoder()).cross_attention()",
        "si.load(bart(), encoder=encoder.TokenIds((3, 4))).cross_attention()",
    ),
    # texts and tokens
    "holds no tokens; give an item": ("si.measure(llama, {'train': T})", "si.measure(llama, {'train': T}['train'])"),
    "use TokenSet.of_rows": ("TokenSet([[1, 2]], '', '')", "TokenSet.of_rows([[1, 2]])"),
    "give the tokenizer's whole answer, with its attention_mask, or lists without padding": (
        "si.measure(m, PADDED)",
        "[si.measure(m, x) for x in ({'input_ids': PADDED, 'attention_mask': (PADDED > 0).long()}, LISTS)]",
    ),
    "cut the texts: length=": (
        "si.sinks(llama, LISTS)", "si.sinks(llama, [ids[:4] for ids in LISTS])",
    ),
    "texts are strings; give one": ("reader.tokens([3.5])", "[reader.tokens('one two'), reader.tokens(['one two', 'two'])]"),
    "cut it, subject.tokens(texts, length=": (
        "reader.tokens('word ' * 90)", "reader.tokens('word ' * 90, length=reader.shape.n_ctx)",
    ),
    "is plain text without columns; leave": (
        "reader.tokens(written('c.txt', 'one two'), column='body')", "reader.tokens(written('c.txt', 'one two'))",
    ),
    "use fewer or shorter sequences: the longest text": ("reader.tokens(['one two'], length=50)", "reader.tokens(['one two'], length=2)"),
    "name the column of its texts, column=": (
        "reader.tokens(rows_of({'body': 'one two three'}))", "reader.tokens(rows_of({'body': 'one two three'}), column='body')",
    ),
    "give a text, a list of texts, or token ids": (
        "si.measure(reader, 3.5)", "[si.measure(reader, x) for x in ('some words', ['one two', 'two three'], [[5, 7, 9]], T % 11)]",
    ),
    "convert it to .jsonl with a text field": (
        "reader.tokens(written('a.docx', 'x'))", "reader.tokens(written('a.jsonl', '{\"text\": \"one two\"}'))",
    ),
    "give a file with texts": (
        "reader.tokens(written('a.txt', b'\\xff\\xfe\\xfa'))", "reader.tokens(written('a.txt', 'one two'))",
    ),
    "is empty; give a file with texts": (
        "reader.tokens(written('a.txt', ''))", "reader.tokens(written('a.txt', 'one two'))",
    ),
    # measuring
    "give equal numbers, or paired=False": (
        "estimates.difference(torch.ones(3), torch.ones(4), True)",
        "[estimates.difference(torch.ones(3), torch.ones(3), True), estimates.difference(torch.ones(3), torch.ones(4), False)]",
    ),
    "compare one of them: estimate.low": ("report.sink_rate() > 0.2", "report.sink_rate().low > 0.2"),
    "give si.measurement.instruments.NAME": (
        "si.measure(llama, T, instruments='norms')",
        "[si.measure(llama, T, instruments=getattr(si.measurement.instruments, n)) for n in ('ALL', 'LOSS')]",
    ),
    "give the instrument's metric another name": (
        "si.measure(llama, T, instruments=(renamed('a', 1), renamed('a', 2)))",
        "si.measure(llama, T, instruments=(renamed('a', 1), renamed('b', 2)))",
    ),
    "measure with instruments=": (
        "report.extra(NEXT_TOKEN_LOSS)",
        "si.measure(llama, T, instruments=si.measurement.instruments.LOSS).extra(NEXT_TOKEN_LOSS)",
    ),
    "leave the tokens out, or give the models": (
        "si.compare(report, report, T)", "[si.compare(report, report), si.compare(llama, subject_of('gpt2'), T)]",
    ),
    "give two reports, such as si.measure(model, text) and si.measure(model, text, edits=": (
        "si.compare(llama, llama, T, edits=iv.Temperature(0.1))",
        "si.compare(si.measure(llama, T), si.measure(llama, T, edits=iv.Temperature(0.1)))",
    ),
    "leave its text and edits out, or give the model": (
        "si.sink_rate(report, T)", "[si.sink_rate(report), si.sink_rate(llama, T)]",
    ),
    "a report does not hold the cosine of each query": ("si.qk_cosines(report)", "si.qk_cosines(llama, T)"),
    "does not attend; choose among": (
        "si.place_or_token(jamba, T, positions=(3,), layers=[0])", "si.place_or_token(jamba, T, positions=(3,), layers=[1])",
    ),
    "what is measured already is not edited any more": (
        "si.attention_map(attentions, edits=SET)", "si.attention_map(llama, T, edits=SET)",
    ),
    "which name their layers; leave layers= out": (
        "si.attention_map(llama, T[:1], layers=[0], heads=[(0, 1)])", "si.attention_map(llama, T[:1], heads=[(0, 1)])",
    ),
    "there is no layer {} here; choose from": (
        "si.attention_weights(llama, T, layers=[9])", "si.attention_weights(llama, T, layers=[2])",
    ),
    "read texts of {} or more, or give positions": (
        "si.place_or_token(llama, T)", "si.place_or_token(llama, T, positions=[3], layers=[0])",
    ),
    "has no figure; print it": (
        "Table.of('a', '', [{'b': 1}]).plot()", "[print(Table.of('a', '', [{'b': 1}])), Table.of('a', '', [{'b': 1}]).frame.plot]",
    ),
    "is not saved as": ("si.save(report, tmp / 'a.xyz')", "[si.save(report, tmp / name) for name in ('a.json', 'a.safetensors')]"),
    "give a .safetensors or .json file that Report.save wrote": (
        "si.Report.load(written('b.safetensors', 'x'))", "[report.save(tmp / 'c.safetensors'), si.Report.load(tmp / 'c.safetensors')]",
    ),
    "give what Report.to_dict made": ("si.Report.from_dict({})", "si.Report.from_dict(report.to_dict())"),
    "exists; choose another place, or add --force": (
        "check_writable(written('e.txt', 'x'), force=False)",
        "[check_writable(written('e.txt', 'x')), check_writable(tmp / 'f.txt', force=False)]",
    ),
    # attention that people bring
    "give the attention_mask of the batch (all ones": (
        "si.sinks(unseen)", "[si.sinks(unseen, attention_mask=torch.ones(1, 6)), si.sinks(unseen[..., :4, :4])]",
    ),
    "give weights[None] for the layers of one text": (
        "si.sinks(stacked)", "[si.sinks(stacked[None]), si.sinks(stacked[:, None])]",
    ),
    "give weights, not scores before the softmax": ("si.sinks(torch.randn(1, 3, 2, 6, 6))", "si.sinks(stacked[None])"),
    "give causal attention": ("si.sinks(stacked[None].flip(-1))", "si.sinks(stacked[None])"),
    "this {} holds no attention weights; give": ("si.sinks(SimpleNamespace(attentions=None))", "si.sinks(attentions)"),
    "the array is {}; give": ("si.sinks(torch.ones(3))", "si.sinks(stacked[None])"),
    # patching
    "change words for others with as many tokens": (
        "si.activation_patching(llama, T, T[:, :5])", "si.activation_patching(llama, T[:1], T[1:], progress=False)",
    ),
    "makes a metric; call it: metric=": (
        "si.activation_patching(llama, T[:1], T[1:], metric=first_alpha, progress=False)",
        "si.activation_patching(llama, T[:1], T[1:], metric=first_alpha(), progress=False)",
    ),
    "first_order differentiates logits by layer, head and position, and {}; leave it out": (
        "si.twin_patching(llama, llama, T, first_order=True, progress=False)",
        "si.activation_patching(llama, T[:1], T[1:], metric=first_alpha(), progress=False)",
    ),
    "take the mean over the other axes": (
        "si.activation_patching(llama, T[:1], T[1:], metric=lambda logits: logits, progress=False)",
        "si.activation_patching(llama, T[:1], T[1:], metric=lambda logits: logits[:, -1, 3:9].mean(-1), progress=False)",
    ),
    "give site=ChangeOutputs() or ChangeMLP() without dims": (
        "si.activation_patching(llama, T[:1], T[1:], direct=True, progress=False)",
        "si.activation_patching(llama, T[:1], T[1:], direct=True, site=iv.ChangeOutputs(), metric=ANSWERS, progress=False)",
    ),
    "is given twice: {}; give each once": (
        "si.place_or_token(llama, T, positions=(3, 3))", "si.place_or_token(llama, T, positions=(3,))",
    ),
    # our own models
    "a static cache gives keys of tokens that are not there yet; pass a DynamicCache": (
        "ours(T % 7, past_key_values=StaticCache(ours.config, max_cache_len=12))",
        "ours(T % 7, past_key_values=transformers.DynamicCache())",
    ),
    "give the attention NoSlots(), or take Nothing()": (
        "replace(si.VARIANTS['sink_token'], attention=si.VARIANTS['k_bias'].attention)",
        "[replace(si.VARIANTS['sink_token'], attention=si.VARIANTS['softmax'].attention)]",
    ),
    "give the text, or ids are 0 to": (
        "si.measure(reader, [[9, 999_999]])", "[si.measure(reader, 'one two three'), si.measure(reader, [[0, 9]])]",
    ),
    "float16 ends at 65,504: load it with dtype": (
        "si.measure(llama, T, edits=lambda call: call.with_pattern(call.pattern().half() * 1e6))",
        "si.measure(llama, T, edits=lambda call: call.with_pattern(call.pattern().bfloat16() * 1e6))",
    ),
    "give at least {}": ("nested(si.patched(m), si.patched(m))", "nested(si.patched(m, SET), si.patched(m, SET))"),
    "give {} together": (
        "si.explain(llama, T, answer='a', progress=False)", "si.explain(llama, T, progress=False)",
    ),
    "pass them in one go": (
        "[seen(T[:, :8] % 7, past_key_values=(cache := transformers.DynamicCache())), seen(T[:, :2] % 7, past_key_values=cache)]",
        "seen(T[:, :10] % 7)",
    ),
    "heavy hitters are counted over whole texts; give all tokens in one pass": (
        "inside(lambda m: m(T[:, -1:], past_key_values=m(T[:, :-1]).past_key_values), HEAVY)",
        "inside(lambda m: m(T, use_cache=False), HEAVY)",
    ),
    "take LogitSlot()": (
        "replace(si.VARIANTS['k_bias'].attention, maps=attention.Differential())",
        "replace(si.VARIANTS['k_bias'].attention, maps=attention.Differential(), slots=LogitSlot())",
    ),
    "name what stays: frozen=(ChangeOutputs(),)": (
        "si.path_patching(laurel, T[:1], T[1:], progress=False)",
        "si.path_patching(laurel, T[:1], T[1:], progress=False, frozen=(iv.ChangeOutputs(),))",
    ),
    "a model has no text of its own; give one": ("si.attention_map(llama)", "si.attention_map(llama, T)"),
    "no step trains any weights; add": (
        "si.mend('sinkinterp/text-softmax', tmp / 'run', weights='all')",
        "mend_recipe('sinkinterp/text-softmax', weights='all', steps=100)",
    ),
    "there is no text {}; write Path({}) for a file": (
        "si.mend('sinkinterp/text-softmax', tmp / 'run', text='ok.txt')",
        "mend_recipe('sinkinterp/text-softmax', text=written('ok.txt', 'one two three'))",
    ),
    "has no effect without steps=": (
        "si.mend('sinkinterp/text-softmax', tmp / 'run', penalty=3.0)",
        "check_trained(mend_recipe('sinkinterp/text-softmax', penalty=3.0, steps=1))",
    ),
    "unexpected keyword argument {} (did you mean": (
        "si.mend('sinkinterp/text-softmax', tmp / 'run', step=10)", "mend_recipe('sinkinterp/text-softmax', steps=10)",
    ),
    "there is no remedy": (
        "si.mend('sinkinterp/text-softmax', tmp / 'run', remedy='kvbias')",
        "mend_recipe('sinkinterp/text-softmax', remedy='kv_bias')",
    ),
    "such as sinkinterp.measurement.patching.first_alpha() or a function of logits": (
        "si.activation_patching(llama, T[:1], T[1:], metric=3)",
        "[si.activation_patching(llama, T[:1], T[1:], metric=f, progress=False) for f in (first_alpha(), lambda x: x[:, -1, 3])]",
    ),
    "JSON holds no complex numbers; save the report as .safetensors": (
        "complex_report.save(tmp / 'e.json')", "complex_report.save(tmp / 'e.safetensors')",
    ),
    "set num_beams=1": ("si.sinks(written_by(m, num_beams=2))", "si.sinks(written_by(m, num_beams=1))"),
    "give one column for each query": ("si.sinks(stacked[None, :, :, :, :5])", "si.sinks(stacked[None])"),
    "layer {} is {}; give": ("si.sinks([torch.ones(2, 2), torch.ones(2, 2)])", "si.sinks(attentions)"),
    "give the weights of a pass": ("si.sinks(0 * stacked[None])", "si.sinks(stacked[None])"),
    "give token ids, such as [[5, 7, 9]], or no text": (
        "si.measure(llama, 'some words')",
        "[si.measure(llama, [[5, 7, 9]]), si.measure(si.load(reader.model, tokenizer=reader.tokenizer), 'one two three')]",
    ),
    "give input_ids and attention_mask alone": (
        "si.measure(llama, {'input_ids': T, 'pixel_values': torch.rand(2, 3)})",
        "si.measure(llama, {'input_ids': T, 'attention_mask': torch.ones_like(T), 'token_type_ids': 0 * T})",
    ),
    "load the model with its own, si.load(model, tokenizer=": (
        "si.load(model(), tokenizer=reader.tokenizer).tokens('words of another vocabulary')",
        "si.load(reader.model, tokenizer=reader.tokenizer).tokens('words of another vocabulary')",
    ),
    "is not a name; give that of a model, such as {}": (
        "si.load('https://huggingface.co/sinkinterp/text-softmax')", "si.load('sinkinterp/text-softmax')",
    ),
    "edit the call of each layer instead": (
        "sharing.run(T, edits=[iv.ZeroKeyBias()])", "sharing.run(T, edits=[lambda call: replace(call, k=2 * call.k)])",
    ),
    "take residuals (ChangeResidual)": (
        "si.measure(laurel, T, edits=iv.ChangeMLP(iv.Zero()))", "si.measure(laurel, T, edits=iv.ChangeResidual(iv.Scale(2.0)))",
    ),
    # commands
    "write a public edit with its values": (
        "cli('measure OURS --edit Zero')", "[cli(f'measure OURS --edit {e}') for e in ('SwapPositions(0,4)', 'RemoveColumn()')]",
    ),
    "leave --layer out": ("cli('view OURS --head 0.0 --layer 0')", "cli('view OURS --head 0.0 --no-open --force')"),
    "leave --head, --answer and --instead out": (
        "cli('explain TEXTUAL --place --head 0.0')", "cli('explain TEXTUAL --place')",
    ),
    "leave --into out": (
        "cli('patch TEXTUAL --into TWIN --prompt a --site paths')",
        "cli('patch TEXTUAL PROMPTS --site paths --to 1.0.k')",
    ),
    "add --into TWIN, or leave it out": (
        "cli('patch TEXTUAL PROMPTS --prompt a')",
        "[cli('patch TEXTUAL --into TWIN --prompt one-two'), cli('patch TEXTUAL PROMPTS')]",
    ),
    "give the bridge, which is subject.bridge": (
        "si.load(bridged.bridge.original_model, backend='nnsight')", "si.load(bridged.bridge)",
    ),
    "leave --sink out": (
        "cli('patch TEXTUAL PROMPTS --answer a --instead b --sink')", "cli('patch TEXTUAL PROMPTS')",
    ),
    "name them, such as --head 3.7": (
        "cli('patch TEXTUAL PROMPTS --site edges')", "cli('patch TEXTUAL PROMPTS --site edges --head 1.0')",
    ),
    "add --site paths": ("cli('patch TEXTUAL PROMPTS --to 1.0.k')", "cli('patch TEXTUAL PROMPTS --to 1.0.k --site paths')"),
    "write two prompts, `sinkinterp patch MODEL --clean": (
        "cli('patch TEXTUAL --clean a')", "[cli('patch TEXTUAL PROMPTS'), cli('patch TEXTUAL --into TWIN --prompt one-two')]",
    ),
    "name it with --table, or save": (
        "cli('measure OURS --save a.md')", "[cli('measure OURS --save b.md --table sinks'), cli('measure OURS --save b.json')]",
    ),
    "leave --table out, or save .csv or .json": (
        "cli('measure OURS --save a.safetensors --table sinks')",
        "[cli('measure OURS --save z.safetensors'), cli('measure OURS --save b.csv --table sinks')]",
    ),
    "leave one of them out": ("cli('measure OURS --table sinks --full')", "cli('measure OURS --full')"),
    "name two models, or edits of one": (
        "cli('compare OURS')", "[cli('compare TEXTUAL TWIN --prompt one-two-three'), cli('compare OURS --edit RemoveColumn()')]",
    ),
    "give a file of texts, --text FILE": (
        "cli('measure TEXTUAL --prompt one --sequences 3')",
        "[written('texts.txt', 'one two three'), cli('measure TEXTUAL --text texts.txt')]",
    ),
    "use --length {}, and longer texts if they have less": (
        "cli('explain TEXTUAL --place --length 10')", "cli('explain TEXTUAL --place --length 35 --sequences 2')",
    ),
    "and --sink reads attention; leave one of them out": (
        "cli('patch TEXTUAL PROMPTS --sink --first-order')", "cli('patch TEXTUAL PROMPTS --first-order')",
    ),
    "{} chooses rows of --table {}; leave": (
        "cli('measure OURS --table norms --head 0.0')", "cli('measure OURS --table norms')",
    ),
    "use --length": ("cli('measure OURS --length 9999')", "cli('measure OURS --length 16')"),
    "; use fewer or shorter sequences": (
        "[written('t.txt', 'a b c d e f g h i j'), cli('measure TEXTUAL --text t.txt --length 5 --sequences 3')]",
        "cli('measure TEXTUAL --text t.txt --length 5 --sequences 1')",
    ),
    "give it once": ("cli('measure OURS --epsilon 0.1 --epsilon 0.2')", "cli('measure OURS --epsilon 0.1')"),
    "use --length 4, or more": ("cli('cache TEXTUAL --length 3')", "cli('cache TEXTUAL --length 4 --sequences 2')"),
    "see `sinkinterp list variants`": ("si.trained('sofmax')", "cli('list variants')"),
    "see `sinkinterp list experiments`": ("cli('reproduce nothing')", "cli('list experiments')"),
    "; see {} --help": ("cli('measure OURS --nothing')", "cli('measure --help')"),
}  # fmt: skip

FOLLOWED = {  # typed by other tests, which load and train what takes more lines; or here, under what is filled in
    "test_every_fix.py": (
        "give {}", "add encoder, {}", "leave them out", "give the text, or", "write {}, or two models", "use --length {}", "give each once",
        "give it once", "edit the call of its layer instead", "are not found; edit its call instead",
        "; choose from {}", "among its steps; give {}", "are given together; give one",
    ),
    "backends/test_not_causal.py": (
        "draw its maps: si.attention_map", "load it as {}, or measure its attention",
        "give a causal language model that runs on token ids", "load it with its head, as AutoModelForCausalLM does",
    ),
    "backends/test_model_files.py": (
        "give a name on the Hub, or a folder that save_pretrained made", "give a model inside it, such as {}",
    ),
    "backends/test_weights.py": ("take the weights and the config.json that", "merge them: model.merge_and_unload()", "take the model's own weights"),
    "backends/test_module.py": (
        "describe its attention: parts=ModuleParts", "give parts=ModuleParts(attention=AttentionOf", "choose {}", "name one of these",
        "give one F.embedding of the ids", "run it once on as many tokens",
    ),
    "backends/test_patched.py": ("call model.eval(), or set it to 0", "take one of them off", "give the change as an edit"),
    "applications/test_mend.py": ("call si.without_adapter(model) first", "mends other weights than these; load {}"),
    "applications/test_quantising.py": ("remove the parametrisation",),
    "measurement/test_parity.py": ("read it with the Hugging Face backend", "use the Hugging Face backend"),
    "measurement/test_watching.py": ("give each a name: SinkCallback(tokens, name=...)",),
    "abuse/test_bad_calls.py": ("load it in float32",),
    "abuse/test_unreadable.py": ("change its permissions",),
    "abuse/test_damage.py": ("copy it again, make it again", "put it back", "put it back, or remove it", "copy the folder again"),
    "data/test_texts.py": (
        "give a file with texts", "give a file of texts or a folder", "give a text file in UTF-8",
        "give one of its columns", "name the column",
    ),
    "data/test_tokens.py": ('use bos="never"',),
    "data/test_token_sources.py": ("give the text of the chat",),
    "report/test_report.py": ('read both with bos="never"', "leave top=... out", "leave {}=... out"),
    "abuse/test_bad_lines.py": (
        "leave model=... away", "leave settings=... away", "leave device_map=... away", "leave text=... away", "has no models of scale {}; choose {}",
        "or add scale={}", "see `sinkinterp list experiments`", "name one in full", "use length={}", "leave it out, or name one",
    ),
    "train/test_loop.py": ("use model.vocab={}", "use objective=PrefixLM", "name a file or a folder: Texts(FILE)"),
    "pages/test_live.py": ("give at most {}", "give at least 2 token ids"),
}  # fmt: skip
OF_A_PERSON = (  # a package, a network, a disk, memory, a GPU, a server or minutes of training are not there
    "use 4.3 or newer", "use 5.17 or newer",
    "pip install transformer-lens", "pip install peft", "pip install nnsight", "pip install kaleido", "pip install gguf", "install it, or leave it out", "install Chrome", "free some space", "make room, then", "log in with `hf auth login`",
    "ray start --head", "set SINKINTERP_CACHE", "set PYTHONUTF8=1", "with a network", "the split and the network",
    "choose another place", "choose another port", "give another folder",
    "use fewer or shorter sequences", 'use dtype="bfloat16" or device_map', "lower model.n_layers",
    "lower batch", "lower lr (now {})", "set compiled=false", "pass fewer", "use cpu, or cuda on a machine", "leave --use_fsdp out",
    "give it --multi_gpu", "measure the checkpoints: si.measure(FOLDER)", "wrap it with dispatch=True", "give token ids",
    "undo that, or remove the folder", "use that, or leave data.sha256 empty", "raise held_out",
    "use vocab={} or more", "use bos=False or another tokenizer", "to put between documents", "take it out of the text",
    "save one there, or give the name", "give more. With",
    "name what stays: frozen=(ChangeOutputs(), ChangeMLP())", "out of the text",
)  # fmt: skip
NOT_FIXES = (
    "write: norm behind", "write / stream", "copy pos d_model", "copy block", "change of loss", "change of means",
    "change beyond", "change by sequence", "change the model while",
    "Use a sink, or mend it", "add what is written into", "Draw tokens: random", "and leave {} GB of checkpoints", "Say how many hours",
    "Say what the run costs", "see `sinkinterp list recipes`", "name is a text", "{}: {} ({}), {} ({}), change",
    "repeat: the token", "set to zero", "set to {.value:g}", "set to the mean of the other positions", "take the file or dictionary as it was",
)  # fmt: skip
