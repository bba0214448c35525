"""What would change a pass is read or refused by name; what changes nothing passes."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from refusals import refused

from sinkinterp.data.tokens import token_set_of

IDS = torch.tensor([[5, 3, 8, 1, 2], [4, 4, 7, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
LEFT = MASK.flip(1)


def read(**inputs):
    return token_set_of({"input_ids": IDS, "attention_mask": MASK, **inputs}, None)


@pytest.mark.parametrize("name", ["pixel_values", "pixel_values_videos", "image_grid_thw", "input_features", "labels",
                                  "input_values", "decoder_input_ids", "inputs_embeds", "prefix_mask",
                                  "pixel_attention_mask", "past_key_values", "a name nobody knows"])  # fmt: skip
def test_an_input_that_may_change_a_pass_is_refused_by_name(name):
    for value in (torch.ones(2, 3, 4), np.zeros((2, 5)), [[1.0]]):
        refused(lambda value=value: read(**{name: value}), repr(name))
        refused(lambda value=value: read(token_type_ids=torch.ones_like(IDS), **{name: value}), repr(name))
    assert len(read(**{name: None}).tokens) == 2


def test_positions_and_types_that_a_model_takes_anyway_pass():
    plain = read()
    same = [
        {"position_ids": torch.arange(5).expand(2, -1)},
        {"position_ids": torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 9, 9]])},
        {"position_ids": torch.arange(5)[None]},
        {"position_ids": torch.arange(5), "cache_position": np.arange(5)},
        {"labels": IDS.masked_fill(MASK == 0, -100)},
        {"labels": IDS.tolist()},
        {"token_type_ids": torch.zeros_like(IDS), "mm_token_type_ids": np.zeros((2, 5), int)},
        {"special_tokens_mask": torch.ones_like(IDS), "length": [5, 5], "offset_mapping": [[(0, 1)] * 5] * 2},
    ]
    for more in same:
        assert read(**more).tokens.equal(plain.tokens)
    left = {"attention_mask": LEFT, "position_ids": torch.tensor([[0, 1, 2, 3, 4], [1, 1, 0, 1, 2]])}
    assert read(**left).lengths.tolist() == [5, 3]
    changed = [
        {"position_ids": torch.zeros_like(IDS)},
        {"position_ids": torch.arange(1, 6).expand(2, -1)},
        {"token_type_ids": MASK},
        {"labels": IDS.masked_fill(IDS == 8, -100)},
        {"position_ids": torch.arange(1, 6)},
        {"attention_mask": LEFT, "position_ids": torch.arange(5).expand(2, -1)},
    ]
    for more in changed:
        refused(lambda more=more: read(**more), f"'{[*more][-1]}' is not read")


def test_rows_of_a_dataset_follow_the_same_rule_and_its_other_columns_are_not_inputs():
    rows = {"input_ids": IDS.tolist(), "label": [0, 1], "title": ["a", "b"]}
    assert token_set_of(Dataset.from_dict(rows), None).tokens.equal(IDS)
    assert token_set_of(Dataset.from_dict(rows | {"labels": IDS.tolist()}), None).tokens.equal(IDS)
    refused(lambda: token_set_of(Dataset.from_dict(rows | {"labels": MASK.tolist()}), None), "'labels'")
    ragged = {"input_ids": [[5, 3, 8], [4, 7]], "labels": [[5, 3, 8], [4, 7]]}
    assert token_set_of(Dataset.from_dict(ragged), None).lengths.tolist() == [3, 2]
