"""The notebooks of examples/ run from top to bottom in an empty folder."""

import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST_BYTES = 600_000


def test_there_are_four_notebooks_and_none_is_heavy() -> None:
    assert len(NOTEBOOKS) == 4
    for notebook in NOTEBOOKS:
        assert notebook.stat().st_size < LARGEST_BYTES, notebook.name
        cells = nbformat.read(notebook, as_version=4).cells
        assert all(
            cell.outputs or cell.source.lstrip().startswith(("%%writefile", "from", "import"))
            for cell in cells
            if cell.cell_type == "code"
        )


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_notebook(notebook, tmp_path)


def run_notebook(notebook: Path, folder: Path) -> object:
    """The notebook with its outputs; an error in any cell is raised."""
    read = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(read, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    return client.execute()
