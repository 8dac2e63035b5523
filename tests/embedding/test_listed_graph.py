"""Levels in exported files: the embeddings of every site's weight, from the lists alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth import Embedder
from tessearth.embedding import listed_graph
from tessearth.embedding.exporting import export
from tessearth.embedding.listed_graph import ListedGraph
from tessearth.embedding.onnx import OnnxEmbedder
from tessearth.sphere import cell_keys, fibonacci_lattice, latlon_to_xyz
from tests.embedding.test_export import EDGES, places
from tests.embedding.test_levels import ENCODER, NEAR


def test_a_graph_finds_the_cells_that_the_library_finds() -> None:
    graph = ListedGraph(ENCODER.voronois()[2])
    xyz = torch.cat((fibonacci_lattice(999), torch.from_numpy(NEAR), torch.eye(3), latlon_to_xyz(torch.tensor(EDGES))))
    keys = cell_keys(xyz.float())
    assert torch.equal(graph.key(xyz.float()), keys)
    assert torch.equal(graph.find(keys), torch.searchsorted(graph.keys, keys, right=True) - 1)


def test_exported_levels_give_the_embeddings_of_every_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_graph, "MOST_DENSE", 500)
    assert export(ENCODER, tmp_path / "m.onnx").difference <= 1e-5
    plain = Embedder(ENCODER, device="cpu", strategy="plain")
    for latlon in (places(1), places(300), EDGES):
        np.testing.assert_allclose(OnnxEmbedder(tmp_path / "m.onnx").embed(latlon), plain.embed(latlon), atol=1e-5)
