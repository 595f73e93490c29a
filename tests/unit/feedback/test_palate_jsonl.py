from __future__ import annotations

import random
from itertools import pairwise

import pytest

from feedback.sources import SourceError, palate_jsonl
from feedback.sources.palate_jsonl import Config, cuts, partitions, read

LINES = [b'{"n": %d, "text": "%s"}' % (n, b"x" * (n * 7 % 50)) for n in range(40)]


@pytest.fixture
def segment(tmp_path):
    def write(content: bytes, name: str = "events.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def everything(path, config=None):
    config = config or Config()
    (partition,) = partitions(path, config)
    return [record.raw for record in read(partition, 0, partition.end, config)]


def test_lines_with_their_byte_positions(segment):
    path = segment(b"{}\r\n\n  \n[1]\n")
    (partition,) = partitions(path, Config())
    assert [tuple(r) for r in read(partition, 0, partition.end, Config())] == [(0, 4, b"{}"), (8, 12, b"[1]")]
    assert (partition.end, partition.pending_bytes) == (12, 0)


def test_any_cuts_give_every_line_once(segment):
    path = segment(b"\n".join(LINES) + b"\n")
    (partition,) = partitions(path, Config())
    draw = random.Random(0)
    for _ in range(50):
        cuts = sorted(
            {0, partition.end, *(draw.randint(0, partition.end) for _ in range(draw.randint(0, 60)))}
        )
        got = [r for lo, hi in pairwise(cuts) for r in read(partition, lo, hi, Config())]
        assert [r.raw for r in got] == LINES
        assert [r.next_offset for r in got[:-1]] == [r.offset for r in got[1:]]


def test_a_growing_file_is_read_on(segment):
    config = Config(final=False)
    path = segment(LINES[0] + b"\n" + LINES[1] + b"\n" + LINES[2][:5])
    (before,) = partitions(path, config)
    assert [r.raw for r in read(before, 0, before.end, config)] == LINES[:2]
    assert before.pending_bytes == 5
    segment(b"\n".join(LINES[:5]) + b"\n")
    (after,) = partitions(path, config)
    assert after.id == before.id
    assert [r.raw for r in read(after, before.end, after.end, config)] == LINES[2:5]
    assert after.pending_bytes == 0


def test_a_file_given_as_final_that_grows_after_all_loses_nothing(segment):
    path = segment(LINES[0] + b"\n" + LINES[1][:6])
    (before,) = partitions(path, Config())
    assert [r.raw for r in read(before, 0, before.end, Config())] == [LINES[0], LINES[1][:6]]
    segment(b"\n".join(LINES[:3]))
    (after,) = partitions(path, Config())
    assert after.id == before.id
    assert [r.raw for r in read(after, before.end, after.end, Config())] == LINES[1:3]


def test_only_a_pending_line_is_nothing_yet(segment):
    (partition,) = partitions(segment(b'{"half'), Config(final=False))
    assert (partition.end, partition.pending_bytes) == (0, 6)
    assert list(read(partition, 0, partition.end, Config(final=False))) == []


def test_an_empty_file_is_an_empty_partition(segment):
    (partition,) = partitions(segment(b""), Config())
    assert (partition.end, partition.pending_bytes) == (0, 0)
    assert list(read(partition, 0, 0, Config())) == []


def test_partition_ids_tell_files_apart(segment, tmp_path):
    ids = {
        partitions(segment(b"%d\n" % n, name), Config())[0].id
        for n in (1, 2)
        for name in ("a.jsonl", "b.jsonl")
    }
    assert len(ids) == 4
    assert all(name.startswith("palate_jsonl:") for name in ids)
    assert [p.path.name for p in partitions(tmp_path, Config())] == ["a.jsonl", "b.jsonl"]


def test_a_huge_line_is_cut_and_counted_once(segment):
    config = Config(max_line_bytes=1000)
    path = segment(LINES[0] + b"\n" + b"y" * 300_000 + b"\n" + LINES[1] + b"\n")
    (partition,) = partitions(path, config)
    records = list(read(partition, 0, partition.end, config))
    assert [len(r.raw) for r in records] == [len(LINES[0]), 1001, len(LINES[1])]
    middle = records[1].offset + 150_000
    halves = [*read(partition, 0, middle, config), *read(partition, middle, partition.end, config)]
    assert halves == records
    assert everything(segment(b"y" * 300_000, "tail.jsonl"), config) == [b"y" * 1001]


def test_bytes_come_through_unchanged(segment):
    raw = bytes(n for n in range(256) if n not in (10, 13))
    assert everything(segment(raw + b"\n\xff\xfe\n")) == [raw, b"\xff\xfe"]


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(SourceError, match="no file or directory"):
        partitions(tmp_path / "missing.jsonl", Config())


def test_the_block_size_is_no_boundary(segment, monkeypatch):
    path = segment(b"\n".join(LINES) + b"\n")
    expected = everything(path)
    (partition,) = partitions(path, Config())
    for size in (1, 2, 7, 64):
        monkeypatch.setattr(palate_jsonl, "_BLOCK_BYTES", size)
        assert partitions(path, Config()) == [partition]
        assert [r.raw for r in read(partition, 301, partition.end, Config())] == [
            r for r, stop in zip(expected, _stops(), strict=True) if stop > 301
        ]


def _stops():
    total = 0
    for line in LINES:
        total += len(line) + 1
        yield total


def test_an_empty_folder_is_a_source_that_has_nothing_yet(tmp_path):
    assert partitions(tmp_path, Config()) == []


def test_cuts_lie_at_ends_of_lines_and_lose_nothing(segment, monkeypatch):
    draw = random.Random(1)
    for size in (1, 7, 64, 500):
        monkeypatch.setattr(palate_jsonl, "_CUT_BYTES", size)
        for end in (b"\n", b"\r\n\n", b""):
            path = segment(b"\n".join(LINES) + end)
            (partition,) = partitions(path, Config())
            for lo in (0, draw.randint(0, partition.end), partition.end):
                found = list(cuts(partition, lo, partition.end, Config()))
                edges = [lo, *(cut.offset for cut in found), partition.end]
                assert edges == sorted(edges) and len(set(edges[:-1])) == len(edges) - 1
                whole = list(read(partition, lo, partition.end, Config()))
                assert [r for a, b in pairwise(edges) for r in read(partition, a, b, Config())] == whole
                for (a, b), cut in zip(pairwise(edges), found, strict=False):
                    assert len(list(read(partition, a, b, Config()))) <= cut.records
