"""Language models in the manner of several code bases, at odd sizes, that attend through `sdpa` below.

`eager` computes what such a model does with attention written out, and keeps what a subject must read.
"""

import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, D, H, LAYERS, ROWS = 53, 30, 5, 3, 23
sdpa = F.scaled_dot_product_attention


def heads(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def merged(z):
    return z.transpose(1, 2).flatten(2)


class Table(nn.Module):
    """Token table, blocks, norm and head; subclasses say what else there is."""

    def __init__(self, block, norm=nn.LayerNorm, tied=False):
        super().__init__()
        self.wte, self.norm, self.head = nn.Embedding(VOCAB, D), norm(D), nn.Linear(D, VOCAB, bias=False)
        self.blocks = nn.ModuleList([block() for _ in range(LAYERS)])
        if tied:
            self.head.weight = self.wte.weight

    def embed(self, ids):
        return self.wte(ids)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D), nn.Dropout(0.2))


class FusedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj, self.drop = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = (heads(part, H) for part in self.c_attn(x).split(D, dim=2))
        return self.drop(self.c_proj(merged(sdpa(q, k, v, dropout_p=0.2 * self.training, is_causal=True))))


class PreNorm(nn.Module):
    def __init__(self, attention=FusedAttention, norm=nn.LayerNorm, mlp=MLP):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = norm(D), attention(), norm(D), mlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(Table):
    """Learned positions, tied head, in-place sums; logits of the last position alone unless there are targets."""

    def __init__(self):
        super().__init__(PreNorm, tied=True)
        self.wpe, self.drop = nn.Embedding(ROWS, D), nn.Dropout(0.2)

    def embed(self, ids):
        return self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))

    def forward(self, idx, targets=None):
        if targets is None:
            return super().forward(idx)[:, [-1]], None
        logits = super().forward(idx)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + logits.logsumexp(-1).square().mean()


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(d) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def angles(length, d):
    return torch.outer(torch.arange(length).float(), 100.0 ** -(torch.arange(0, d, 2) / d))


