"""Engines that write without a model: the surroundings of asynchronous rollouts, not the thing under test.

`BackgroundEngine` is a server in a thread: it writes one token of every open request a tick, can be paused between two
tokens, and notes which version wrote which token. What it writes depends on the request alone.
"""

import itertools
import queue
import threading
import time

import numpy as np

from assay.records import Completion, Finish, Segment, VersionSpan

LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8).astype(np.int64)


def text_of(request, index, end):
    """(tokens, finish) of completion `index`: letters, as many as the seed says; `end` stops one that fits."""
    rng = np.random.default_rng([request.seed, index])
    limit = request.sampling.max_tokens
    length = int(rng.integers(1, limit + 2))
    tokens = LETTERS[rng.integers(0, rng.integers(1, 26), size=min(length, limit))]
    if length > limit:
        return tokens, Finish.LENGTH
    tokens[-1] = end
    return tokens, Finish.STOP


class Row:
    def __init__(self, tokens, finish):
        self.tokens, self.finish = tokens, finish
        self.done, self.spans = 0, []

    def advance(self, version):
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(VersionSpan(self.done, version))
        self.done += 1

    def completion(self):
        length = len(self.tokens)
        logps = np.full(length, -3.0, dtype=np.float32)
        return Completion(
            [Segment(self.tokens, np.ones(length, bool), logps)], self.finish, policy_versions=tuple(self.spans)
        )


class BackgroundEngine:
    """`tick` seconds a token, `slots` requests written at once; `fail_after` requests it dies."""

    is_concurrent = True

    def __init__(self, tick=0.0, slots=16, end=259, fail_after=None):
        self.tick, self.slots, self.end, self.fail_after = tick, slots, end, fail_after
        self.version, self.pushes, self.handles = 0, [], itertools.count()
        self.open, self.results = {}, queue.Queue()
        self.changed = threading.Condition()
        self.paused = self.closed = False
        self.seen = []
        self.thread = threading.Thread(target=self.serve, name="engine-of-a-test", daemon=True)
        self.thread.start()

    def submit(self, request):
        with self.changed:
            handle = next(self.handles)
            self.seen.append(request)
            self.open[handle] = [Row(*text_of(request, index, self.end)) for index in range(request.n)]
            self.changed.notify_all()
        return handle

    def completed(self):
        while True:
            with self.changed:
                while self.results.empty() and self.open and not self.closed:
                    self.changed.wait()
                if self.results.empty():
                    return
                found = self.results.get()
            if isinstance(found, BaseException):
                raise found
            yield found

    def serve(self):
        finished = 0
        while True:
            with self.changed:
                while (self.paused or not self.open) and not self.closed:
                    self.changed.wait()
                if self.closed:
                    return
                for handle in list(self.open)[: self.slots]:
                    rows = self.open[handle]
                    for row in rows:
                        if row.done < len(row.tokens):
                            row.advance(self.version)
                    if all(row.done == len(row.tokens) for row in rows):
                        finished += 1
                        if self.fail_after is not None and finished > self.fail_after:
                            self.results.put(ConnectionError("the server of this test went away"))
                            self.open.clear()
                            self.changed.notify_all()
                            return
                        del self.open[handle]
                        self.results.put((handle, [row.completion() for row in rows]))
                        self.changed.notify_all()
            time.sleep(self.tick)

    def cancel(self, handles):
        with self.changed:
            for handle in handles:
                self.open.pop(handle, None)
            self.changed.notify_all()

    def push(self, weights, version):
        for _ in weights:
            pass
        with self.changed:
            self.version = version
            self.pushes.append(version)

    def pause(self):
        with self.changed:
            self.paused = True

    def resume(self):
        with self.changed:
            self.paused = False
            self.changed.notify_all()

    def sleep(self): ...

    def wake(self): ...

    def close(self):
        with self.changed:
            self.closed = True
            self.open.clear()
            self.changed.notify_all()
        self.thread.join(10)
