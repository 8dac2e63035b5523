"""A job: what is done is kept, what is damaged is made again, what belongs to something else is refused."""

from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import DataError, OutputError
from tessearth.storage.files import LOCK
from tessearth.storage.jobs import JOURNAL, PLAN, ArrayFile, Job, Place, open_job
from tessearth.storage.sealed import checksum, checksum_of_plain

BUSY = OutputError("another process is at work here")
PLAN_OF_TWO = {"rows": 4, "columns": 3}


def array_file(folder: Path) -> ArrayFile:
    """Three chunks of four rows of three numbers."""
    (folder / "array.raw").touch()
    return ArrayFile(folder / "array.raw", np.float16, lambda number: Place(24 * number, (4, 3)))


def chunk(number: int) -> np.ndarray:
    return np.full((4, 3), number + 0.5, np.float16)


def begin(folder: Path, *numbers: int) -> None:
    """A job that ends after some chunks."""
    with pytest.raises(KeyboardInterrupt), open_job(folder, busy=BUSY) as job:
        job.begin(PLAN_OF_TWO, lambda: {"scale": 2.0})
        job.chunks = array_file(folder)
        for number in numbers:
            job.put(number, chunk(number), note=number)
        raise KeyboardInterrupt


def test_a_job_goes_on_with_what_is_missing_and_leaves_nothing(tmp_path: Path) -> None:
    begin(tmp_path / "job", 2, 0)
    with open_job(tmp_path / "job", busy=BUSY) as job:
        assert job.begin(PLAN_OF_TWO, lambda: pytest.fail("chosen once")) == {"scale": 2.0}
        job.chunks = array_file(job.folder)
        assert job.missing(3) == [1]
        assert [job.entries[number].notes for number in (0, 2)] == [{"note": 0}, {"note": 2}]
        job.put(1, chunk(1))
        for number in range(3):
            np.testing.assert_array_equal(job.get(number), chunk(number))
        job.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_ends_before_its_first_chunk_leaves_nothing(tmp_path: Path) -> None:
    begin(tmp_path / "job")
    assert list(tmp_path.iterdir()) == []


def test_damaged_chunks_and_lines_are_made_again(tmp_path: Path) -> None:
    begin(tmp_path / "job", 0, 1, 2)
    content = bytearray((tmp_path / "job" / "array.raw").read_bytes())
    content[3] ^= 1
    (tmp_path / "job" / "array.raw").write_bytes(content)
    journal = tmp_path / "job" / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b'"note": 2', b'"note": 3'))
    with open_job(tmp_path / "job", busy=BUSY) as job:
        job.chunks = array_file(job.folder)
        assert job.intact(0) is None
        with pytest.raises(DataError, match=r"chunk 0 in .* is damaged; run it again, and it is computed anew"):
            job.get(0)
        assert job.missing(3) == [0, 2]


def test_a_chunk_about_something_else_is_not_taken(tmp_path: Path) -> None:
    with open_job(tmp_path / "job", busy=BUSY) as job:
        job.chunks = array_file(job.folder)
        job.put(0, chunk(0), about=b"these places")
        assert job.intact(0, about=b"those places") is None
        assert job.intact(0, about=b"these places") is not None


def test_another_plan_is_refused_and_a_damaged_one_too(tmp_path: Path) -> None:
    begin(tmp_path / "job", 0)
    job = Job(tmp_path / "job")
    with pytest.raises(DataError, match=r"unfinished work of other settings \(rows was 4 and is 5\); remove it, or"):
        job.begin({**PLAN_OF_TWO, "rows": 5})
    plan = job.folder / PLAN
    plan.write_text(plan.read_text().replace("2.0", "3.0"))
    with pytest.raises(DataError, match=r"plan\.json cannot be read or is damaged; remove .* to begin again"):
        job.begin(PLAN_OF_TWO)


def test_lines_of_version_0_1_are_read(tmp_path: Path) -> None:
    digest = checksum(chunk(1))
    (tmp_path / JOURNAL).write_text(f'{{"chunk": 1, "sha256": "{digest}"}}\n{{"chunk": 2, "sha')
    assert [(number, entry.sha256) for number, entry in Job(tmp_path).entries.items()] == [(1, digest)]


def test_a_second_process_is_turned_away_and_the_lock_goes_with_the_job(tmp_path: Path) -> None:
    with (
        open_job(tmp_path / "job", busy=BUSY) as job,
        pytest.raises(OutputError, match="another process is at work here"),
        open_job(tmp_path / "job", busy=OutputError("another process is at work here")),
    ):
        pytest.fail("two hold one folder")
    job.chunks = array_file(tmp_path)
    begin(tmp_path / "job", 0)
    assert not (tmp_path / "job" / LOCK).exists()


def test_checksums_are_those_of_sha256(tmp_path: Path) -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert checksum(numbers) == checksum(numbers.tobytes())
    assert checksum(numbers.T) == checksum(np.ascontiguousarray(numbers.T).tobytes())
    assert checksum(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert checksum(b"", about=b"") != checksum(b"")
    assert checksum_of_plain({"b": 1, "a": [2]}) == checksum(b'{"a": [2], "b": 1}')
