"""How programs cheat the usual verifiers: the same cheats under four schemes, all inside the sandbox.

For lessons and docs. The task is f(a, b) = a*a + b*b with two hidden cases. Only `robust` is how this library marks;
the others show what goes wrong.
"""
# ruff: noqa: E501 - one cheat a line

from __future__ import annotations

import secrets
from collections.abc import Callable

from assay.rewards.code_grade import LocalExecutor
from assay.rewards.code_tests import CallTests

CASES = (((3, 4), 25), ((6, 8), 100))
CHEATS = {
    "sys.exit(0) at the top": "import sys; sys.exit(0)",
    "os._exit(0) at the top": "import os; os._exit(0)",
    "raise SystemExit": "raise SystemExit",
    "sys.exit(0) in the function": "import sys\ndef f(a, b): sys.exit(0)",
    "os._exit(0) in the function": "import os\ndef f(a, b): os._exit(0)",
    "excepthook that exits 0": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef f(a, b): return 0",
    "atexit that exits 0": "import atexit, os\natexit.register(os._exit, 0)\ndef f(a, b): return 0",
    "AlwaysEqual": "class E:\n    def __eq__(self, o): return True\ndef f(a, b): return E()",
    "int subclass": "class I(int):\n    def __eq__(self, o): return True\ndef f(a, b): return I()",
    "fake __class__": "class C:\n    __class__ = int\n    def __eq__(self, o): return True\ndef f(a, b): return C()",
    "mock.ANY": "from unittest.mock import ANY\ndef f(a, b): return ANY",
    "patched all and len": "import builtins\nbuiltins.all = builtins.len = lambda x: True\ndef f(a, b): return 0",
    "patched print": "import builtins\np = print\nbuiltins.print = lambda *a: p('PASS')\ndef f(a, b): return 0",
    "frames": "import sys\ndef f(a, b): return sys._getframe(1).f_locals.get('expected', 0)",
    "globals of the caller": "import sys\ndef f(a, b): return dict(sys._getframe(1).f_globals.get('CASES', {})).get((a, b), 0)",
    "sentinel from the frames": (
        "import os, sys\nframe = sys._getframe(1) if sys._getframe().f_back else sys._getframe()\n"
        "space = {**frame.f_globals, **globals()}\nprint(space.get('NONCE', ''), flush=True)\nos._exit(0)"
    ),
    "sentinel from the source": (
        "import os, re, sys\ndef f(a, b):\n    text = repr(sys._getframe(1).f_globals)\n"
        "    print(*re.findall('[0-9a-f]{32}', text), sep='\\n', flush=True)\n    os._exit(0)"
    ),
    "forged result": "import os\nprint('2 passed')\nprint('{\"passed\": true}', flush=True)\nos._exit(0)",
    "swallowed failure": "import sys\nsys.settrace(None)\nAssertionError = Exception\ndef f(a, b): sys.exit(0)",
    "hidden in a thread": "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.01), os._exit(0))).start()\n"
    "def f(a, b): time.sleep(1)",
}  # fmt: skip


def by_exit_code(program: str, executor: LocalExecutor) -> bool:
    """Asserts below the program; exit status 0 pays."""
    checks = "\n".join(f"assert f(*{args!r}) == {expected!r}" for args, expected in CASES)
    return executor.sandbox.run(f"{program}\n{checks}\n").ok


def by_compare(program: str, executor: LocalExecutor) -> bool:
    """The verifier imports the program and compares in its process; it prints PASS at its end."""
    checker = (
        f"CASES = {CASES!r}\nspace = {{}}\nexec({program!r}, space)\nf = space['f']\nok = True\n"
        "for args, expected in CASES:\n    got = f(*args)\n    ok = ok and got == expected\nprint('PASS' if ok else 'FAIL')"
    )
    return executor.sandbox.run(checker).stdout.decode().split("\n")[0] == "PASS"


def by_sentinel(program: str, executor: LocalExecutor) -> bool:
    """As above, but a random word that only the verifier knows must be printed after the asserts."""
    nonce = secrets.token_hex(16)
    checks = "\n".join(f"assert f(*{args!r}) == {expected!r}" for args, expected in CASES)
    script = f"NONCE = {nonce!r}\n{program}\n{checks}\nprint(NONCE)\n"
    return nonce in executor.sandbox.run(script).stdout.decode()


def by_assay(program: str, executor: LocalExecutor) -> bool:
    """Inputs go in, plain answers come out, the comparison is outside."""
    return executor.grade(program, CallTests("f", CASES)).reward == 1.0  # type: ignore[arg-type]


SCHEMES: dict[str, Callable[[str, LocalExecutor], bool]] = {
    "exit code": by_exit_code,
    "in-process compare": by_compare,
    "in-process sentinel": by_sentinel,
    "robust": by_assay,
}


def paid_by(scheme: str, program: str, executor: LocalExecutor) -> bool:
    """Whether a scheme pays a program."""
    return SCHEMES[scheme](program, executor)


def table(executor: LocalExecutor) -> str:
    """The cheats and who pays them, as Markdown."""
    lines = [f"| cheat | {' | '.join(SCHEMES)} |", "|---|" + "---|" * len(SCHEMES)]
    totals = dict.fromkeys(SCHEMES, 0)
    for name, program in CHEATS.items():
        paid = {scheme: paid_by(scheme, program, executor) for scheme in SCHEMES}
        for scheme, yes in paid.items():
            totals[scheme] += yes
        lines.append(f"| {name} | {' | '.join('**paid**' if yes else '-' for yes in paid.values())} |")
    lines.append(f"| paid, of {len(CHEATS)} | {' | '.join(map(str, totals.values()))} |")
    return "\n".join(lines)
