from dataclasses import replace

import torch

from sinkinterp.attention.interface import call_of_interface
from sinkinterp.attention.masks import Causal, Window

T = 11
INDEX = torch.arange(T)
BAND = (Causal() & Window(4)).allows(INDEX[:, None], INDEX[None, :])[None, None]


def test_an_additive_mask_is_split_into_what_it_forbids_and_what_it_adds(make_call):
    call = make_call()
    added = -0.3 * (INDEX[:, None] - INDEX).abs().float()[None, None]
    additive = torch.where(BAND, added, torch.finfo(torch.float32).min)
    split = call_of_interface(3, call.q, call.k, call.v, additive, call.scale)
    assert split.mask.equal(BAND)
    torch.testing.assert_close(split.pattern(), replace(call, mask=BAND, bias=added).pattern())


def test_an_additive_mask_that_adds_nothing_leaves_no_bias(make_call):
    call = make_call()
    additive = torch.zeros(1, 1, T, T).masked_fill(~BAND, torch.finfo(torch.float32).min)
    assert call_of_interface(3, call.q, call.k, call.v, additive, None).bias is None
