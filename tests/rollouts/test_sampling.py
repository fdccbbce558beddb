"""Inverse-CDF sampling, its random streams and truncation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.rollouts import Sampling
from assay.rollouts.sampling import RandomStream, draw, truncate


def test_streams_are_uniform_and_independent():
    columns = [[RandomStream(seed, index) for index in range(4)] for seed in range(4)]
    numbers = np.array([[stream.next() for _ in range(400)] for row in columns for stream in row])
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    correlations = np.corrcoef(numbers)[~np.eye(16, dtype=bool)]
    assert np.abs(correlations).max() < 0.25


@pytest.mark.parametrize("size", [5, 256, 1000])
def test_draws_follow_the_softmax(size):
    logits = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 1.5
    count = 60_000
    uniforms = np.random.default_rng(1).random(count)
    rows = logits.expand(2000, -1)
    tokens = torch.cat(
        [draw(rows, [Sampling(1, 0.7)] * 2000, part.tolist()).tokens for part in np.split(uniforms, count // 2000)]
    )
    observed = np.bincount(tokens.numpy(), minlength=size).astype(float)
    expected = count * (logits.double() / 0.7).softmax(0).numpy()
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert stats.chisquare(observed, expected * count / expected.sum()).pvalue > 1e-3


def test_the_token_is_the_one_whose_cumulative_probability_covers_the_uniform():
    probs = torch.tensor([0.1, 0.0, 0.5, 0.4])
    logits = probs.log().expand(6, -1)
    uniforms = [0.0, 0.0999, 0.1001, 0.5999, 0.6001, 1 - 1e-12]
    assert draw(logits, [Sampling(1)] * 6, uniforms).tokens.tolist() == [0, 0, 2, 2, 3, 3]


@given(
    st.integers(1, 700),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 2**31),
    st.floats(0.05, 30),
)
def test_a_draw_has_weight_and_the_right_numbers(size, uniform, seed, spread):
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * spread
    drawn = draw(logits, [Sampling(1)], [uniform])
    token = int(drawn.tokens)
    logp = logits[0].double().log_softmax(0)
    assert 0 <= token < size
    assert float(drawn.logps) == pytest.approx(float(logp[token]), abs=1e-4)
    assert float(drawn.entropies) == pytest.approx(float(-(logp.exp() * logp).sum()), abs=1e-4)
    cumulative = logp.exp().cumsum(0)
    assert float(cumulative[token]) >= uniform - 1e-6
    assert token == 0 or float(cumulative[token - 1]) <= uniform + 1e-6


def test_the_far_tail_of_a_large_vocabulary_is_reached():
    """In float32 a running sum near 1 would swallow these tokens; together they hold 1 % of the mass."""
    logits = torch.full((1, 200_001), float(np.log(0.01 / 200_000)))
    logits[0, 0] = float(np.log(0.99))
    tokens = [
        int(draw(logits, [Sampling(1)], [0.99 + 0.01 * (k + 0.5) / 200_000]).tokens) for k in (0, 77_777, 199_999)
    ]
    assert np.abs(np.array(tokens) - np.array([1, 77_778, 200_000])).max() <= 2


def test_greedy_takes_the_largest_and_reports_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    drawn = draw(logits, [Sampling(1, temperature=0.0)], [0.999])
    assert drawn.tokens.tolist() == [1]
    assert float(drawn.logps) == pytest.approx(float(logits.log_softmax(-1)[0, 1]))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1, top_k=2), {0, 3}),
        (Sampling(1, top_p=0.5), {0, 3}),
        (Sampling(1, top_p=0.39), {0}),
        (Sampling(1, min_p=0.5), {0, 3, 2}),
        (Sampling(1, min_p=0.6, top_k=3), {0, 3}),
        (Sampling(1, top_p=1e-9), {0}),
    ],
    ids=str,
)
def test_truncation_keeps_the_right_tokens_and_renormalises(sampling, kept):
    probs = torch.tensor([0.4, 0.05, 0.22, 0.3, 0.03])
    scores = truncate(probs.log(), sampling)
    assert {index for index in range(5) if scores[index] > -torch.inf} == kept
    drawn = draw(probs.log()[None], [sampling], [1 - 1e-9])
    expected = probs[int(drawn.tokens)] / probs[sorted(kept)].sum()
    assert int(drawn.tokens) in kept
    assert float(drawn.logps.exp()) == pytest.approx(float(expected), rel=1e-5)


def test_rows_of_one_batch_may_be_drawn_differently():
    logits = torch.tensor([[0.0, 1.0, 0.9]] * 3)
    settings = [Sampling(1, temperature=0.0), Sampling(1, top_k=1), Sampling(1, temperature=50.0)]
    assert draw(logits, settings, [0.999, 0.999, 0.999]).tokens.tolist() == [1, 1, 2]
