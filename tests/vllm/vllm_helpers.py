"""What the tests of the vLLM engines share: models, references by transformers alone, servers that can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from assay.policy import ModelOptions, ScoringBatch, load_policy
from assay.rollouts.protocol import Request, Sampling

STOP = 259
# vLLM's CPU kernels want heads of 32 and more.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def make_policy(folder, *, lora, dtype="float32"):
    return load_policy(ModelOptions(path=str(folder), dtype=dtype, lora=lora, lora_rank=4), device="cpu")


def disturb(policy, seed=5, size=0.05):
    """Large random changes of all that learns."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


def prompts(lengths=(3, 70, 33)):
    random = np.random.default_rng(0)
    return [tuple(random.integers(0, 256, length).tolist()) for length in lengths]


def requests(n=3, tokens=24, temperature=1.0, seed=40):
    sampling = Sampling(tokens, temperature)
    return [Request(prompt, sampling, n, seed=seed + number) for number, prompt in enumerate(prompts())]


def tokens_of(results):
    return [completion.segments[0].token_ids.tolist() for group in results for completion in group]


def reference(policy, prompt, tokens, temperature=1.0):
    """[T] log-probs by transformers' own forward pass over plain merged weights: no code of assay's scoring."""
    from assay.policy import adapters
    from assay.policy.model import load_weights

    model = adapters.plain_copy(policy.transformer)
    load_weights(model, dict(policy.named_full_weights()))
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].float() / temperature
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(tokens)[:, None]).squeeze(1).numpy()


def largest_difference(policy, asked, results, temperature=1.0):
    """Over all sampled tokens: the engine's log-prob against transformers'."""
    return max(
        float(np.abs(reference(policy, request.token_ids, tokens, temperature) - written).max())
        for request, group in zip(asked, results, strict=True)
        for tokens, written in (
            (item.segments[0].token_ids.tolist(), item.segments[0].sampling_logps) for item in group
        )
    )


def greedy_reference(policy, prompt, count):
    """Tokens by taking the largest logit, one full forward pass each."""
    written = []
    while len(written) < count and (not written or written[-1] != STOP):
        array = np.array([*prompt, *written])
        scores = [reference_row(policy, array)]
        written.append(int(scores[0].argmax()))
    return written


def reference_row(policy, tokens):
    from assay.policy import adapters
    from assay.policy.model import load_weights

    model = adapters.plain_copy(policy.transformer)
    load_weights(model, dict(policy.named_full_weights()))
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        return model(torch.tensor(tokens)[None]).logits[0, -1].float()


def scored(policy, prompt, tokens):
    """[T] log-probs by the policy's own scoring, as training computes them."""
    with torch.no_grad():
        return policy(ScoringBatch((np.array(prompt),), (np.array(tokens),), (0,))).logps[0].numpy()


def free_ports(count):
    """Neighbouring ports that nobody uses now."""
    for _ in range(50):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


@contextmanager
def serving(folder, where, *, count=1, port=None, lora=True):
    """Servers started by `assay serve`; yields their (url, pid)s once they are ready."""
    port = port or free_ports(count)
    recipe = where / "serve.yaml"
    recipe.write_text(
        f"model: {{path: {folder}, dtype: float32, lora: {str(lora).lower()}, lora_rank: 4}}\n"
        "data: {source: task, name: email_json}\nrewards: [email_schema]\n"
        f"rollout: {{engine: vllm-server, kv_cache_gib: 0.1, vllm: {{urls: ['http://127.0.0.1:{port}']}}}}\n"
    )
    command = [sys.executable, "-m", "assay", "serve", str(recipe), "--count", str(count), "--json"]
    log = (where / f"serve-{port}.log").open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        servers = json.loads(read_json(process.stdout))
        wait_for(lambda: "Ready." in Path(log.name).read_text(), 600, process, log.name)
        yield [(server["url"], server["pid"]) for server in servers]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        log.close()


def read_json(stream):
    """A pretty-printed list from a pipe that stays open."""
    lines = [stream.readline()]
    while lines[-1].strip() != b"]":
        lines.append(stream.readline())
        assert lines[-1], "assay serve ended before it said what it started"
    return b"".join(lines)


def wait_for(condition, seconds, process=None, log=None):
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, Path(log).read_text()[-3000:]
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)


def kill_server(pid, number=signal.SIGKILL):
    """The whole server: its API process, engine core and workers."""
    for line in subprocess.check_output(["ps", "-eo", "pid,ppid"], text=True).splitlines()[1:]:
        child, parent = map(int, line.split())
        if parent == pid:
            kill_server(child, number)
    os.kill(pid, number)