class GroupedAttention(nn.Module):
    """Llama, litgpt: separate maps, grouped queries, rotary positions of halves, here with rows cached by length."""

    KV = 1

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(D, self.KV * D // H, bias=False) for _ in range(2))

    def rotated(self, x):
        angle = angles(x.shape[2], x.shape[3]).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((-second, first), -1) * angle.sin()

    def forward(self, x):
        q, k, v = heads(self.q_proj(x), H), heads(self.k_proj(x), self.KV), heads(self.v_proj(x), self.KV)
        return self.o_proj(merged(sdpa(self.rotated(q), self.rotated(k), v, is_causal=True, enable_gqa=True)))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(D, 37), nn.Linear(D, 37), nn.Linear(37, D)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Litgpt(Table):
    def __init__(self):
        super().__init__(lambda: PreNorm(GroupedAttention, RMSNorm, SwiGLU), RMSNorm)


class ComplexAttention(GroupedAttention):
    """Llama's own code: rotary positions of neighbours as complex numbers; keys are repeated for their queries."""

    def rotated(self, x):
        turn = torch.polar(torch.ones(()), angles(x.shape[2], x.shape[3]))
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(3)

    def forward(self, x):
        q, k, v = heads(self.q_proj(x), H), heads(self.k_proj(x), self.KV), heads(self.v_proj(x), self.KV)
        k, v = (t.repeat_interleave(H, 1) for t in (self.rotated(k), v))
        mask = torch.full((x.shape[1],) * 2, -math.inf).triu(1)
        return self.o_proj(merged(sdpa(self.rotated(q), k, v, attn_mask=mask)))


class LlamaReference(Table):
    def __init__(self):
        super().__init__(lambda: PreNorm(ComplexAttention, RMSNorm, SwiGLU), RMSNorm)


class NanochatAttention(GroupedAttention):
    """Normed queries and keys after rotation, and values mixed with a table of values of the tokens themselves."""

    def forward(self, x, values, cos_sin):
        def turned(t):
            first, second = t.chunk(2, 3)
            cos, sin = cos_sin
            return F.rms_norm(torch.cat([first * cos + second * sin, second * cos - first * sin], 3), (D // H,))

        q, k, v = (m(x).unflatten(-1, (-1, D // H)) for m in (self.q_proj, self.k_proj, self.v_proj))
        if values is not None:
            v = v + values.view(v.shape)
        q, k, v = turned(q).transpose(1, 2), turned(k).transpose(1, 2), v.transpose(1, 2)
        return self.o_proj(merged(sdpa(q, k, v, is_causal=True, scale=1.3, enable_gqa=True)))


class NanochatBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.fc, self.proj = NanochatAttention(), nn.Linear(D, 41), nn.Linear(41, D)

    def forward(self, x, values, cos_sin):
        x = x + self.attn(F.rms_norm(x, (D,)), values, cos_sin)
        return x + self.proj(F.relu(self.fc(F.rms_norm(x, (D,)))).square())


class Nanochat(Table):
    """A rotation kept in buffers, residuals mixed with the embedding, a table of values, softcapped logits."""

    def __init__(self):
        super().__init__(NanochatBlock)
        turns = angles(ROWS, D // H)[None, :, None]
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)
        self.value_embeds = nn.Embedding(VOCAB, D // H)
        self.keep, self.again = nn.Parameter(torch.rand(LAYERS) + 0.5), nn.Parameter(torch.rand(LAYERS))

    def forward(self, idx, targets=None, kv_cache=None):
        cos_sin = self.cos[:, : idx.shape[1]], self.sin[:, : idx.shape[1]]
        x = first = F.rms_norm(self.wte(idx), (D,))
        for i, block in enumerate(self.blocks):
            x = self.keep[i] * x + self.again[i] * first
            x = block(x, self.value_embeds(idx) if i else None, cos_sin)
        return 15 * torch.tanh(self.head(F.rms_norm(x, (D,))) / 15)


class ParallelBlock(nn.Module):
    """GPT-J: attention and feed-forward side by side."""

    def __init__(self):
        super().__init__()
        self.ln, self.attn, self.mlp = nn.LayerNorm(D), GroupedAttention(), MLP()

    def forward(self, x):
        h = self.ln(x)
        return self.attn(h) + self.mlp(h) + x


class Parallel(Table):
    def __init__(self):
        super().__init__(ParallelBlock)


class PostNormBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.ln_1, self.ln_2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), MLP()

    def forward(self, x):
        z = sdpa(*(heads(m(x), H) for m in (self.q, self.k, self.v)), is_causal=True)
        x = self.ln_1(x + self.o(merged(z)))
        return self.ln_2(x + self.mlp(x))


class PostNorm(Table):
    """The transformer of 2017: norms after sums, sines for positions, embeddings scaled."""

    def __init__(self):
        super().__init__(PostNormBlock, norm=lambda d: nn.Identity())
        turns = angles(ROWS, D)
        self.register_buffer("pe", torch.cat((turns.sin(), turns.cos()), 1)[None])

    def embed(self, ids):
        return self.wte(ids) * math.sqrt(D) + self.pe[:, : ids.shape[1]]


class Encoder(Table):
    """`nn.TransformerEncoder` with a causal mask, and a parameter of positions; (pos, batch, d_model) inside."""

    def __init__(self, batch_first=True):
        super().__init__(nn.Identity)
        layer = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=batch_first, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.blocks = self.encoder.layers
        self.pos = nn.Parameter(torch.randn(1, ROWS, D))
        for parameter in self.parameters():  # the copies of a layer are all alike
            parameter.data += 0.1 * torch.randn_like(parameter)

    def forward(self, ids):
        x = self.wte(ids) + self.pos[:, : ids.shape[1]]
        x = x if self.blocks[0].self_attn.batch_first else x.transpose(0, 1)
        x = self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(ids.shape[1]))
        x = x if self.blocks[0].self_attn.batch_first else x.transpose(0, 1)
        return {"logits": self.head(self.norm(x))}


class ModuleAttention(nn.Module):
    """`nn.MultiheadAttention` as it is called without further thought: with a mask of booleans and with weights."""

    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.mha(x, x, x, attn_mask=mask)[0]


class Multihead(NanoGPT):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([PreNorm(ModuleAttention) for _ in range(LAYERS)])

    def embed(self, ids):
        return self.wte(ids) + self.wpe(torch.ones_like(ids).cumsum(1) - 1)


class NoBlocks(Table):
    """No block is a module: attention and feed-forward layers with their norms stand in one list."""

    def __init__(self):
        super().__init__(nn.Identity)
        parts = [part for _ in range(LAYERS) for part in (GroupedAttention, MLP)]
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(D), part()) for part in parts])

    def forward(self, ids):
        x = self.wte(ids)
        for layer in self.layers:
            x += layer(x)
        return self.head(self.norm(x))


class Head(nn.Module):
    """A course's head: attention written out, with a buffer of ones for the mask."""

    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, D // H, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(ROWS, ROWS)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        length = x.shape[1]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * (D // H) ** -0.5
        scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return self.dropout(F.softmax(scores, dim=-1)) @ self.value(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.proj = nn.ModuleList([Head() for _ in range(H)]), nn.Linear(D, D)
        self.attn = nn.Dropout(0.2)

    def forward(self, x):
        return self.attn(self.proj(torch.cat([head(x) for head in self.heads], -1)))


def attended(module, x, parts=("query", "key", "value")):
    """What `Heads` computes, by PyTorch's own attention: how a user describes it."""
    q, k, v = (torch.stack([getattr(head, part)(x) for head in module.heads], 1) for part in parts)
    return module.attn(module.proj(merged(sdpa(q, k, v, is_causal=True))))


class Course(NanoGPT):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[PreNorm(Heads) for _ in range(LAYERS)])


def gpt2_of(model):
    """A NanoGPT or Course as the model of transformers with the same weights."""
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=ROWS, n_embd=D, n_layer=LAYERS, n_head=H, n_inner=2 * D,
        activation_function="gelu", bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    twin = GPT2LMHeadModel(config)
    theirs, state = twin.transformer, {"wte.weight": model.wte.weight, "wpe.weight": model.wpe.weight}
    parts = [("ln_f", model.norm)]
    for i, block in enumerate(model.blocks):
        parts += [(f"h.{i}.ln_1", block.ln_1), (f"h.{i}.ln_2", block.ln_2)]
        parts += [(f"h.{i}.{name}", layer) for name, layer in zip(MAPS, maps_of(block), strict=True)]
    for name, part in parts:
        is_map = isinstance(part, nn.Linear)
        bias = torch.zeros(len(part.weight)) if part.bias is None else part.bias
        state |= {f"{name}.weight": part.weight.mT if is_map else part.weight, f"{name}.bias": bias}
    theirs.load_state_dict(state)
    return twin


MAPS = "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"


def maps_of(block):
    attention, feed_forward = block.attn, (block.mlp[0], block.mlp[2])
    if isinstance(attention, FusedAttention):
        return attention.c_attn, attention.c_proj, *feed_forward
    fused = nn.Linear(D, 3 * D, bias=False)
    kinds = ("query", "key", "value")
    fused.weight.data = torch.cat([getattr(head, kind).weight for kind in kinds for head in attention.heads])
    return fused, attention.proj, *feed_forward


@contextmanager
def written_out(patterns):
    """Inside, the modules of this file attend with softmax written out, which keeps its patterns."""
    global sdpa

    def eager(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
        assert not dropout_p
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -math.inf)
        patterns.append(torch.softmax(scores if attn_mask is None else scores + attn_mask, -1))
        return patterns[-1] @ v

    before, sdpa = sdpa, eager
    try:
        yield
    finally:
        sdpa = before


class Words:
    """A tokenizer of a language model's own code, with two methods."""

    def encode(self, text):
        return [len(word) for word in text.split()]

    def decode(self, ids):
        return " ".join("x" * i for i in ids)
