"""Takes every protection out in turn, in a copy of the source, and runs the tests that should then fail.

make fault-mutations            all of them, some minutes; the table goes to benchmarks/results/fault_mutations.md
python -m tests.faults.mutations lock        those whose name has the word in it, no table
"""

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "benchmarks" / "results" / "fault_mutations.md"
SECONDS = 420.0
STATUS = "status"
SHARED = (
    "torch",
    "torch._dynamo",
    "pytest",
    "pandas",
    "pyarrow.parquet",
    "hypothesis",
    "safetensors.torch",
    "PIL.Image",
)
"""Imported once, for all the processes that tests are run in; nothing of ours is among them."""


class Mutation(NamedTuple):
    """A protection, where it stands, what is left without it, and the tests that fail then (any of them)."""

    protection: str
    file: str
    old: str
    new: str
    tests: str
    """A file of this folder, then names with spaces between them; all of the file when there are none."""


KILLS, BITS, DISKS = "test_kills.py", "test_bits.py", "test_disks.py"
PROCESSES, UNFINISHED, DOWNLOADS = "test_processes.py", "test_unfinished.py", "test_downloads.py"
STORES = "../imagery/test_store.py"
STORE_BITS = f"{BITS} test_no_damaged_store_is_believed"
ONE_BIT = f"{BITS} test_no_file_with_a_turned_bit_is_believed"
FULL_DISK = f"{DISKS} test_a_full_disk_is_one_line_and_with_room_the_work_goes_on"

