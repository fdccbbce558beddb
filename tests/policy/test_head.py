"""Chunked log-probabilities against log_softmax of the whole logits, values and gradients."""

import pytest
import torch

from assay.policy import head
from assay.policy.head import LogitRule, token_logps

RULES = [
    LogitRule(),
    LogitRule(temperature=0.6),
    LogitRule(scale=0.3, temperature=1.7),
    LogitRule(softcap=3.0),
    LogitRule(scale=2.0, softcap=1.5, temperature=0.8),
]


def plain(hidden, weight, bias, targets, rule):
    logits = hidden @ weight.T + (0 if bias is None else bias)
    logits = logits * rule.scale
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    every = (logits / rule.temperature).log_softmax(-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


@pytest.mark.parametrize("trained", ["hidden only", "all"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_values_and_gradients(monkeypatch, rule, with_bias, trained):
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 3 * 11)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((10, 6), (11, 6)))
    bias = torch.randn(11, generator=generator, dtype=torch.float64) if with_bias else None
    targets = torch.randint(11, (10,), generator=generator)
    up = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    leaves = [hidden] + ([weight] + ([bias] if with_bias else []) if trained == "all" else [])
    for leaf in leaves:
        leaf.requires_grad_()
    logps, entropies = token_logps(hidden, weight, targets, bias=bias, rule=rule, entropy_grad=True)
    expected = plain(hidden, weight, bias, targets, rule)
    torch.testing.assert_close((logps, entropies), expected, rtol=0, atol=1e-12)
    found = torch.autograd.grad((up[0] * logps + up[1] * entropies).sum(), leaves)
    right = torch.autograd.grad((up[0] * expected[0] + up[1] * expected[1]).sum(), leaves)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    only_logps = torch.autograd.grad(token_logps(hidden, weight, targets, bias=bias, rule=rule)[0].sum(), leaves)
    torch.testing.assert_close(
        only_logps, torch.autograd.grad(plain(hidden, weight, bias, targets, rule)[0].sum(), leaves), rtol=0, atol=1e-12
    )


def test_logits_never_exist_at_once(monkeypatch):
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 4 * 50)
    seen = []
    original = head.head_logits
    monkeypatch.setattr(head, "head_logits", lambda *args: seen.append(original(*args)) or seen[-1])
    token_logps(torch.randn(30, 8), torch.randn(50, 8), torch.zeros(30, dtype=torch.long))
    assert max(len(logits) for logits in seen) == 4


@pytest.mark.parametrize("vocabulary", [3 * 768, 2 * 768 + 1, 3 * 768 - 1])
def test_wide_vocabularies_go_by_blocks_and_no_token_is_lost(vocabulary):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*s, generator=generator) for s in ((5, 16), (vocabulary, 16)))
    bias = torch.randn(vocabulary, generator=generator)
    exact = (hidden.double() @ weight.double().T + bias.double()).float()
    torch.testing.assert_close(head.head_logits(hidden, weight, bias, LogitRule()), exact, rtol=0, atol=2e-5)


def test_float32_logits_of_half_precision_states():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*s, generator=generator).bfloat16() for s in ((6, 64), (40, 64)))
    targets = torch.arange(6)
    exact = plain(hidden.double(), weight.double(), None, targets, LogitRule())[0]
    rough = token_logps(hidden, weight, targets)[0]
    fine = token_logps(hidden, weight, targets, float32_logits=True)[0]
    assert (fine - exact).abs().max() < 1e-4 < (rough - exact).abs().max()
