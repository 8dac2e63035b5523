"""A million places at the paper's size, in the memory that was promised. Minutes long: `make test-slow`."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.memory import PEAK, peak_of

PLACES = 1_000_000
THREADS = 2

pytestmark = pytest.mark.slow


def random_places() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"lat": rng.uniform(-90, 90, PLACES), "lon": rng.uniform(-180, 180, PLACES)})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_encoding_a_million_rows_peaks_under_one_and_a_half_gigabytes(tmp_path: Path, suffix: str) -> None:
    source, target = tmp_path / f"points.{suffix}", tmp_path / "out.parquet"
    frame = random_places()
    frame.to_csv(source, index=False) if suffix == "csv" else frame.to_parquet(source)
    command = (sys.executable, "-m", "tessearth", "encode", "--input", str(source), "--out", str(target))
    peak = peak_of(*command, threads=THREADS)
    print(f"\npeak resident memory of encoding {PLACES:,} rows from {suffix}: {peak / 1e6:,.0f} MB")
    assert pq.read_metadata(target).num_rows == PLACES
    assert peak < 1.5e9


def test_embedding_a_million_places_adds_under_half_a_gigabyte_to_the_result(tmp_path: Path) -> None:
    code = """
import sys
import numpy as np, tessearth
embed = tessearth.Embedder("untrained")
rng = np.random.default_rng(0)
latlon = np.stack([rng.uniform(-90, 90, 1_000_000), rng.uniform(-180, 180, 1_000_000)], axis=1)
embed(latlon[:10])
before = peak()
result = embed.embed(latlon)
open(sys.argv[1], "w").write(str(peak() - before - result.nbytes))
"""
    peak_of(sys.executable, "-c", PEAK + code, str(tmp_path / "added"), threads=THREADS)
    added = int((tmp_path / "added").read_text())
    print(f"\nembedding {PLACES:,} places adds {added / 1e6:,.0f} MB beyond the array it returns")
    assert added < 0.5e9
