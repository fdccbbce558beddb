"""What can be said of the vLLM engines without vLLM: options, versions, commands, and servers that are not there."""

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.errors import InputError, RunError
from assay.policy import ModelOptions, load_policy
from assay.ranks import Ranks
from assay.records import Finish, VersionSpan
from assay.rollouts import vllm_options, vllm_sync
from assay.rollouts.build import build_engine, check_engine
from assay.rollouts.canary import prove
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Request, Sampling
from assay.rollouts.vllm_command import serve_commands
from assay.rollouts.vllm_http import Server, ServerError
from assay.rollouts.vllm_options import VllmOptions, check_version
from assay.rollouts.vllm_requests import completion, lora_rank, sampling_params
from assay.rollouts.vllm_weights import Recorded, compare, tied_head


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://host", "http://host:80/v1", "ftp://host:1", "http://a:b", ""]
)
def test_a_url_that_is_no_server_is_refused(url):
    with pytest.raises(InputError, match=r"write it as http://host:port"):
        VllmOptions(urls=(url,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"urls": ()}, "urls is empty"),
        ({"urls": ("http://a:1", "http://a:1")}, "names a server twice"),
        ({"memory_share": 0.0}, r"memory_share is 0\.0"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"hang_timeout_s": 0}, "hang_timeout_s is 0"),
        ({"retries": -1}, "retries is -1"),
    ],
)
def test_options_out_of_range_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        VllmOptions(**changes)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.32.0rc1"])
def test_supported_versions(version):
    check_version(version, "here")


@pytest.mark.parametrize("version", ["0.31.4", "0.33.0", "1.0", "0.9.1", "dev"])
def test_other_versions_are_refused_with_the_ones_that_are_not(version):
    with pytest.raises(InputError, match=r"is not supported: .*0\.32\.x"):
        check_version(version, "here")


def test_without_vllm_one_line_says_how_to_get_it(monkeypatch):
    def nothing(name):
        raise vllm_options.PackageNotFoundError(name)

    monkeypatch.setattr(vllm_options, "version", nothing)
    with pytest.raises(InputError, match=r"pip install -e '\.\[vllm\]'"):
        check_engine(RolloutOptions(engine="vllm"))
    check_engine(RolloutOptions(engine="vllm-server"))


def test_lora_ranks_are_rounded_up_to_what_there_are_kernels_for():
    assert [lora_rank(rank) for rank in (1, 8, 9, 64, 300)] == [8, 8, 16, 64, 320]
    with pytest.raises(InputError, match=r"rollout\.vllm\.adapters=false"):
        lora_rank(600)


def flags_of(command):
    words = list(command.arguments)
    return {word: words[index + 1] for index, word in enumerate(words[:-1]) if word.startswith("--")}


def test_the_serve_command_has_what_training_needs(tiny_folder):
    model = ModelOptions(path=str(tiny_folder("llama")), dtype="float32", lora_rank=12)
    rollout = RolloutOptions(engine="vllm-server", kv_cache_gib=0.5)
    (command,) = serve_commands(model, rollout, ["http://127.0.0.1:8123"], gpus=0, extra=["--seed", "3"])
    flags = flags_of(command)
    assert command.arguments[:3] == ("vllm", "serve", str(tiny_folder("llama")))
    assert command.arguments[-2:] == ("--seed", "3")
    assert (flags["--host"], flags["--port"], flags["--dtype"]) == ("127.0.0.1", "8123", "float32")
    assert flags["--logprobs-mode"] == "processed_logprobs"
    assert flags["--worker-extension-cls"] == "assay.rollouts.vllm_worker.PolicyWorker"
    assert flags["--max-lora-rank"] == "16"
    assert flags["--kv-cache-memory-bytes"] == str(2**29)
    assert "--enforce-eager" in command.arguments
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_SERVER_DEV_MODE=1" in command.line()


def test_servers_get_a_gpu_each_and_none_of_the_cpu_flags(tiny_folder):
    model = ModelOptions(path=str(tiny_folder("llama")), lora=False)
    rollout = RolloutOptions(engine="vllm-server", vllm=VllmOptions(weight_sync="nccl"))
    first, second = serve_commands(model, rollout, ["http://a:1", "http://a:2"], gpus=2)
    assert [command.environment["CUDA_VISIBLE_DEVICES"] for command in (first, second)] == ["0", "1"]
    assert flags_of(first)["--dtype"] == "bfloat16"
    assert flags_of(first)["--weight-transfer-config"] == '{"backend": "nccl"}'
    assert not {"--enforce-eager", "--enable-lora", "--kv-cache-memory-bytes"} & set(first.arguments)


def test_sampling_parameters_end_where_the_run_says_and_nowhere_else():
    request = Request((1, 2), Sampling(7, 0.7, 0.9, 5, 0.1), 4, seed=11, stop_token_ids=(9,))
    found = sampling_params(request, [3])
    assert found["stop_token_ids"] == [3, 9]
    assert found["ignore_eos"]
    assert (found["n"], found["max_tokens"], found["temperature"]) == (4, 7, 0.7)
    assert (found["top_p"], found["top_k"], found["min_p"]) == (0.9, 5, 0.1)
    seeds = {sampling_params(replace(request, seed=seed), [])["seed"] for seed in range(100)}
    assert min(abs(a - b) for a in seeds for b in seeds if a != b) > 2**16


