"""Event segments: what was recorded is read, also after kill -9, a full disk, a slow disk, and at the bound on disk."""

import os
from pathlib import Path

import pytest

from penstock.errors import CallerError, OperatorError
from penstock.events import BadSegment, EventWriter, Gap, Kind, Segment, finished, gaps, kind_name, list_segments
from penstock.events.record import RECORD, SLOT_BYTES, VERSION
from penstock.events.segment import HEADER_BYTES
from penstock.events.writer import Batch
from penstock.lake.coverage import Coverage
from penstock.lake.segments import last_seq, plan

ID = "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"


def read_all(directory: Path) -> list[tuple[int, int, int]]:
    """Return (epoch, seq, kind) of every event of a directory."""
    rows = []
    for file in list_segments(directory):
        columns = Segment(file.path).read()
        rows += [(file.epoch, seq, kind) for seq, kind in zip(columns.seq, columns.kind, strict=True)]
    return rows


def numbers(directory: Path) -> list[tuple[int, int]]:
    """Return (first seq, number of events) of every row; `lost` stands for several."""
    rows = []
    for file in list_segments(directory):
        columns = Segment(file.path).read()
        for seq, kind, size in zip(columns.seq, columns.kind, columns.size, strict=True):
            rows.append((seq, (size or 0) if kind == Kind.LOST else 1))
    return rows


def assert_no_gap(rows: list[tuple[int, int]], until: int) -> None:
    """Numbers follow each other from 1 up to `until`."""
    expected = 1
    for seq, count in rows:
        assert seq == expected
        expected += count
    assert expected == until


