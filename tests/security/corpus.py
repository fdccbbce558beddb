# ruff: noqa: E501 - one attack a line
"""The attack corpus: programs that try to be paid without solving the task, to get out, or to outlive their limits.

`CHEATS` are graded and must earn nothing. `ESCAPES` and `BOMBS` run as scripts after PRELUDE, which ends the process unless it
is inside a sandbox, and print ESCAPED where an attempt succeeds. Loaded by path; nothing here runs on import.
"""

# ---- cheats: (tests kind, program). The task: f(a, b) = a*a + b*b, and f("secret", 0) must give the planted marker.

MARKER_PATTERN = r"MARK-[0-9a-f]{32}"

# Forging with the request's own id, found in the frames of the harness: everything behind the first check is reached too.
FORGE = """import os, json, struct, sys
def rid():
    frame = sys._getframe()
    while frame:
        if isinstance(frame.f_locals.get('request'), dict): return frame.f_locals['request']['id']
        frame = frame.f_back
def raw(d):
    d = struct.pack('=I', len(d)) + d
    while d: d = d[os.write(3, d):]
def put(x): raw(json.dumps({**x, 'id': rid()}).encode())
def leave(x): put(x); os._exit(0)
"""

CHEATS = {
    "exit_at_top": ("calls", "import sys; sys.exit(0)"),
    "hard_exit_at_top": ("calls", "import os; os._exit(0)"),
    "system_exit_at_top": ("calls", "raise SystemExit"),
    "exit_in_function": ("calls", "import sys\ndef f(a, b): sys.exit(0)"),
    "hard_exit_in_function": ("calls", "import os\ndef f(a, b): os._exit(0)"),
    "system_exit_in_function": ("calls", "def f(a, b): raise SystemExit(0)"),
    "excepthook": ("calls", "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef f(a, b): 1/0"),
    "atexit_exit": ("calls", "import atexit, os\natexit.register(os._exit, 0)\ndef f(a, b): return None"),
    "fork_parent_exits": ("calls", "import os\nif os.fork(): os._exit(0)\ndef f(a, b): return 0"),
    "keyboard_interrupt": ("calls", "def f(a, b): raise KeyboardInterrupt"),
    "generator_exit": ("calls", "def f(a, b): raise GeneratorExit"),
    "always_equal": ("calls", "class E:\n def __eq__(s, o): return True\ndef f(a, b): return E()"),
    "always_equal_everything": (
        "calls",
        "class E:\n def __getattr__(s, n): return lambda *a: True\n __eq__ = __ne__ = __lt__ = __bool__ = lambda *a: True\n"
        " __hash__ = lambda s: 25\ndef f(a, b): return E()",
    ),
    "int_subclass": ("calls", "class I(int):\n __eq__ = lambda s, o: True\n __hash__ = int.__hash__\ndef f(a, b): return I(0)"),
    "str_subclass": ("calls", "class S(str):\n __eq__ = lambda s, o: True\n __hash__ = str.__hash__\ndef f(a, b): return S('x')"),
    "dict_subclass": ("calls", "class D(dict):\n __eq__ = lambda s, o: True\ndef f(a, b): return D()"),
    "list_subclass": ("calls", "class L(list):\n __eq__ = lambda s, o: True\ndef f(a, b): return [L()]"),
    "fake_class": ("calls", "class C:\n __class__ = int\n def __eq__(s, o): return True\n def __int__(s): return 25\ndef f(a, b): return C()"),
    "fake_numpy": (
        "calls",
        "class A:\n __module__ = 'numpy'\n n = 0\n def tolist(s):\n  s.n += 1\n  return s\nA.__module__ = 'numpy'\ndef f(a, b): return A()",
    ),
    "mock_any": ("calls", "from unittest.mock import ANY\ndef f(a, b): return ANY"),
    "nan": ("calls", "def f(a, b): return float('nan')"),
    "true_for_one": ("ones", "def f(a, b): return True"),
    "float_for_int": ("ones", "def f(a, b): return 1.0"),
    "string_for_number": ("ones", "def f(a, b): return '1'"),
    "forged_verdict": (
        "calls",
        "import os, json, struct\n"
        "def put(x):\n d = json.dumps(x).encode(); os.write(3, struct.pack('=I', len(d)) + d)\n"
        "put({'verdict': 'passed', 'calls': 9, 'checks': 9}); put({'reward': 1.0, 'passed': 3, 'total': 3})\n"
        "def f(a, b): return 0",
    ),
    "forged_loaded": (
        "calls",
        "import os, json, struct\n"
        "def put(x):\n d = json.dumps(x).encode(); os.write(3, struct.pack('=I', len(d)) + d)\n"
        "put({'loaded': True})\nfor v in (25, 100, 0): put({'value': v})\ndef f(a, b): return 0",
    ),
    "forged_answers_at_load": (
        "plain",  # even with the right values: answers nobody asked for
        "import os, json, struct\n"
        "def put(x):\n d = json.dumps(x).encode(); os.write(3, struct.pack('=I', len(d)) + d)\n"
        "put({'loaded': True})\nfor v in (25, 100): put({'value': v, 'after': []})\nos._exit(0)",
    ),
    "thousand_ok_frames": (
        "calls",
        "import os, json, struct\nd = json.dumps({'value': 25}).encode()\n"
        "def f(a, b):\n os.write(3, (struct.pack('=I', len(d)) + d) * 1000)\n return 25",
    ),
    "surplus_frame_after_right_answer": (
        "plain",
        "import os, json, struct\nd = json.dumps({'value': 25}).encode()\n"
        "def f(a, b):\n os.write(3, struct.pack('=I', len(d)) + d)\n return a*a + b*b",
    ),
    "huge_length_header": ("calls", "import os\ndef f(a, b): os.write(3, b'\\xff\\xff\\xff\\x7f' + b'x' * 100); return 0"),
    "huge_header_and_silence": ("calls", "import os, time\ndef f(a, b):\n os.write(3, b'\\xff\\xff\\x0f\\x00')\n time.sleep(60)"),
    "malformed_json": ("calls", "import os\ndef f(a, b): os.write(3, b'\\x05\\x00\\x00\\x00{{{{{'); return 0"),
    "json_nan": ("calls", "import os\nd = b'{\"value\": NaN}'\ndef f(a, b): os.write(3, bytes([len(d), 0, 0, 0]) + d); return 0"),
    "json_infinity": ("calls", "import os\nd = b'{\"value\": Infinity}'\ndef f(a, b): os.write(3, bytes([len(d), 0, 0, 0]) + d); return 0"),
    "deep_json": (
        "calls",
        "import os, struct\ndef f(a, b):\n d = b'{\"value\":' + b'[' * 200000 + b']' * 200000 + b'}'\n"
        " d = struct.pack('=I', len(d)) + d\n while d: d = d[os.write(3, d):]\n return 0",
    ),
    "deep_value": ("calls", "def f(a, b):\n x = []\n for _ in range(100000): x = [x]\n return x"),
    "cyclic_value": ("calls", "def f(a, b):\n x = []; x.append(x); return x"),
    "huge_int": ("calls", "def f(a, b): return 10 ** 500000"),
    "huge_decimal_int_frame": (
        "calls",
        "import os, struct\ndef f(a, b):\n d = b'{\"value\":' + b'9' * 900000 + b'}'\n d = struct.pack('=I', len(d)) + d\n"
        " while d: d = d[os.write(3, d):]\n return 0",
    ),
    "collision_set": ("calls", "def f(a, b): return {i * (2**61 - 1) for i in range(40)} | {0}"),
    "collision_set_frame": (
        "set",
        "import os, json, struct\ndef f(a, b):\n"
        " d = json.dumps({'value': {'$': 'set', 'v': [{'$': 'int', 'v': hex(i * (2**61 - 1))} for i in range(1, 30000)]}}).encode()\n"
        " d = struct.pack('=I', len(d)) + d\n while d: d = d[os.write(3, d):]\n return 0",
    ),
    "duplicate_set_members": (
        "set",
        "import os, json, struct\ndef f(a, b):\n d = json.dumps({'value': {'$': 'set', 'v': [1, 1, 1]}}).encode()\n"
        " os.write(3, struct.pack('=I', len(d)) + d)\n os._exit(0)",
    ),
    "unknown_tag": ("calls", "import os\nd = b'{\"value\":{\"$\":\"anything\",\"v\":[]}}'\ndef f(a, b): os.write(3, bytes([len(d), 0, 0, 0]) + d)"),
    "poisoned_keys": ("calls", "import os\nd = b'{\"value\":{\"__class__\":\"int\",\"v\":25}}'\ndef f(a, b): os.write(3, bytes([len(d), 0, 0, 0]) + d)"),
    "patched_json": ("calls", "import json\njson.dumps = lambda *a, **k: '{\"value\": 25}'\ndef f(a, b): return 0"),
    "patched_harness": (
        "calls",
        "import sys\nfor n, m in list(sys.modules.items()):\n if 'harness' in n or 'wire' in n:\n"
        "  for k in list(vars(m)):\n   if callable(getattr(m, k, None)): setattr(m, k, lambda *a, **q: {'value': 25, 'loaded': True})\n"
        "def f(a, b): return 0",
    ),
    "patched_builtins": (
        "calls",
        "import builtins\nbuiltins.type = lambda *a: int\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 3\n"
        "builtins.zip = lambda *a, **k: []\nbuiltins.all = lambda x: True\ndef f(a, b): return None",
    ),
    "drained_requests": (
        "calls",
        "import os, json, struct, threading\ndef f(a, b):\n"
        " d = json.dumps({'value': a*a+b*b if type(a) is int else 'x'}).encode()\n"
        " while 1:\n  os.write(3, struct.pack('=I', len(d)) + d)\n  if not os.read(3, 65536): os._exit(0)",
    ),
    "frames_and_gc": (
        "calls",
        "import gc, re, sys\ndef hunt():\n fr = sys._getframe()\n while fr:\n"
        "  for v in list(fr.f_locals.values()) + list(fr.f_globals.values()):\n"
        "   m = re.search(r'MARK-[0-9a-f]{32}', repr(v)[:100000])\n   if m: return m.group()\n  fr = fr.f_back\n"
        " for o in gc.get_objects():\n"
        "  if isinstance(o, (dict, list, tuple)):\n"
        "   m = re.search(r'MARK-[0-9a-f]{32}', repr(o)[:2000])\n   if m: return m.group()\n"
        "def f(a, b): return a*a + b*b if type(a) is int else hunt()",
    ),
    "heap_scan": (
        "calls",
        "import ctypes, re\ndef hunt():\n base = id(object()) & ~0xfffff\n"
        " data = ctypes.string_at(base, 1 << 20)\n m = re.search(rb'MARK-[0-9a-f]{32}', data)\n return m and m.group().decode()\n"
        "def f(a, b): return a*a + b*b if type(a) is int else hunt()",
    ),
    "file_hunt": (
        "calls",
        "import os, re\ndef hunt():\n for root in ('{DIR}', '/tmp', '/home', '/root', '/work', os.getcwd()):\n"
        "  for d, _, fs in os.walk(root):\n   for n in fs:\n    try: m = re.search(r'MARK-[0-9a-f]{32}', open(os.path.join(d, n)).read(10000))\n"
        "    except Exception: continue\n    if m: return m.group()\n"
        "def f(a, b): return a*a + b*b if type(a) is int else hunt()",
    ),
    "secret_path": ("calls", "def f(a, b): return a*a + b*b if type(a) is int else open('{DIR}/marker').read()"),
    "own_environment": (
        "calls",
        "import os, ctypes\ndef f(a, b):\n if type(a) is int: return a*a + b*b\n"
        " c = ctypes.CDLL(None); c.getenv.restype = ctypes.c_char_p\n"
        " return os.environ.get('ASSAY_TEST_MARKER') or (c.getenv(b'ASSAY_TEST_MARKER') or b'').decode()",
    ),
    "proc_hunt": (
        "calls",
        "import os, re\ndef hunt():\n for p in ['self', str(os.getppid()), '1'] + [str(i) for i in range(1, 40000, 1)][:0]:\n"
        "  for n in ('environ', 'cmdline', 'maps', 'mem'):\n   try: m = re.search(rb'MARK-[0-9a-f]{32}', open(f'/proc/{p}/{n}', 'rb').read(1 << 20))\n"
        "   except Exception: continue\n   if m: return m.group().decode()\n"
        "def f(a, b): return a*a + b*b if type(a) is int else hunt()",
    ),
    "victim_environment": (
        "calls", "def f(a, b): return a*a + b*b if type(a) is int else open('/proc/{VICTIM}/environ').read().split('MARKER=')[1][:37]"),
    "sentinel_print": ("calls", "import sys\ndef f(a, b):\n print('3 passed'); print('{\"passed\": true}'); sys.exit(0)"),
    "late_writer_thread": (
        "calls",
        "import threading, os, time, json, struct, atexit\nd = json.dumps({'value': 25}).encode()\n"
        "def w():\n while 1: os.write(3, struct.pack('=I', len(d)) + d); time.sleep(0.001)\n"
        "threading.Thread(target=w, daemon=True).start()\natexit.register(w)\ndef f(a, b): return 0",
    ),
    "ignore_signals_and_hang": (
        "calls", "import signal\nfor s in range(1, 64):\n try: signal.signal(s, signal.SIG_IGN)\n except Exception: pass\ndef f(a, b):\n while 1: pass"),
    "settrace_rewriter": ("calls", "import sys\ndef t(fr, e, a):\n if e == 'return': sys.exit(0)\n return t\nsys.settrace(t); sys.setprofile(t)\ndef f(a, b): return 0"),
    "audit_hook": ("calls", "import sys\nsys.addaudithook(lambda *a: None)\ndef f(a, b): return 0"),
    "catch_all": ("calls", "def f(a, b):\n try: return undefined\n except BaseException: pass"),
    "aliasing_args": ("calls", "def f(a, b):\n import gc\n for r in gc.get_referrers(a): pass\n return (a, b)"),
    "right_then_crash": ("plain", "import ctypes, atexit\nn = 0\ndef f(a, b):\n global n\n n += 1\n if n == 2:\n  import threading, time\n"
                                  "  threading.Thread(target=lambda: (time.sleep(0.02), ctypes.string_at(0))).start()\n  time.sleep(0.05)\n return a*a + b*b"),
    "right_then_hang": ("plain", "import sys\nclass H:\n def __del__(s):\n  while 1: pass\nimport assay.sandbox.harness as h\n"
                                 "h.flush = lambda: [None for _ in iter(int, 1)]\ndef f(a, b): return a*a + b*b"),
    "right_then_exit_1": ("plain", "import assay.sandbox.harness as h, os\nh.flush = lambda: os._exit(1)\ndef f(a, b): return a*a + b*b"),
    "conftest": ("calls", "for n in ('conftest.py', 'sitecustomize.py', 'test_x.py'):\n open(n, 'w').write('raise SystemExit(0)')\ndef f(a, b): return 0"),
    "no_function": ("calls", "print(25)"),
    "empty": ("calls", " "),
    "syntax_error": ("calls", "def f(a, b: return 25"),
    "id_nan": ("calls", FORGE + "def f(a, b): raw(('{\"id\":\"%s\",\"value\":NaN}' % rid()).encode()); os._exit(0)"),
    "id_deep": ("calls", FORGE + "def f(a, b): raw(('{\"id\":\"%s\",\"value\":%s}' % (rid(), '[' * 100000 + ']' * 100000)).encode()); os._exit(0)"),
    "id_deep_objects": ("calls", FORGE + "def f(a, b): raw(('{\"id\":\"%s\",\"value\":%s1%s}' % (rid(), '{\"a\":' * 100000, '}' * 100000)).encode()); os._exit(0)"),
    "id_unbalanced": ("calls", FORGE + "def f(a, b): raw(('{\"id\":\"%s\",\"value\":%s' % (rid(), '[' * 500000)).encode()); os._exit(0)"),
    "id_many_digits": ("calls", FORGE + "def f(a, b): raw(('{\"id\":\"%s\",\"value\":%s}' % (rid(), '9' * 900000)).encode()); os._exit(0)"),
    "id_big_hex": ("calls", FORGE + "def f(a, b): leave({'value': {'$': 'int', 'v': '0x' + 'f' * 900000}})"),
    "id_bad_hex": ("calls", FORGE + "def f(a, b): leave({'value': {'$': 'int', 'v': '0x_1_9'}})"),
    "id_surplus": ("plain", FORGE + "def f(a, b): put({'value': a * a + b * b}); return a * a + b * b"),
    "id_surplus_at_the_end": ("one", FORGE + "def f(a, b): put({'value': a * a + b * b}); return a * a + b * b"),
    "id_thousand": ("plain", FORGE + "def f(a, b):\n for _ in range(1000): put({'value': a * a + b * b})\n return a * a + b * b"),
    "id_collision_set": ("set", FORGE + "def f(a, b): leave({'value': {'$': 'set', 'v': [{'$': 'int', 'v': hex(i * (2**61 - 1))} for i in range(1, 20000)]}})"),
    "id_duplicate_members": ("set", FORGE + "def f(a, b): leave({'value': {'$': 'set', 'v': [1, 1, 1]}})"),
    "id_list_for_set": ("set", FORGE + "def f(a, b): return [1, 2, 3]"),
    "id_unknown_tag": ("calls", FORGE + "def f(a, b): leave({'value': {'$': 'object', 'v': [25]}})"),
    "id_untagged_object": ("calls", FORGE + "def f(a, b): leave({'value': {'__eq__': True}})"),
    "id_tag_not_text": ("calls", FORGE + "def f(a, b): leave({'value': {'$': ['int'], 'v': 25}})"),
    "id_no_value": ("calls", FORGE + "def f(a, b): leave({})"),
    "id_value_and_verdict": ("calls", FORGE + "def f(a, b): leave({'value': None, 'verdict': 'passed', 'reward': 1, 'passed': 3})"),
    "id_odd_load_error": ("calls", FORGE + "def f(a, b): leave({'load_error': 5})"),
    "id_odd_raised": ("calls", FORGE + "def f(a, b): leave({'raised': {'x': []}, 'text': 5})"),
    "id_odd_not_plain": ("calls", FORGE + "def f(a, b): leave({'not_plain': ['x']})"),
    "load_error_that_is_a_number": ("calls", FORGE + "raw(json.dumps({'load_error': 5}).encode()); os._exit(0)"),
    "no_entry_forged": ("calls", FORGE + "raw(json.dumps({'no_entry': {}}).encode()); os._exit(0)"),
    "id_asserts_poisoned_after": ("asserts_list", FORGE + "def f(x): leave({'value': None, 'after': [{'$': 'dict', 'v': []}]})"),
    "id_asserts_too_many_after": ("asserts_list", FORGE + "def f(x): leave({'value': None, 'after': [1, 2, 3]})"),
    "id_asserts_after_no_list": ("asserts_list", FORGE + "def f(x): leave({'value': None, 'after': 'ab'})"),
    "id_asserts_bad_tag": ("asserts", FORGE + "def f(a, b): leave({'value': {'$': 'code', 'v': []}, 'after': [1, 2]})"),
    "id_asserts_builtin_exit": ("asserts", FORGE + "def f(a, b): leave({'raised': 'SystemExit', 'builtin': 'SystemExit', 'message': 0})"),
    "id_asserts_builtin_function": ("asserts", FORGE + "def f(a, b): leave({'raised': 'x', 'builtin': 'exit', 'message': '0'})"),
    "id_asserts_verdict": ("asserts", FORGE + "def f(a, b): leave({'verdict': 'passed', 'checks': 9, 'calls': 9, 'value': 25, 'after': [a, b]})"),
    "id_asserts_collision_set": ("asserts_set", FORGE + "def f(): leave({'value': {'$': 'set', 'v': [{'$': 'int', 'v': hex(i * (2**61 - 1))} for i in range(1, 20000)]}, 'after': []})"),
    # standard input and output
    "right_but_exit_1": ("stdio", "print(7); raise SystemExit(1)"),
    "right_then_segfault": ("stdio", "import ctypes\nprint(7, flush=True); ctypes.string_at(0)"),
    "right_then_abort": ("stdio", "import os\nprint(7, flush=True); os.abort()"),
    "right_then_kill": ("stdio", "import os, signal\nprint(7, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\nwhile 1: pass"),
    "right_then_loop": ("stdio", "print(7, flush=True)\nwhile 1: pass"),
    "prefix_output": ("stdio_lines", "print(1)"),
    "extra_output": ("stdio", "print(7); print(7)"),
    "nothing_printed": ("stdio", "pass"),
    "empty_expected_and_crash": ("stdio_empty", "1/0"),
    "empty_expected_and_kill": ("stdio_empty", "import os\nos.abort()"),
    "output_flood": ("stdio", "import sys\nwhile 1: sys.stdout.write('7' * 65536)"),
    "error_flood": ("stdio", "import sys\nprint(7, flush=True)\nwhile 1: sys.stderr.write('7' * 65536)"),
    "sentinel_in_stdout": ("stdio", "print('7\\n' * 2 + 'OK: all tests passed')"),
    # assert texts in a sandbox of their own
    "asserts_constant": ("asserts", "def f(a, b): return 25"),
    "asserts_always_equal": ("asserts", "class E:\n def __eq__(s, o): return True\ndef f(a, b): return E()"),
    "asserts_assertion_error": ("asserts_catching", "def f(a, b): raise AssertionError"),
    "asserts_system_exit": ("asserts", "def f(a, b): raise SystemExit(0)"),
    "asserts_keyboard_interrupt": ("asserts", "def f(a, b): raise KeyboardInterrupt"),
    "asserts_stop_iteration": ("asserts", "def f(a, b): raise StopIteration"),
    "asserts_fake_exception": ("asserts", "class AssertionError(BaseException): pass\ndef f(a, b): raise AssertionError"),
    "asserts_patched_unittest": ("asserts_unittest", "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef f(a, b): return 0"),
    "asserts_vacuous": ("asserts_vacuous", "def f(a, b): return 0"),
    "asserts_uncalled": ("asserts_uncalled", "def f(a, b): return 0"),
    "asserts_poisoned_after": (
        "asserts_list",
        "import os, json, struct\ndef f(x):\n d = json.dumps({'value': None, 'after': [{'$': 'dict', 'v': []}]}).encode()\n"
        " os.write(3, struct.pack('=I', len(d)) + d); os._exit(0)",
    ),
    "asserts_too_many_after": (
        "asserts_list",
        "import os, json, struct\ndef f(x):\n d = json.dumps({'value': None, 'after': [1, 2, 3]}).encode()\n"
        " os.write(3, struct.pack('=I', len(d)) + d); os._exit(0)",
    ),
    "asserts_bad_tag": (
        "asserts", "import os\nd = b'{\"value\":{\"$\":\"code\",\"v\":[]},\"after\":[1,2]}'\ndef f(a, b): os.write(3, bytes([len(d), 0, 0, 0]) + d)"),
    "asserts_forged_verdict": (
        "asserts",
        "import os, json, struct\nd = json.dumps({'verdict': 'passed', 'calls': 5, 'checks': 5}).encode()\n"
        "def f(a, b): os.write(3, struct.pack('=I', len(d)) + d); return 0",
    ),
    "asserts_collision_set": ("asserts_set", "def f(): return {i * (2**61 - 1) for i in range(30)}"),
    "asserts_hang": ("asserts", "def f(a, b):\n while 1: pass"),
    "asserts_die": ("asserts", "import os\ndef f(a, b): os.abort()"),
}  # fmt: skip

