"""Groups of completions without a model."""

import numpy as np
import pytest

from assay.records import Completion, Finish, Group, Prompt, Segment, content_key


@pytest.fixture
def make_group():
    def make(texts, prompt="What is 2 + 2?", token_ids=None, **row):
        completions = []
        for index, text in enumerate(texts):
            ids = np.array(token_ids[index] if token_ids else range(3 + index))
            segment = Segment(ids, np.ones(len(ids), bool), np.zeros(len(ids)))
            completions.append(Completion([segment], Finish.STOP, text))
        return Group(Prompt(prompt, (1, 2), row, content_key=content_key(prompt)), completions)

    return make