def test_every_field_comes_back(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(
        Kind.NACKED, ID, "mail", at=1_700_000_000_000_001, created=1_700_000_000_000_000, until=1_700_000_001_000_000,
        attempt=3, node="abcd", worker="w1", error="ValueError: no", to_queue="mail-dead", size=12,
    )  # fmt: skip
    writer.record(Kind.SAMPLE, queue="mail", at=5, size=7)
    assert writer.close()
    (file,) = list_segments(tmp_path)
    assert (file.writer, file.epoch, file.first_seq) == ("n1", writer.epoch, 1)
    columns = Segment(file.path).read()
    assert (columns.writer, columns.epoch, columns.seq) == ("n1", writer.epoch, [1, 2])
    assert columns.at == [1_700_000_000_000_001, 5]
    assert columns.created == [1_700_000_000_000_000, None]
    assert columns.until == [1_700_000_001_000_000, None]
    assert columns.kind == [Kind.NACKED, Kind.SAMPLE]
    assert (columns.job, columns.queue, columns.to_queue) == ([ID, None], ["mail", "mail"], ["mail-dead", None])
    assert (columns.attempt, columns.size) == ([3, 0], [12, 7])
    assert (columns.node, columns.worker, columns.error) == (["abcd", None], ["w1", None], ["ValueError: no", None])
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_second_close_leaves_the_files_of_others_open(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(Kind.ADDED, ID, "mail")
    assert writer.close()
    with (tmp_path / "other").open("wb") as other:  # it may have the number that the lock had
        assert writer.close()
        other.write(b"still open")
        other.flush()
    assert Segment(list_segments(tmp_path)[0].path).read().seq == [1]


@pytest.mark.parametrize("job", ["x" * 41, "x" * 300, "é", "short", "x" * 40])
def test_ids_of_any_length_come_back(tmp_path: Path, job: str) -> None:
    writer = EventWriter(tmp_path, "n1")
    for _ in range(2):
        writer.record(Kind.ADDED, job, "q")
    writer.close()
    assert Segment(list_segments(tmp_path)[0].path).read().job == [job, job]


def test_a_long_text_is_cut_at_a_character(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(Kind.NACKED, ID, "q", error="x" + "é" * 1000)
    writer.record(Kind.ACKED, ID, "q")
    writer.close()
    columns = Segment(list_segments(tmp_path)[0].path).read()
    assert columns.error == ["x" + "é" * 511, None]
    assert columns.seq == [1, 2]


def test_a_kind_of_a_newer_version_is_kept(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(77, ID, "q")
    writer.close()
    columns = Segment(list_segments(tmp_path)[0].path).read()
    assert columns.kind == [77]
    assert kind_name(77) == "kind-77"
    assert kind_name(Kind.ACKED) == "acked"


def test_reading_starts_at_a_number_and_ends_at_a_limit(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    for number in range(20):
        writer.record(Kind.ADDED, f"{number}" * 50, f"q{number}")  # two definitions each
    writer.close()
    segment = Segment(list_segments(tmp_path)[0].path)
    assert segment.read(8).seq == list(range(8, 21))
    columns = segment.read(8, limit=5)
    assert (columns.seq, columns.queue) == ([8, 9, 10, 11, 12], ["q7", "q8", "q9", "q10", "q11"])
    assert segment.read(8, limit=100).seq == list(range(8, 21))
    assert segment.read(21).seq == []
    assert segment.next_seq() == 21


@pytest.mark.parametrize("cut", [1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 50])
def test_a_torn_end_is_read_to_the_last_whole_record(tmp_path: Path, cut: int) -> None:
    writer = EventWriter(tmp_path, "n1")
    for _ in range(5):
        writer.record(Kind.ADDED, ID, "q")
    writer.flush()
    writer._files.close(5)  # as after kill -9: no END
    (file,) = list_segments(tmp_path)
    os.truncate(file.path, file.size - cut)
    segment = Segment(file.path)
    assert segment.read().seq == ([1, 2, 3, 4] if cut <= SLOT_BYTES else [1, 2, 3])
    assert not segment.is_closed()


def test_zeros_at_the_end_are_no_events(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(Kind.ADDED, ID, "q")
    writer.flush()
    writer._files.close(5)
    (file,) = list_segments(tmp_path)
    with file.path.open("ab") as stream:
        stream.write(bytes(3 * SLOT_BYTES))
    assert Segment(file.path).read().seq == [1]


def test_a_new_start_is_a_new_epoch(tmp_path: Path) -> None:
    for _ in range(3):
        writer = EventWriter(tmp_path, "n1")
        writer.record(Kind.ADDED, ID, "q")
        writer.close()
    rows = read_all(tmp_path)
    assert [seq for _, seq, _ in rows] == [1, 1, 1]
    assert len({epoch for epoch, _, _ in rows}) == 3
    assert all(Segment(file.path).is_closed() for file in list_segments(tmp_path))


def test_segments_end_by_size_and_by_time(tmp_path: Path) -> None:
    now = [0.0]
    writer = EventWriter(tmp_path, "n1", segment_bytes=10 * SLOT_BYTES, clock=lambda: now[0])
    for _ in range(25):
        writer.record(Kind.ADDED, ID, "q")
        writer.flush()
    now[0] += 61
    writer.record(Kind.ADDED, ID, "q")
    writer.flush()
    writer.record(Kind.ADDED, ID, "q")
    writer.close()
    assert [file.first_seq for file in list_segments(tmp_path)] == [1, 10, 19, 27]
    assert_no_gap(numbers(tmp_path), 28)


def test_a_burst_of_patient_turns_goes_to_the_thread_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    writer = EventWriter(tmp_path, "n1", clock=lambda: now[0])
    handed: list[int] = []

    def put(batch: Batch, size: int) -> None:
        handed.append(batch.slots.count(ID.encode()))
        writer._files.taken_bytes += size  # the disk takes no time

    def turn() -> None:
        writer.record(Kind.ADDED, ID, "q")
        writer.flush(is_patient=True)

    with monkeypatch.context() as patch:
        writer._files.taken_bytes = writer._handed_bytes
        patch.setattr(writer._files, "put", put)
        now[0] += 1
        for _ in range(5):
            turn()
        assert handed == [1], "the first one after a pause at once"
        now[0] += 1
        turn()
        turn()
        assert handed == [1, 5]
        writer.flush()
        assert handed == [1, 5, 1]
        for _ in range(1000):
            turn()
        assert handed[3] > 500, "no more than PATIENT_BYTES wait"
    writer.close()


def test_two_writers_of_one_name_are_refused(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    with pytest.raises(OperatorError, match="another process writes there"):
        EventWriter(tmp_path, "n1")
    writer.close()
    EventWriter(tmp_path, "n1").close()


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 129, "é"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CallerError, match="a writer's name must be"):
        EventWriter(tmp_path, name)


def test_at_the_bound_the_oldest_segments_leave_a_record_of_what_was_lost(tmp_path: Path) -> None:
    bound = 1 << 20
    writer = EventWriter(tmp_path, "n1", bytes_max=bound)
    for number in range(50_000):  # five times the bound
        writer.record(Kind.ADDED, ID, "q")
        if number % 500 == 0:
            writer.flush()
    writer.close()
    files = list_segments(tmp_path)
    assert sum(file.size for file in files) <= bound
    assert_no_gap(numbers(tmp_path), 50_001)
    first = Segment(files[0].path).read()
    assert (first.kind, first.error) == ([Kind.LOST], ["deleted: events-max-bytes"])
    assert (first.size[0] or 0) > 35_000


def test_a_file_that_is_no_segment_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w" / "0000000000000001-0000000000000001.events"
    path.parent.mkdir()
    path.write_bytes(b"x" * HEADER_BYTES)
    with pytest.raises(BadSegment, match="is not a segment of events"):
        Segment(path)


def test_bodies_are_beside_the_events_that_added_them(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(Kind.ADDED, ID, "q", size=3, body=b"abc")
    writer.record(Kind.ACKED, ID, "q")
    writer.record(Kind.ADDED, ID, "q", size=0, body=b"")
    writer.close()
    assert list(Segment(list_segments(tmp_path)[0].path).bodies()) == [(1, b"abc"), (3, b"")]


def test_an_epoch_that_was_killed_is_an_open_gap(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(Kind.ADDED, ID, "q")
    writer.flush()
    writer._files.close(5)
    assert gaps(tmp_path) == []  # it lives
    assert finished(tmp_path) == []
    os.close(writer._lock)
    assert gaps(tmp_path) == [Gap("n1", writer.epoch, 2, None, "the writer did not end in order")]
    assert [file.first_seq for file in finished(tmp_path)] == [1]
    later = EventWriter(tmp_path, "n1")
    later.record(Kind.ADDED, ID, "q")
    later.close()
    assert [gap.epoch for gap in gaps(tmp_path)] == [writer.epoch]


def test_a_segment_that_was_deleted_is_a_gap(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1", segment_bytes=2 * SLOT_BYTES)
    for _ in range(5):
        writer.record(Kind.ADDED, ID, "q")
        writer.flush()
    writer.close()
    files = list_segments(tmp_path)
    files[1].path.unlink()
    assert gaps(tmp_path) == [
        Gap("n1", writer.epoch, files[1].first_seq, files[2].first_seq - 1, "the segment is gone")
    ]


def test_a_flipped_bit_makes_neither_numbers_nor_times_that_can_not_be(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    for _ in range(4):
        writer.record(Kind.RESERVED, ID, "q", until=1_800_000_000_000_000)
    writer.flush()
    writer._files.close(4)
    (file,) = list_segments(tmp_path)
    data, last = file.path.read_bytes(), file.size - SLOT_BYTES
    for field, seqs in ((15, [1, 2, 3]), (23, [1, 2, 3]), (39, [1, 2, 3, 4])):  # seq, at, until
        flipped = bytearray(data)
        flipped[last + field] ^= 0x40
        file.path.write_bytes(flipped)
        segment = Segment(file.path)
        assert segment.read().seq == seqs
        assert segment.read().until[3:] == ([None] if len(seqs) == 4 else [])
        assert last_seq(file) == segment.next_seq() - 1 <= 4
        assert sum(one.events for one in plan([file], Coverage())) <= 4


def test_numbers_that_lost_events_stand_for_are_no_damage(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "n1")
    writer.record(Kind.ADDED, ID, "q")
    writer.flush()
    writer._files.close(1)
    (file,) = list_segments(tmp_path)
    head = file.path.read_bytes()[:-SLOT_BYTES]
    lost = RECORD.pack(VERSION, Kind.LOST, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0, 9000, b"")
    after = RECORD.pack(VERSION, Kind.ACKED, 1, 0, 0, 9001, 6, 0, 0, 0, 0, 0, 0, 0, 0, b"j")
    file.path.write_bytes(head + lost + after)
    assert Segment(file.path).read().seq == [1, 9001]
    assert last_seq(list_segments(tmp_path)[0]) == 9001