# ---- escapes: scripts. {CANARY} a file of ours, {DIR} its folder, {VICTIM} a process, {PORT} {UDP} {ABSTRACT} listeners.

PRELUDE = """
import ctypes, errno, os, socket, struct, sys, time
def inside():
    try: open("{CANARY}").read()
    except OSError: return
    print("NOT-INSIDE", flush=True)
    os._exit(99)
inside()
NUMBERS = {NUMBERS}
VICTIM = {VICTIM}
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(NUMBERS[name] if isinstance(name, str) else name), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result
def escaped(what): print("ESCAPED", what, flush=True)
def attempt(what, action):
    try: result = action()
    except BaseException as error:
        print("refused", what, type(error).__name__, error, flush=True)
        return
    escaped(f"{what} -> {result!r:.80}")
def unreachable(name, *args):
    try: call(name, *args)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES): return
        escaped(f"{name} reached the kernel: {error}")
        return
    escaped(f"{name} succeeded")
"""

# calls that must not even be reached, with harmless arguments
UNREACHABLE = [
    "io_uring_setup",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "memfd_secret",
    "memfd_create",
    "open_by_handle_at",
    "fanotify_init",
    "seccomp",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "mount_setattr",
    "open_tree",
    "move_mount",
    "fsopen",
    "chroot",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "pidfd_send_signal",
    "pidfd_open",
    "shmget",
    "shmat",
    "setuid",
    "setresuid",
    "setgroups",
    "mknodat",
    "fchownat",
    "capset",
    "sync",
    "connect",
    "bind",
    "landlock_create_ruleset",
]

