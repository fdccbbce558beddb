"""Every number that a rule compares with, in one table; `Thresholds(clipped_warning=0.1)` overrides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Shares are of 1, entropies and log-prob gaps in nats a token, times in seconds."""

    window_steps: int = 30
    window_share: float = 0.2
    trend_steps: int = 30
    rollouts_read: int = 2048
    # Below this many groups a share of groups says nothing (0.60 against 0.50 needs about 128).
    groups_needed: int = 64
    verifier_failure: float = 0.01
    verifier_latency_factor: float = 2.0
    unscored: float = 0.05
    unparsable: float = 0.2
    uniform_warning: float = 0.5
    uniform_error: float = 0.75
    pool_shrinks_to: float = 0.5
    # ScaleRL (arXiv 2510.13786) saw 10-15% truncation destabilise runs, and below 5% in healthy ones.
    clipped_warning: float = 0.05
    clipped_error: float = 0.10
    clipped_rise: float = 0.10
    eos_length_share: float = 0.7
    length_gap: float = 0.2
    entropy_collapse: float = 0.3
    entropy_floor: float = 0.05
    entropy_blowup: float = 1.5
    entropy_high: float = 1.0
    kl_factor: float = 8.0
    kl_high: float = 0.5
    kl_still: float = 1e-4
    zero_gradient: float = 0.4
    spike_sigmas: float = 8.0
    spike_factor: float = 3.0
    clip_fraction: float = 0.2
    clip_steps: int = 20
    clip_asymmetry: float = 3.0
    logp_gap: float = 0.05
    logp_gap_rising: float = 0.01
    logp_gap_factor: float = 2.0
    logp_correlation: float = 0.99
    effective_samples: float = 0.5
    masked: float = 0.2
    dropped: float = 0.05
    stalled_factor: float = 5.0
    stalled_seconds: float = 120.0
    scoring_share: float = 0.2
    scoring_share_high: float = 0.4
    heldout_gain: float = 0.02
    # Below this many prompts the normal approximation of a paired interval is not to be trusted.
    paired_prompts: int = 30
    slow_start_steps: int = 300
    reward_moved: float = 0.05
    length_correlation: float = 0.3
    hedging: float = 0.02
    repetition: float = 0.3
    degenerate: float = 0.02
    tampering: float = 0.01