def test_a_completion_keeps_log_probs_spans_and_why_it_ended():
    made = completion([5, 6, 7], [-0.5, -1.0, -2.0], "length", [(0, "3"), (2, "4")])
    assert made.segments[0].sampling_logps.dtype == np.float32
    assert made.policy_versions == (VersionSpan(0, 3), VersionSpan(2, 4))
    assert made.finish is Finish.LENGTH
    assert completion([5], [-0.5], "abort", []).finish is Finish.ABORT


def test_comparing_names_the_first_weight_that_differs_with_its_norms(tiny_folder):
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype="float32", lora=False), device="cpu")
    sent = Recorded(policy.named_full_weights(), torch.bfloat16, tied_head(policy.transformer))
    passed_on = dict(sent)
    assert {tensor.dtype for tensor in passed_on.values()} == {torch.bfloat16}
    assert "lm_head.weight" in sent.expected
    assert "lm_head.weight" not in passed_on
    assert compare(sent.expected, sent.expected, "it", 1) == len(passed_on) + 1
    stale = {**sent.expected, "lm_head.weight": ["0" * 16, 1.25]}
    with pytest.raises(RunError, match=r"it does not hold .* version 2: 1 of \d+ .* lm_head\.weight: norm 1\.25 there"):
        compare(sent.expected, stale, "it", 2)
    with pytest.raises(RunError, match="could be read back"):
        compare(sent.expected, {"other.weight": ["0", 1.0]}, "it", 2)


def test_a_killed_trainers_folder_is_given_back_and_a_living_ones_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_sync, "MEMORY", tmp_path)
    script = (
        "import sys, time; from pathlib import Path; from assay.rollouts import vllm_sync;"
        f"vllm_sync.MEMORY = Path({str(tmp_path)!r});"
        "folder = vllm_sync.Folder(vllm_sync.VllmOptions()); (folder.next() / 'weights').write_text('w');"
        "print(folder.path, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    theirs = Path(process.stdout.readline().strip())
    living = vllm_sync.Folder(VllmOptions())
    assert theirs.is_dir()
    process.kill()
    process.wait()
    later = vllm_sync.Folder(VllmOptions())
    assert not theirs.exists()
    assert living.path.is_dir()
    living.close()
    later.close()
    assert list(tmp_path.iterdir()) == []


class Echo:
    """An engine that is the policy itself, or stays behind, to see the canary's judgement alone."""

    dtype = torch.float32

    def __init__(self, policy, deaf=False):
        self.policy, self.deaf, self.versions = policy, deaf, []
        self.kept = policy.trainable_state_dict()

    def push(self, weights, version):
        self.versions.append(version)
        if not self.deaf:
            self.kept = self.policy.trainable_state_dict()

    def probe(self, token_ids):
        from assay.rollouts.canary import trainer_logps

        now = self.policy.trainable_state_dict()
        self.policy.load_trainable_state_dict(self.kept)
        logps = trainer_logps(self.policy, list(token_ids))
        self.policy.load_trainable_state_dict(now)
        return [("echo", logps)]


@pytest.mark.parametrize("lora", [True, False])
def test_the_canary_passes_what_follows_and_stops_what_does_not(tiny_folder, lora):
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype="float32", lora=lora), device="cpu")
    before = policy.trainable_state_dict()
    engine = Echo(policy)
    proof = prove(engine, policy, Ranks())
    assert (proof.perturbed, proof.restored) == (0.0, 0.0)
    assert proof.moved >= 0.5
    assert engine.versions == [-1, 0]
    with pytest.raises(RunError, match=r"does not follow a large test change .*: its log-probs are 0\.\d+ nats"):
        prove(Echo(policy, deaf=True), policy, Ranks())
    assert all(torch.equal(before[name], weight) for name, weight in policy.trainable_state_dict().items())


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_is_not_there_is_named_with_what_to_do(tiny_folder):
    url = f"http://127.0.0.1:{closed_port()}"
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype="float32"), device="cpu")
    rollout = RolloutOptions(engine="vllm-server", vllm=VllmOptions(urls=(url,), start_timeout_s=0.1))
    with pytest.raises(RunError, match=rf"{url} did not become healthy .*[Cc]onnection refused.*assay serve RECIPE"):
        build_engine(policy, [3], rollout)


def test_a_server_that_never_answers_is_not_waited_for(tiny_folder):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        server = Server(f"http://127.0.0.1:{deaf.getsockname()[1]}", VllmOptions())
        assert not server.is_healthy(0.2)
        with pytest.raises(ServerError, match="timed out"):
            server.call("GET", "/version", timeout=0.2)


@pytest.fixture
def web():
    """A web server that answers every path from a table."""
    answers: dict[str, tuple[int, bytes]] = {"/health": (200, b"")}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers.get(self.path, (404, b'{"detail":"Not Found"}'))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Server(f"http://127.0.0.1:{server.server_port}", VllmOptions()), answers
    server.shutdown()
    server.server_close()


def test_a_server_of_another_version_is_refused(web):
    server, answers = web
    answers["/version"] = (200, b'{"version": "0.25.1"}')
    with pytest.raises(InputError, match=rf"vLLM 0\.25\.1 \({server.url}\) is not supported"):
        server.wait_until_ready(print)


def test_a_server_without_the_switches_for_training_is_refused(web):
    server, answers = web
    answers["/version"] = (200, b'{"version": "0.32.0"}')
    with pytest.raises(InputError, match=r"HTTP 404: Not Found.*VLLM_SERVER_DEV_MODE=1"):
        server.wait_until_ready(print)
    answers["/collective_rpc"] = (200, b'{"results": [{"logprobs_mode": "raw_logprobs"}]}')
    with pytest.raises(InputError, match="reports raw_logprobs"):
        server.wait_until_ready(print)