ESCAPES = {
    **{f"unreachable_{name}": f"unreachable({name!r}, 0, 0, 0, 0, 0)" for name in UNREACHABLE},
    "unknown_syscalls": "for n in [*range(451, 470), *range(500, 512), 999]: unreachable(n, 0, 0, 0, 0, 0)",
    "kill_parent": "attempt('kill parent', lambda: os.kill(os.getppid() or VICTIM, 9))",
    "kill_victim": "attempt('kill victim', lambda: os.kill(VICTIM, 9))\nattempt('stop victim', lambda: os.kill(VICTIM, 19))",
    "kill_everyone": "attempt('kill -1', lambda: os.kill(-1, 9) or (time.sleep(0.05), 'x')[1] if os.getpid() != 1 else 1/0)",
    "kill_victim_group": "attempt('killpg', lambda: os.killpg(VICTIM, 9))",
    "tgkill_victim": "attempt('tgkill', lambda: call('tgkill', VICTIM, VICTIM, 9))\nattempt('tkill', lambda: call('tkill', VICTIM, 9))",
    "fcntl_owner_signal": (
        "import fcntl\na, b = socket.socketpair()\n"
        "attempt('F_SETOWN', lambda: fcntl.fcntl(a, 8, VICTIM))\nattempt('F_SETSIG', lambda: fcntl.fcntl(a, 10, 9))\n"
        "attempt('F_SETOWN_EX', lambda: fcntl.fcntl(a, 15, struct.pack('ii', 1, VICTIM)))\n"
        "attempt('F_SETLEASE', lambda: fcntl.fcntl(os.open(os.__file__, 0), 1024, 0))\nattempt('F_NOTIFY', lambda: fcntl.fcntl(os.open('/', 0), 1026, 1))"
    ),
    "ioctl_owner": (
        "import fcntl\na, b = socket.socketpair()\nfor n in (0x8901, 0x8902):\n"
        " attempt(f'ioctl {n:x}', lambda: fcntl.ioctl(a, n, struct.pack('i', VICTIM)))\n"
        "attempt('TIOCSTI', lambda: fcntl.ioctl(0, 0x5412, b'x'))\nattempt('FS_IOC', lambda: fcntl.ioctl(os.open('/', 0), 0x80086601, b'x' * 8))"
    ),
    "ptrace_and_vm": "for n in ('ptrace', 'process_vm_readv', 'process_vm_writev', 'pidfd_open'): unreachable(n, 16, VICTIM, 0, 0, 0)",
    "tcp_loopback": "attempt('tcp', lambda: socket.create_connection(('127.0.0.1', {PORT}), 1))",
    "udp_loopback": "attempt('udp', lambda: socket.socket(2, 2).sendto(b'x', ('127.0.0.1', {UDP})))",
    "ipv6": "attempt('ipv6', lambda: socket.create_connection(('::1', {PORT}), 1))",
    "abstract_unix": "attempt('abstract', lambda: socket.socket(1, 1).connect(chr(0) + '{ABSTRACT}'))",
    "unix_dgram_abstract": "attempt('dgram', lambda: socket.socketpair(1, 2)[0].sendto(b'x', chr(0) + '{ABSTRACT}-dgram'))",
    "odd_families": "for fam in (1, 2, 10, 16, 17, 38, 40, 44, 31, 29): attempt(f'family {fam}', lambda: socket.socket(fam, 3 if fam == 17 else 1 if fam not in (16,) else 3))",
    "odd_socketpairs": "for fam in (2, 10, 16, 17, 30, 40): attempt(f'pair {fam}', lambda: socket.socketpair(fam, 1))",
    "sendmsg_descriptors": "a, b = socket.socketpair()\nattempt('sendmsg', lambda: a.sendmsg([b'x'], [(1, 1, struct.pack('i', 0))]))",
    "urllib_and_dns": (
        "import urllib.request\nattempt('urllib', lambda: urllib.request.urlopen('http://127.0.0.1:{PORT}/', timeout=1))\n"
        "attempt('dns', lambda: socket.getaddrinfo('example.com', 80))"
    ),
    "execve": "attempt('execv', lambda: os.execv('/bin/sh', ['sh', '-c', 'echo ESCAPED exec']))",
    "system": "attempt('system', lambda: None if os.system('echo ESCAPED system') == 0 else 1/0)",
    "popen": "import subprocess\nattempt('popen', lambda: subprocess.run(['/bin/echo', 'ESCAPED'], check=True))\nattempt('python', lambda: subprocess.run([sys.executable, '-c', 'print(1)'], check=True))",
    "fork": "attempt('fork', lambda: os._exit(0) if (p := os.fork()) == 0 else os.waitpid(p, 0))",
    "vfork_clone": "unreachable('vfork') if 'vfork' in NUMBERS else None\nunreachable('clone', 17, 0, 0, 0, 0)",
    "clone3_newuser": "args = struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\nunreachable('clone3', args, 64)",
    "clone_namespaces": "for f in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000): unreachable('clone', f | 17, 0, 0, 0, 0)",
    "multiprocessing": "import multiprocessing as m\nattempt('process', lambda: (p := m.get_context('fork').Process(target=print), p.start(), p.join()))",
    "unshare_everything": "for f in (0x20000, 0x10000000, 0x20000000, 0x40000000, 0x7e020000): unreachable('unshare', f)",
    "mounts": "unreachable('mount', b'none', b'/box', b'tmpfs', 0, 0)\nunreachable('umount2', b'/box', 2)\nunreachable('fsopen', b'tmpfs', 0)",
    "remount_root": "unreachable('mount', b'none', b'/', 0, 32 | 4096, 0)\nunreachable('pivot_root', b'/', b'/')\nunreachable('chroot', b'/')",
    "inherited_descriptors": (
        "for fd in range(3, 1024):\n try: mode = os.fstat(fd).st_mode\n except OSError: continue\n"
        " if fd == 3: continue\n escaped(f'descriptor {fd} {mode:o}')"
    ),
    "raise_limits": (
        "import resource\nfor n in ('CPU', 'AS', 'NPROC', 'FSIZE', 'NOFILE', 'CORE', 'MEMLOCK', 'STACK'):\n k = getattr(resource, 'RLIMIT_' + n)\n s, h = resource.getrlimit(k)\n"
        " if h == resource.RLIM_INFINITY: continue\n attempt('raise ' + n, lambda: resource.setrlimit(k, (h + 1, h + 1)))\n"
        " attempt('unlimit ' + n, lambda: resource.setrlimit(k, (-1, -1)))"
    ),
    "limits_of_others": "import resource\nattempt('prlimit', lambda: resource.prlimit(VICTIM, resource.RLIMIT_CPU, (1, 1)))",
    "prctl": "for o in (1, 4, 8, 22, 24, 28, 36, 38, 0x59616d61, 47, 55): unreachable('prctl', o, 1, 0, 0, 0)",
    "set_user": "for n in (os.setuid, os.setgid, os.seteuid, os.setegid): attempt(n.__name__, lambda: n(0))\nattempt('setgroups', lambda: os.setgroups([0]))\nattempt('setresuid', lambda: os.setresuid(0, 0, 0))",
    "capabilities": (
        "h = ctypes.create_string_buffer(struct.pack('Ii', 0x20080522, 0)); d = ctypes.create_string_buffer(24)\n"
        "call('capget', h, d)\nif any(d.raw): escaped('capabilities ' + d.raw.hex())"
    ),
    "read_canary": "attempt('read', lambda: open('{CANARY}').read())\nattempt('list', lambda: os.listdir('{DIR}'))",
    "read_system_files": "for p in ('/etc/passwd', '/etc/shadow', '/etc/hostname', '/proc/1/environ', '/proc/self/status', '/proc/self/mem', '/root/.ssh', '/var/log', '/home', '/sys/kernel', '/run'):\n attempt(p, lambda: open(p, 'rb').read(1) if not os.path.isdir(p) else os.listdir(p))",
    "devices": "for p in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/nvidia0', '/dev/nvidiactl', '/dev/ptmx', '/dev/tty', '/dev/fuse', '/dev/kvm', '/dev/shm/x'):\n attempt(p, lambda: os.open(p, os.O_RDWR | (os.O_CREAT if 'shm' in p else 0)))",
    "write_canary": "attempt('write', lambda: open('{CANARY}', 'w'))\nattempt('append', lambda: open('{CANARY}', 'a'))\nattempt('create', lambda: open('{DIR}/new', 'x'))",
    "truncate_canary": "attempt('truncate', lambda: os.truncate('{CANARY}', 0))\nattempt('O_RDONLY|O_TRUNC', lambda: os.open('{CANARY}', os.O_TRUNC))\nattempt('creat', lambda: call('creat', b'{CANARY}', 0o600))",
    "times_and_modes": "attempt('utime', lambda: os.utime('{CANARY}', (0, 0)))\nattempt('chmod', lambda: os.chmod('{CANARY}', 0))\nattempt('chown', lambda: os.chown('{CANARY}', 1, 1))",
    "names": (
        "attempt('unlink', lambda: os.unlink('{CANARY}'))\nattempt('rename', lambda: os.rename('{CANARY}', '{DIR}/x'))\nattempt('symlink', lambda: os.symlink('/', '{DIR}/x'))\n"
        "attempt('link', lambda: os.link('{CANARY}', '{DIR}/x'))\nattempt('mkdir', lambda: os.mkdir('{DIR}/x'))\nattempt('rmdir', lambda: os.rmdir('{DIR}'))\nattempt('mkfifo', lambda: os.mkfifo('{DIR}/x'))\n"
        "attempt('O_TMPFILE', lambda: os.open('{DIR}', os.O_TMPFILE | os.O_RDWR))\nattempt('xattr', lambda: os.setxattr('{CANARY}', 'user.x', b'x'))"
    ),
    "openat2": "how = struct.pack('QQQ', os.O_RDONLY, 0, 0)\nunreachable('openat2', -100, b'{CANARY}', how, 24)",
    "interpreter_writes": (
        "import assay.sandbox.wire as w\n"
        "for p in (os.__file__, os.path.dirname(os.__file__) + '/sitecustomize.py', sys.executable, '/usr/lib/x', '/lib/x', '/etc/ld.so.preload', w.__file__):\n"
        " attempt(p, lambda: os.open(p, os.O_WRONLY | os.O_CREAT))\n attempt('truncate ' + p, lambda: os.truncate(p, 0))\n attempt('utime ' + p, lambda: os.utime(p))\n attempt('chmod ' + p, lambda: os.chmod(p, 0o777))"
    ),
    "thread_count": (  # where the kernel counts them for us; elsewhere the zygote looks every tick
        "import threading\nif not os.path.isdir('/box'): raise SystemExit\nthreading.stack_size(65536)\nn = 0\ntry:\n"
        " for n in range(200): threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()\nexcept RuntimeError: pass\n"
        "if n > 16: escaped(f'{n} threads of 16')"
    ),
    "priority_futexes": "word = ctypes.c_int(0)\nfor op in (6, 7, 8, 11, 12, 13): unreachable('futex', ctypes.byref(word), op, 0, 0, 0, 0)",
    "touch_devices": "for p in ('/dev/null', '/dev/zero'):\n attempt('chmod ' + p, lambda: os.chmod(p, 0o666))\n attempt('utime ' + p, lambda: os.utime(p))\nattempt('fchmod', lambda: os.fchmod(0, 0o666))",
    "int80": (
        "import mmap\nif os.uname().machine != 'x86_64': raise SystemExit\n"
        "m = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nescaped(f'int 0x80 getpid {f()}')"
    ),
    "x32": "if os.uname().machine != 'x86_64': raise SystemExit\nescaped(f'x32 getpid {call(0x40000000 | 39)}')",
    "own_kill_stops_at_us": "import signal\nattempt('sigstop self', lambda: 1/0)\nos.kill(os.getpid(), signal.SIGUSR1) if False else None",
    "poison_modules": (
        "import json, random, collections\njson.loads = json.dumps = random.random = None\ncollections.OrderedDict = None\n"
        "sys.modules.clear()"
    ),
    "poison_files": "for n in ('/box/x', '/tmp/x', 'x'):\n try: open(n, 'w').write('POISON')\n except OSError: pass\nfor n in ('/box/x', '/tmp/x'):\n if os.path.exists(n + '-before'): escaped('kept')",
    "leave_orphan": "try:\n if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n   time.sleep(120)\n  os._exit(0)\nexcept OSError: pass",
    "hold_output_open": "try:\n if os.fork() == 0: time.sleep(120)\nexcept OSError: pass",
}  # fmt: skip

