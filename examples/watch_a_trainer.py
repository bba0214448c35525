"""Watch a sink come while transformers' Trainer trains a small Llama.

The text is a chain of symbols in which attention has work only sometimes (Guo et al. 2024). It begins with one token.
python examples/watch_a_trainer.py [STEPS]
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import sinkinterp as si
from sinkinterp.data.backcopy import BigramBackcopy, BosFirst

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
task = BigramBackcopy(length=64, first=BosFirst())
sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 1}
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=task.vocab, max_position_embeddings=64, **sizes))

settings = {"learning_rate": 1e-2, "per_device_train_batch_size": 32, "save_strategy": "no", "report_to": []}
args = TrainingArguments("trainer", max_steps=steps, use_cpu=True, disable_tqdm=True, logging_steps=steps, **settings)
rows = [{"input_ids": row, "labels": row} for row in task.sample(32 * steps, 0, 1)]
trainer = Trainer(model, args, train_dataset=rows)
trainer.add_callback(si.SinkCallback(task.sample(16, "held out"), every=steps // 5, log=trainer.log))
trainer.train()

history = [row for row in trainer.state.log_history if "alpha_1" in row]
for row in history:
    print(f"step {row['step']}: alpha_1 {row['alpha_1']:.3f}, Sink_1 {row['sink_1']:.1%}")
print(f"under uniform attention: alpha_1 {history[0]['alpha_1_uniform']:.3f}")
