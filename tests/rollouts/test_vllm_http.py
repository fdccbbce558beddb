"""Whether a server lives, over real sockets: what a closed connection says, and what it does not."""

import socket
import threading

import pytest

from assay.rollouts.vllm_http import Server
from assay.rollouts.vllm_options import VllmOptions


@pytest.fixture
def listening():
    """`listening(hang_ups)`: a server that closes that many connections unanswered, then is healthy."""
    sockets = []

    def start(hang_ups):
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def serve():
            left = hang_ups
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    if left:
                        left -= 1
                        continue
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

        threading.Thread(target=serve, daemon=True).start()
        return Server(f"http://127.0.0.1:{listener.getsockname()[1]}", VllmOptions())

    yield start
    for listener in sockets:
        listener.close()


@pytest.mark.parametrize(("hang_ups", "alive"), [(0, True), (1, True), (3, True), (1000, False)])
def test_a_connection_that_was_closed_is_not_a_dead_server(listening, hang_ups, alive):
    """A server closes kept connections after some idle seconds, and a call may meet that; a dead one never answers."""
    assert listening(hang_ups).is_healthy(30.0, tries=3) is alive


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not Server(f"http://127.0.0.1:{port}", VllmOptions()).is_healthy(30.0, tries=3)
