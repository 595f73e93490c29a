"""What befalls a client from outside: its folder, its threads, signals, forks, the end of its process."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from palate import client_delivery, client_segments
from palate.client import SpillError
from palate.client_spill import Spill
from tests.unit.palate.test_client import Place, run, thumbs, until


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def names(numbers: range) -> list[str]:
    return [f"f{n}" for n in numbers]


def remove(spill: Path) -> None:
    shutil.rmtree(spill)


def move(spill: Path) -> None:
    spill.rename(spill.with_name("elsewhere"))


def remove_files(spill: Path) -> None:
    for path in spill.glob("*/*.jsonl"):
        path.unlink()


@pytest.mark.parametrize("damage", [remove, move, remove_files])
@pytest.mark.parametrize("durable", [True, False])
def test_a_spill_folder_that_somebody_removes_is_made_again_and_nothing_is_lost(
    damage, durable: bool, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("palate.client_spill.SEGMENT_BYTES", 3_000)  # several files
    place.go_away()
    with place.client(durable=durable) as client:
        thumbs(client, range(100))
        until(lambda: client.stats()["on_disk_bytes"] > 10_000)
        damage(place.spill)
        thumbs(client, range(100, 200))
        until(lambda: sum(path.stat().st_size for path in place.spill.glob("*/*.jsonl")) > 20_000)
        place.come_back()
        assert client.flush(20)
        assert client.stats()["torn"] == client.stats()["refused"] == 0
    assert place.ids() == names(range(200))


def test_what_was_removed_from_disk_is_there_again_when_the_process_ends(place: Place):
    place.go_away()
    with place.client() as client:
        thumbs(client, range(50))
        until(lambda: client.stats()["spilled"] == 50)
        remove(place.spill)
    place.come_back()
    with place.client() as client:
        until(lambda: client.stats()["adopted"] == 50)
    assert place.ids() == names(range(50))


def test_a_file_that_vanishes_unseen_is_counted_and_holds_up_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("palate.client_spill.OPEN_SEGMENTS", 0)  # none is kept open
    monkeypatch.setattr("palate.client_spill.SEGMENT_BYTES", 10)
    spill, seen, torn = Spill(tmp_path, 1 << 20), [], 0
    for n in range(3):
        assert spill.append([b'{"n":%d}' % n, b'{"m":%d}' % n])
    sorted(tmp_path.glob("*/*.jsonl"))[0].unlink()
    while (chunk := spill.head(1000)) is not None:
        seen += chunk.lines
        torn += chunk.torn
        spill.done(chunk)
    assert torn == 2 and seen == [b'{"n":1}', b'{"m":1}', b'{"n":2}', b'{"m":2}']
    spill.close()


def test_a_receiving_folder_that_is_removed_is_made_again(place: Place):
    with place.client() as client:
        thumbs(client, range(3))
        assert client.flush(10)
        shutil.rmtree(place.events)
        thumbs(client, range(3, 6))
        assert client.flush(10)
    assert place.ids() == names(range(3, 6))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "stays"])
def test_what_was_delivered_and_cannot_be_removed_is_sent_once(
    code: int, emptied: bool, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("palate.client_spill.SEGMENT_BYTES", 1_000)
    monkeypatch.setattr(client_delivery, "ADOPT_S", 0.05)
    place.go_away()
    with place.client() as client:
        thumbs(client, range(100))  # and left to the next client
    place.come_back()
    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", fail)
        broken.setattr("shutil.rmtree", lambda *_, **__: None)  # what it does with errors to be ignored
        if not emptied:
            broken.setattr(os, "truncate", fail)
            broken.setattr(os, "ftruncate", fail)
        with place.client() as client:
            until(lambda: client.stats()["adopted"] >= 100)
            for n in range(100, 110):
                thumbs(client, range(n, n + 1))
                assert client.flush(10)
                time.sleep(0.05)  # it looks for left queues again
            assert client.stats()["adopted"] == 100
    assert place.ids() == names(range(110))
    said = [record for record in caplog.records if "cannot be removed" in record.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("kind", [OSError, MemoryError, SystemExit])
@pytest.mark.parametrize(
    "where", ["Spill.adopt", "Spill.head", "Spill.done", "Spill.restore", "Spill.unsynced", "Spill.append"]
)
def test_no_exception_ends_the_threads(kind, where: str, place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_delivery, "BACKOFF_S", (0.01, 0.02))
    monkeypatch.setattr(client_delivery, "FSYNC_S", 0.05)
    method, failures = where.split(".")[1], [0]
    real = getattr(Spill, method)

    def fail(self: Spill, *arguments: object, **named: object) -> object:
        if threading.current_thread().name.startswith("palate-") and failures[0] < 3:
            failures[0] += 1
            if method == "done":
                real(self, *arguments)  # the lines have arrived
            raise kind("injected")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Spill, method, fail)
    place.go_away()
    with place.client() as client:
        thumbs(client, range(20))
        until(lambda: failures[0] == 3 or not place.blocker.is_file() or client.stats()["spilled"] > 0)
        time.sleep(0.1)
        place.come_back()
        until(lambda: client.stats()["on_disk_bytes"] == 0 and client.stats()["in_memory_bytes"] == 0)
        thumbs(client, range(20, 30))
        until(lambda: len(set(place.ids())) == 30)
        assert all(thread.is_alive() for thread in client._delivery._threads.values())
    assert sorted(set(place.ids())) == sorted(names(range(30)))


@pytest.mark.parametrize("spared", [0, 1])
def test_without_threads_events_are_kept_and_go_out_when_there_are_some(
    spared: int, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    real, allowed = threading.Thread.start, [spared]

    def start(thread: threading.Thread) -> None:
        if allowed[0] <= 0:
            raise RuntimeError("can't start new thread")
        allowed[0] -= 1
        real(thread)

    monkeypatch.setattr(client_delivery, "_THREADS_S", 0.05)
    monkeypatch.setattr(threading.Thread, "start", start)
    place.spill.mkdir()
    (place.spill / "left").mkdir()  # so that making the client starts threads
    with place.client() as client:
        thumbs(client, range(10))
        if not spared:
            assert not client.flush(0.1)
        allowed[0] = 99
        time.sleep(0.1)
        thumbs(client, range(10, 20))
        assert client.flush(10)
        assert client.stats()["refused"] == client.stats()["invalid"] == 0
        assert len(client._delivery._threads) == 2
    assert sorted(place.ids()) == sorted(names(range(20)))
    assert caplog.text.count("No thread to deliver events") == 1


def test_a_process_that_never_gets_a_thread_leaves_its_events_on_disk(place: Place, monkeypatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as starved:
        starved.setattr(threading.Thread, "start", start)
        client = place.client()
        thumbs(client, range(10))
        started = time.monotonic()
        assert not client.close()
        assert time.monotonic() - started < 1.0
    with place.client() as client:
        until(lambda: client.stats()["adopted"] == 10)
    assert place.ids() == names(range(10))


INTERRUPTED = """
    import itertools, os, sys, threading
    from palate.client import Client
    from palate import client_delivery, client_reentry, client_segments, client_spill, client_waiting
    threading.Thread  # its module's lines are interrupted, too
    durable, away = sys.argv[3] == "durable", sys.argv[4] == "away"
    files = {m.__file__ for m in (client_delivery, client_reentry, client_segments, client_spill, client_waiting)}
    files.add(threading.__file__)
    client = Client(sys.argv[1], spill_dir=sys.argv[2], strict=True, durable=durable,
                    max_buffer_bytes=2_000 if away else 1 << 20)
    emitted, inside, seen, number = [], False, set(), itertools.count()
    def emit():
        emitted.append(client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{next(number)}"))
    def interrupt(frame, event, _):
        global inside
        if inside or frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        step = (frame.f_code, frame.f_lasti)
        if event == "opcode" and step not in seen:  # else what takes these events in would never end
            seen.add(step)
            inside = True
            emit()
            inside = False
        return interrupt
    for _ in range(3):  # as signals, before any step of the interpreter in the client
        seen.clear()
        sys.settrace(interrupt)
        emit()
        client.flush(0.01)
        client.stats()
        sys.settrace(None)
    stats = client.stats()
    assert stats["accepted"] == len(emitted) and stats["refused"] == 0, (stats, len(emitted))
    if away:
        os.unlink(os.path.dirname(sys.argv[1]))
    assert client.flush(20), client.stats()
    print(len(emitted))
"""


@pytest.mark.parametrize("mode", ["plain", "durable"])
@pytest.mark.parametrize("receiver", ["there", "away"])
def test_a_signal_handler_may_emit_at_any_moment(mode: str, receiver: str, place: Place):
    if receiver == "away":
        place.go_away()
    done = run(INTERRUPTED, place.events, place.spill, mode, receiver)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
    assert Counter(place.ids()) == Counter(names(range(int(done.stdout))))


def test_a_log_handler_may_emit(place: Place, caplog: pytest.LogCaptureFixture):
    place.go_away()

    class Emitting(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            client.feedback("thumb", 1, interaction_id="i", feedback_id="said")

    handler = Emitting()
    with place.client(max_buffer_bytes=500, max_spill_bytes=2_000, durable=True, strict=False) as client:
        logging.getLogger("palate.client").addHandler(handler)
        try:
            thumbs(client, range(100))
        finally:
            logging.getLogger("palate.client").removeHandler(handler)
        assert client.stats()["refused"] > 0
        place.come_back()
        assert client.flush(20)


FOREIGN = """
    import logging, os, sys
    logging.basicConfig(format="%(message)s")
    from palate.client import Client, SpillError
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    folder, spill = sys.argv[1:]
    for options in ({"strict": True}, {"durable": True}):
        try:
            Client(folder, spill_dir=spill, **options)
        except SpillError as problem:
            assert isinstance(problem, OSError) and problem.got and problem.allowed and problem.next_step
        else:
            raise AssertionError(options)
    with Client(folder, spill_dir=spill) as client:
        for n in range(10):
            client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{n}")
        assert client.flush(10), client.stats()
"""


def test_a_spill_folder_of_another_user_is_named_at_once_and_stops_nothing():
    # Below /tmp, since others may not enter pytest's folders; without root, a folder that is not writable.
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        folder.chmod(0o711)
        for name, mode in (("events", 0o777), ("spill", 0o500)):
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        done = run(FOREIGN, folder / "events", folder / "spill")
        assert done.returncode == 0, done.stderr
        assert "cannot be kept in the spill folder" in done.stderr and "memory only" in done.stderr
        assert sum(len(path.read_bytes().splitlines()) for path in (folder / "events").iterdir()) == 10
    finally:
        (folder / "spill").chmod(0o700)
        shutil.rmtree(folder)


def test_a_folder_that_becomes_usable_is_used(place: Place):
    place.go_away()
    place.spill.write_text("in the way")
    with pytest.raises(SpillError, match="is not a directory"):
        place.client()
    with place.client(strict=False) as client:
        thumbs(client, range(10))
        until(lambda: not client.stats()["receiver_up"])
        assert client.stats()["on_disk_bytes"] == 0 and client.stats()["waiting"] == 10
        place.spill.unlink()
        until(lambda: client.stats()["spilled"] == 10)
        place.come_back()
        assert client.flush(20)
    assert place.ids() == names(range(10))


def test_a_process_without_free_descriptors_goes_on(place: Place):
    done = run(
        """
        import os, sys
        from palate.client import Client
        client = Client(sys.argv[1], spill_dir=sys.argv[2], durable=True)
        import resource
        free = os.dup(0); os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for n in range(5):
            client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{n}")
        assert not client.flush(0.5) and client.stats()["accepted"] == 5
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
        assert client.flush(20)
        assert len(os.listdir(sys.argv[2])) <= 1
        """,
        place.events,
        place.spill,
    )
    assert done.returncode == 0, done.stderr
    # A write that failed after its lines were down is made again: none is lost, and ingest drops what came twice.
    assert sorted(set(place.ids())) == names(range(5))


PRELOADED = """
    import os, sys
    from palate.client import Client
    client = Client(sys.argv[1], spill_dir=sys.argv[2], durable=sys.argv[3] == "True")
    def emit(numbers):
        for n in numbers:
            client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{n}")
    emit(range(10))
    for worker in (1, 2, 3):
        if os.fork() == 0:
            emit(range(10 * worker, 10 * worker + 10))
            assert client.flush(20) and client.stats()["accepted"] == 10
            sys.exit(0)
    for worker in (1, 2, 3):
        assert os.wait()[1] == 0
"""


@pytest.mark.parametrize("durable", [True, False])
def test_workers_forked_after_the_client_was_made_deliver_their_own(durable: bool, place: Place):
    done = run(PRELOADED, place.events, place.spill, durable)
    assert (done.returncode, done.stderr) == (0, "")
    assert Counter(place.ids()) == Counter(names(range(40)))


ENDING = """
    import os, signal, sys, threading, time
    from palate.client import Client
    clients = [Client(sys.argv[1], spill_dir=f"{sys.argv[2]}/{n}", close_timeout_s=20) for n in range(2)]
    for client in clients:
        for n in range(50):
            client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{n}")
    def insist():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
    if sys.argv[3] == "exit":
        sys.exit(0)
    import atexit
    atexit.register(threading.Thread(target=insist, daemon=True).start)  # runs first, while the client closes
"""


@pytest.mark.parametrize("end", ["exit", "impatient"])
def test_the_end_of_the_process_while_the_receiver_is_silent_keeps_everything(end: str, tmp_path: Path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(ENDING, f"kafka://127.0.0.1:{silent.getsockname()[1]}/t", tmp_path, end)
    assert done.returncode == 0, done.stderr
    for n in range(2):
        kept = [line for path in tmp_path.glob(f"{n}/*/*.jsonl") for line in path.read_bytes().splitlines()]
        assert len(kept) == 50


def test_a_handler_that_raises_in_the_midst_of_a_write_leaves_whole_lines(tmp_path: Path, monkeypatch):
    spill, real = Spill(tmp_path, 1 << 20), os.write
    assert spill.append([b"{1}"])

    def interrupted(descriptor: int, data: bytes) -> int:
        real(descriptor, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as signalled:
        signalled.setattr(client_segments.os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            spill.append([b"{2}"])
    assert spill.append([b"{3}"])
    chunk = spill.head(1000)
    assert chunk is not None and chunk.lines == [b"{1}", b"{3}"]
    spill.close()