# ---- bombs: name -> (program, ways it may end, limits that differ from SMALL)

BOMBS = {
    "cpu_loop": ("while True: pass", {"cpu_limit"}, {"wall_seconds": 60}),
    "wall_loop": ("while True: pass", {"wall_limit"}, {"cpu_seconds": 20, "wall_seconds": 0.5}),
    "sleep": ("time.sleep(100)", {"wall_limit"}, {"wall_seconds": 0.4}),
    "stop_self": ("os.kill(os.getpid(), 19); time.sleep(100)", {"wall_limit"}, {"wall_seconds": 0.4}),
    "frozen_clocks": ("time.time = time.monotonic = time.perf_counter = lambda: 0.0\nwhile True: pass", {"cpu_limit", "wall_limit"}, {}),
    "ignore_xcpu": ("import signal\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n except (OSError, ValueError): pass\nwhile True: pass", {"cpu_limit", "wall_limit"}, {}),
    "fork_bomb": ("for _ in range(5000):\n try: pid = os.fork()\n except OSError: break\n if pid == 0: time.sleep(5); os._exit(0)", {"exited"}, {}),
    "thread_bomb": (
        "import threading\nthreading.stack_size(65536)\nn = 0\ntry:\n for n in range(3000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "except RuntimeError: pass\nprint('threads', n, flush=True)\ntime.sleep(0.6)\nos._exit(0)", {"exited", "thread_limit", "wall_limit"}, {}),
    "heap_bomb": ("x = []\nwhile True: x.append(bytearray(1 << 20))", {"memory_limit"}, {}),
    "swallowed_memory_error": ("x = []\nwhile True:\n try: x.append(bytearray(1 << 20))\n except MemoryError: pass", {"cpu_limit", "wall_limit"}, {}),
    "shared_mmap_bomb": ("import mmap\nx = []\nfor _ in range(4000):\n m = mmap.mmap(-1, 1 << 20); m[::4096] = b'x' * 256; x.append(m)", {"exited", "memory_limit", "signalled", "wall_limit", "cpu_limit"}, {}),
    "recursion": ("sys.setrecursionlimit(10 ** 9)\ndef f(): return f() + 1\nf()", {"signalled", "memory_limit", "exited", "cpu_limit", "wall_limit"}, {}),
    "regex_bomb": ("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", {"cpu_limit", "wall_limit"}, {}),
    "power_tower": ("x = 9 ** 9 ** 9", {"cpu_limit", "wall_limit", "memory_limit"}, {}),
    "disk_fill": ("f = open('big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", {"exited"}, {}),
    "many_files": ("for i in range(100000): open(f'f{i}', 'w').write('x' * 4096)", {"exited"}, {}),
    "inode_bomb": ("for i in range(100000): os.mkdir(f'd{i}')", {"exited"}, {}),
    "sparse_file": ("f = open('sparse', 'wb')\nf.truncate(1 << 40)", {"exited", "signalled"}, {}),
    "stdout_flood": ("while True: os.write(1, b'x' * 65536)", {"output_limit"}, {}),
    "stderr_flood": ("while True: os.write(2, b'x' * 65536)", {"output_limit"}, {}),
    "stdout_truncate": ("os.ftruncate(1, 1 << 40)", {"exited", "output_limit", "signalled"}, {}),
    "many_descriptors": ("import socket\nx = []\nfor _ in range(10000): x.append(socket.socketpair())", {"exited"}, {}),
    "pipe_memory": ("x = []\nfor _ in range(10000):\n r, w = os.pipe(); os.set_blocking(w, False); x.append((r, w))\n os.write(w, b'x' * 65536)", {"exited"}, {}),
    "wire_flood": ("while True: os.write(3, b'x' * 65536)", {"wall_limit", "protocol_error", "cpu_limit", "exited"}, {"wall_seconds": 0.5}),
    "close_everything": ("os.closerange(0, 100)\nwhile True: pass", {"cpu_limit", "wall_limit"}, {}),
    "all_pending_signals": ("import signal\nn = 0\nfor i in range(100000):\n if libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())): break\n n += 1\nif n > 300: escaped(f'{n} timers')", {"exited"}, {}),
    "timers": ("import signal\nx = []\nfor i in range(100000): libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p()))\nprint('done')", {"exited", "cpu_limit", "wall_limit", "memory_limit"}, {}),
}  # fmt: skip

HONEST = {
    "deep_recursion_in_thread": "import sys, threading\nthreading.stack_size(256 << 20)\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(50000)))\nt.start(); t.join()",
    "asyncio": "import asyncio\nasync def one(i):\n await asyncio.sleep(0.001)\n return i\nasync def main(): return sum(await asyncio.gather(*map(one, range(50))))\nprint(asyncio.run(main()))",
    "thread_pool": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as p: print(sum(p.map(lambda x: x * x, range(100))))",
    "bulk_stdin": "import sys\nprint(len(sys.stdin.read()))",
    "os_read_template": "import os\nprint(len(os.read(0, os.fstat(0).st_size)))",
    "exit_at_end": "print(1)\nexit()",
    "quit_in_function": "def solve():\n print(1)\n quit()\nsolve()",
    "main_guard": "import sys\ndef main():\n print(1)\n return 0\nif __name__ == '__main__': sys.exit(main())",
    "big_list": "x = list(range(5_000_000))\nprint(x[-1])",
    "hashes_and_numbers": "import hashlib, decimal, fractions, sqlite3\nprint(hashlib.sha256(b'x').hexdigest()[:4], decimal.Decimal(1) / 3, fractions.Fraction(1, 3))\nc = sqlite3.connect(':memory:'); print(c.execute('select 1 + 1').fetchone())",
    "uuid_and_random": "import uuid, random, secrets\nprint(len({uuid.uuid4() for _ in range(10)}), 0 <= random.random() < 1, len(secrets.token_hex()))",
    "unicode": "print('héllo ✓ 日本')",
    "dataclass_and_pickle": "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n x: int\nprint(pickle.loads(pickle.dumps(P(3))))",
    "signal_alarm": "import signal\nclass T(Exception): pass\ndef h(*a): raise T\nsignal.signal(signal.SIGALRM, h)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\ntry:\n for i in range(10**9): i += 1\nexcept T: print('alarm')",
    "exception_groups_and_warnings": "import warnings\nwarnings.warn('x')\ntry: raise ExceptionGroup('g', [ValueError(1)])\nexcept* ValueError: print('ok')",
}  # fmt: skip

HONEST_ISOLATED = {
    "tempfile": "import tempfile, os\nwith tempfile.NamedTemporaryFile('w+') as f:\n f.write('x'); f.flush(); print(os.path.getsize(f.name))",
    "sqlite_file": "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t(a)'); c.execute('insert into t values (1)'); c.commit(); print(c.execute('select * from t').fetchall())",
    "files_and_folders": "import os, shutil\nos.makedirs('a/b'); open('a/b/c', 'w').write('x'); shutil.copytree('a', 'd'); shutil.rmtree('a'); print(os.listdir('d/b'))",
}  # fmt: skip
