"""Which precision is fast here: measured once, stored with the run, repeated on resume."""

from __future__ import annotations

import time

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def measure_fastest_dtype(device: torch.device, *, size: int = 768, repeats: int = 5) -> str:
    """`bfloat16` where its matrix products beat float32's by a quarter here, else `float32`.

    Best of `repeats`, alternating, so that a busy machine disturbs both alike.
    """
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    best = {"float32": float("inf"), "bfloat16": float("inf")}
    operands = {name: torch.ones(size, size, dtype=DTYPES[name], device=device) for name in best}
    for round_number in range(repeats + 1):
        for name, operand in operands.items():
            start = time.perf_counter()
            (operand @ operand)[0, 0].item()
            if round_number:
                best[name] = min(best[name], time.perf_counter() - start)
    return "bfloat16" if best["bfloat16"] < 0.8 * best["float32"] else "float32"