MUTATIONS = [
    Mutation(
        "kill: a file is written beside its place",
        "files.py",
        'descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)',
        "temporary, descriptor = str(target), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)",
        f"{KILLS} test_what_was_there_before_a_kill_stays_and_the_next_write_tidies_up",
    ),
    Mutation(
        "kill: what a killed process left is removed",
        "files.py",
        "    _remove_abandoned(target)\n",
        "",
        f"{KILLS} test_what_was_there_before_a_kill_stays_and_the_next_write_tidies_up",
    ),
    Mutation(
        "kill: a run goes on from its checkpoint",
        "pretraining/loop.py",
        "            self.stepper.restore_(checkpoint.state)\n",
        "",
        f"{KILLS} test_killed_again_and_again_it_comes_to_the_same_result[pretrain]",
    ),
    Mutation(
        "kill: workers end with their parent",
        "inference/cluster.py",
        ', multiprocessing.get_context("spawn"), initializer=_follow_parent)',
        ', multiprocessing.get_context("spawn"))',
        f"{KILLS} test_several_workers_end_with_the_process_that_started_them",
    ),
    Mutation(
        "kill: what Zarr left half-written is removed",
        "inference/raster_zarr.py",
        "            left.unlink()\n",
        "            pass\n",
        f"{KILLS} test_killed_at_every_moment_it_comes_to_the_same_result[raster zarr]",
    ),
    Mutation(
        "kill, full disk: a store's manifest comes before its array",
        "imagery/store_builder.py",
        "    write_manifest(path, manifest)  # before the array: one without",
        "    allocate_array(path / FEATURES, feature_shape(manifest), recipe.dtype)\n"
        "    write_manifest(path, manifest)  # one without",
        f"{FULL_DISK}[features]",
    ),
    Mutation(
        "full disk: an error of the system becomes one line",
        "files.py",
        'return disk_errors_named(str(path), "nothing was left half-written")',
        "return contextlib.nullcontext()",
        f"{DISKS} test_a_full_disk_leaves_the_old_database_as_it_was",
    ),
    Mutation(
        "full disk: the half-written file is removed",
        "files.py",
        "            os.unlink(temporary)\n",
        "            pass\n",
        f"{DISKS} test_a_full_disk_leaves_the_old_database_as_it_was",
    ),
    Mutation(
        "full disk: room for a raster is looked for first",
        "inference/raster_job.py",
        "    if size > free:",
        "    if False:",
        f"{DISKS} test_a_disk_too_small_for_a_raster_is_found_before_it_is_begun",
    ),
    Mutation(
        "full disk: a raster says what is kept",
        "files.py",
        "    except OutputError:\n        raise\n    except OSError as error:\n",
        "    except OSError:\n        raise\n    except ZeroDivisionError as error:\n",
        f"{FULL_DISK}[raster zarr]",
    ),
    Mutation(
        "full disk: reserving room for a GeoTIFF says so too",
        "inference/rasters.py",
        "        with keeping_what_is_finished(folder):\n            target.prepare()",
        "        if True:\n            target.prepare()",
        f"{FULL_DISK}[raster tif]",
    ),
    Mutation(
        "full disk: a cache that cannot be written stops nothing",
        "evaluation/cache.py",
        "        with contextlib.suppress(OutputError):\n            about",
        "        with contextlib.nullcontext():\n            about",
        f"{DISKS} test_a_cache_on_a_full_disk_is_no_reason_to_stop",
    ),
    Mutation(
        "read-only: a folder that cannot be made is one line",
        "files.py",
        '            raise OutputError(f"cannot make {path}: {(error.strerror or str(error)).lower()}") from error',
        "            raise",
        f"{DISKS} test_a_read_only_folder_is_one_line_and_nothing_is_left",
    ),
    Mutation(
        "read-only: a cache folder that cannot be made stops nothing",
        "evaluation/cache.py",
        "            with contextlib.suppress(OutputError):  # then nothing is kept",
        "            with contextlib.nullcontext():",
        f"{DISKS} test_a_read_only_cache_is_no_reason_to_stop",
    ),
    Mutation(
        "read-only: what cannot be kept is used from memory",
        "labels/prepared.py",
        "        return _in_memory(arrays, described)",
        "        raise",
        f"{DISKS} test_a_read_only_cache_is_no_reason_to_stop",
    ),
    Mutation(
        "bits: weights",
        "encoder/weights.py",
        'if header.get("sha256") != _digest(header.get("config", ""), tensors):',
        "if False:",
        f"{ONE_BIT}[weights]",
    ),
    Mutation(
        "bits: what weights say of their making",
        "encoder/weights.py",
        'if header.get("provenance_sha256", said) != said:',
        "if False:",
        f"{BITS} test_no_file_with_any_turned_bit_is_believed[weights]",
    ),
    Mutation(
        "bits: weights of the official layout",
        "encoder/weights.py",
        'if header.get(OFFICIAL_CHECKSUM) not in (None, _digest("", tensors)):',
        "if False:",
        f"{ONE_BIT}[weights of the official layout]",
    ),
    Mutation(
        "bits: checkpoints, baselines, filters, heads, priors",
        "weight_files.py",
        "if seal is not None and seal != _checksum(tensors, header):",
        "if False:",
        f"{ONE_BIT}[checkpoint]",
    ),
    Mutation(
        "bits: ONNX files",
        "inference/onnx_embedder.py",
        "    if found is not None:\n",
        "    if False:\n",
        f"{BITS} test_no_damaged_onnx_file_is_believed",
    ),
    Mutation(
        "bits: caches",
        "labels/prepared.py",
        'if notes.get("sha256") != _checksum(arrays, notes.get("about", "")):',
        "if False:",
        f"{ONE_BIT}[prepared cache]",
    ),
    Mutation(
        "bits: parts of tables, the land cache",
        "files.py",
        "    if seal != _seal(content, about):",
        "    if False:",
        f"{ONE_BIT}[land cache]",
    ),
    Mutation(
        "bits: databases and trajectories",
        "inference/retrieval.py",
        "if archive.zip.testzip() is not None:",
        "if False:",
        f"{BITS} test_a_width_that_lost_a_bit_is_refused",
    ),
    Mutation(
        "bits: a store's features",
        "imagery/store.py",
        '        self._verify(FEATURES, self.features, self.manifest["chunks"])\n',
        "",
        f"{STORE_BITS}[features.npy]",
    ),
    Mutation(
        "bits: a store's components",
        "imagery/store.py",
        '            self._verify(COMPONENTS, self.components, self.manifest["components"].get("chunks", []))\n',
        "",
        f"{STORE_BITS}[components.npy]",
    ),
    Mutation(
        "bits: a store's directions",
        "imagery/store.py",
        "if expected is not None and _content_sha256(self.path / DIRECTIONS) != expected:",
        "if False:",
        f"{STORE_BITS}[components.safetensors]",
    ),
    Mutation(
        "bits: a store's places",
        "imagery/store.py",
        'if places_sha256(places) != manifest["places_sha256"]:',
        "if False:",
        f"{STORE_BITS}[places.parquet]",
    ),
    Mutation(
        "bits: a store's manifest",
        "imagery/store.py",
        "if manifest.pop(CHECKSUM, None) != _manifest_sha256(manifest):",
        "if not manifest.pop(CHECKSUM, None):",
        f"{STORE_BITS}[manifest.json]",
    ),
    Mutation(
        "bits: a large store before training",
        "pretraining/loop.py",
        "FeatureStore(store, verify=first)",
        "FeatureStore(store)",
        f"{BITS} test_a_large_store_is_verified_before_it_is_trained_on",
    ),
    Mutation(
        "bits: chunks of an unfinished store",
        "imagery/store_builder.py",
        "done = keep_intact(path, manifest, read_journal(path, -(-total // size)))",
        "done = read_journal(path, -(-total // size))",
        f"{UNFINISHED} test_no_damage_to_unfinished_work_is_believed[features]",
    ),
    Mutation(
        "bits: the array of an unfinished store",
        "imagery/store_builder.py",
        "        restore_array(path / FEATURES, feature_shape(manifest), recipe.dtype)\n",
        "",
        f"{UNFINISHED} test_an_array_that_is_gone_is_made_again",
    ),
    Mutation(
        "bits: the scale of an unfinished raster",
        "inference/raster_job.py",
        'intact = old["sha256"] == _plan_sha256(known, fitted)',
        "intact = True",
        f"{UNFINISHED} test_a_scale_that_lost_a_bit_is_refused",
    ),
    Mutation(
        "bits: windows on their way into a raster",
        "inference/raster_job.py",
        "if numbers is None or window_sha256(numbers) != self.entries[number].sha256:",
        "if numbers is None:",
        f"{UNFINISHED} test_a_window_that_is_damaged_while_the_output_is_made_is_in_no_output",
    ),
    Mutation(
        "bits: what describes an unfinished Zarr store",
        "inference/raster_zarr.py",
        "            os.replace(file, place)\n",
        "            place.exists() or os.replace(file, place)\n",
        f"{UNFINISHED} test_no_damage_whatever_to_unfinished_work_is_believed[raster zarr]",
    ),
    Mutation(
        "bits: chunks of a finished Zarr store",
        "inference/raster_zarr.py",
        "checksum=True",
        "checksum=False",
        f"{UNFINISHED} test_a_finished_zarr_store_tells_its_readers_of_a_turned_bit",
    ),
    Mutation(
        "two processes: the lock of a folder",
        "files.py",
        "            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        except OSError:",
        "            pass\n        except OSError:",
        f"{PROCESSES} test_a_second_process_is_turned_away_and_disturbs_nothing",
    ),
    Mutation(
        "two processes: a lock that was removed binds nobody",
        "files.py",
        "        if _is_at(lock, path / LOCK):\n",
        "        if True:\n",
        f"{PROCESSES} test_a_lock_whose_folder_was_removed_binds_nobody",
    ),
    Mutation(
        "two processes: the lock of a file being written",
        "files.py",
        "            fcntl.flock(file, fcntl.LOCK_EX)\n",
        "            pass\n",
        f"{PROCESSES} test_two_writers_of_one_file_do_not_take_each_other_for_dead",
    ),
    Mutation(
        "two processes: a store that was finished meanwhile",
        "imagery/store_builder.py",
        '        if is_store(path) and read_manifest(path)["complete"]:  # another process finished it a moment ago\n',
        "        if False:\n",
        f"{PROCESSES} test_a_store_that_another_process_finished_meanwhile_is_only_opened",
    ),
    Mutation(
        "clock: a table's date has no say",
        "inference/table_jobs.py",
        '        "columns": [job.lat, job.lon],',
        '        "columns": [job.lat, job.lon], "modified": Path(job.source).stat().st_mtime_ns,',
        f"{PROCESSES} test_a_tables_date_has_no_say_in_what_is_done",
    ),
    Mutation(
        "clock: parts know their places",
        "inference/parts.py",
        'return np.ascontiguousarray(latlon, dtype="<f8").tobytes()',
        'return b""',
        f"{PROCESSES} test_a_table_that_changed_under_its_old_date_is_noticed",
    ),
    Mutation(
        "download: an answer that broke off",
        "imagery/sources/tile_stores.py",
        "if promised.isdecimal() and len(content) < min(int(promised), MOST_BYTES):",
        "if False:",
        f"{DOWNLOADS} test_a_tile_that_always_breaks_off_is_an_error_and_never_missing",
    ),
    Mutation(
        "download: a second attempt",
        "imagery/sources/tile_stores.py",
        "            except (OSError, http.client.HTTPException) as error:\n",
        "            except ZeroDivisionError as error:\n",
        f"{DOWNLOADS} test_a_tile_that_broke_off_is_asked_for_again",
    ),
    Mutation(
        "download: one that trickles in",
        "imagery/sources/tile_stores.py",
        "        if time.monotonic() > deadline:\n",
        "        if False:\n",
        f"{DOWNLOADS} test_a_server_that_trickles_or_is_silent_is_not_waited_for",
    ),
    Mutation(
        "download: a hub that breaks off is one line",
        "models/hub.py",
        "    except Exception as error:  # the hub client",
        "    except ZeroDivisionError as error:  # the hub client",
        f"{DOWNLOADS} test_a_model_whose_download_breaks_off_is_refused_and_comes_whole_the_next_time",
    ),
    Mutation(
        "memory: a worker without any is one line",
        "inference/table_jobs.py",
        "            if is_out_of_memory(error):",
        "            if False:",
        f"{PROCESSES} test_want_of_memory_is_one_line_and_with_memory_the_work_goes_on",
    ),
    Mutation(
        "kill: a process that reads tiles",
        "imagery/reading_ahead.py",
        "    except (EOFError, OSError):\n        raise DataError(",
        "    except ZeroDivisionError:\n        raise DataError(",
        f"{STORES} test_a_reading_process_that_is_killed_is_named_and_the_store_goes_on",
    ),
    Mutation(
        "hang: workers that do nothing are ended",
        "inference/cluster.py",
        "                process.kill()\n",
        "                pass\n",
        f"{PROCESSES} test_a_worker_that_hangs_is_told_from_one_that_thinks",
    ),
    Mutation(
        "hang: workers that think are left alone",
        "inference/cluster.py",
        "if now - self._before < IDLE_CPU_SECONDS:",
        "if True:",
        f"{PROCESSES} test_a_worker_that_hangs_is_told_from_one_that_thinks",
    ),
]


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if all(word in m.protection for word in words)]
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for module in SHARED:
            importlib.import_module(module)
        rows = [(mutation, *_try(mutation, source)) for mutation in chosen]
    _write_table({mutation.protection: caught for mutation, caught, _ in rows})
    return 0 if all(caught for _, caught, _ in rows) else 1


