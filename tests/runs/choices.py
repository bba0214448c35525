"""The accuracy of multiple choices, computed again with a forward pass per choice."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.shared.downstream import CHOICES, endings
from sinkinterp.backends.named_models import located
from sinkinterp.data.sources import embedded_texts
from sinkinterp.files import cache_folder


@torch.no_grad()
def accuracy_by_hand(source, documents):
    """The share of questions whose right choice has the highest log-probability after BOS and the context."""
    tokenizer, model = (kind.from_pretrained(located(source)) for kind in (AutoTokenizer, AutoModelForCausalLM))
    right = 0
    for question in endings(embedded_texts(cache_folder()), documents):
        start = [tokenizer.bos_token_id, *tokenizer(question["query"], add_special_tokens=False)["input_ids"]]
        scores = []
        for choice in question["choices"]:
            ids = tokenizer(f"{question['query']} {choice}", add_special_tokens=False)["input_ids"]
            ids = torch.tensor([[tokenizer.bos_token_id, *ids]])
            logits = model(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])
            scores.append(logits[len(start) - 1 :].sum().item())
        right += max(range(CHOICES), key=scores.__getitem__) == question["gold"]
    return right / documents