def _try(mutation: Mutation, source: Path) -> tuple[bool, float]:
    path, start = source / "tessearth" / mutation.file, time.monotonic()
    whole = path.read_text()
    if whole.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.protection}: {mutation.file} has the protection {whole.count(mutation.old)} times")
    path.write_text(whole.replace(mutation.old, mutation.new))
    (source.parent / STATUS).write_text("-2")  # unless pytest comes to an end
    try:
        status = _run(mutation.tests, source)
    finally:
        path.write_text(whole)
    caught, seconds = status == 1, time.monotonic() - start
    print(f"{'caught' if caught else f'SURVIVED ({status})':14} {mutation.protection} ({seconds:.0f} s)", flush=True)
    if status not in (0, 1):
        print((source.parent / "log").read_text()[-3000:])
    return caught, seconds


def _run(tests: str, source: Path) -> int:
    """The status of pytest in a fork of this process, which imports the mutated copy: 1 when a test failed."""
    file, _, names = tests.partition(" ")
    path = f"tests/faults/{file}"
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(source))
        quiet = os.open(source.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            _pytest(["-x", "-q", "--assert=plain", f"{path}::{names}" if names else path], source)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(0)  # whatever happened: what follows belongs to the parent
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return int((source.parent / STATUS).read_text())
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _pytest(arguments: list[str], source: Path) -> None:
    import pytest

    status = int(pytest.main(arguments))
    import tessearth

    assert str(tessearth.__file__).startswith(str(source)), "the copy was not used"
    (source.parent / STATUS).write_text(str(status))


def _write_table(found: dict[str, bool]) -> None:
    """What was found now, and of the protections that were not tried now what was found before."""
    before = TABLE.read_text().splitlines() if TABLE.exists() else []
    verdicts = {row.split(" | ")[0].removeprefix("| "): row.endswith("| caught |") for row in before}
    verdicts |= found
    known = [mutation for mutation in MUTATIONS if mutation.protection in verdicts]
    caught = sum(verdicts[mutation.protection] for mutation in known)
    lines = [
        "# Protections taken out, one at a time",
        "",
        f"`make fault-mutations`: without it a test fails, for {caught} of {len(known)} protections.",
        "",
        "| protection | in src/tessearth | test in tests/faults that fails without it | |",
        "|---|---|---|---|",
    ]
    for mutation in known:
        verdict = "caught" if verdicts[mutation.protection] else "SURVIVED"
        test = mutation.tests.replace(" ", "::", 1)
        lines.append(f"| {mutation.protection} | {mutation.file} | {test} | {verdict} |")
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
