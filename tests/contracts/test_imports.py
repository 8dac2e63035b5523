"""What importing costs, and that every module imports with the core dependencies alone."""

import pkgutil
import subprocess
import sys

import pytest

import tessearth

OPTIONAL = (
    "PIL",
    "antimeridian",
    "astropy",
    "dask",
    "distributed",
    "fastapi",
    "geopandas",
    "h3",
    "huggingface_hub",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "pandas",
    "playwright",
    "prometheus_client",
    "pydantic",
    "pyproj",
    "rasterio",
    "schemathesis",
    "scipy",
    "shapely",
    "sklearn",
    "starlette",
    "tensorboard",
    "transformers",
    "uvicorn",
    "xarray",
    "zarr",
)

BLOCKER = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def module_names() -> list[str]:
    found = pkgutil.walk_packages(tessearth.__path__, "tessearth.")
    return [module.name for module in found if module.name != "tessearth.__main__"]


def test_importing_the_package_loads_no_torch() -> None:
    heavy = "('torch', 'numpy', 'pyarrow', 'typer')"
    assert run(f"import sys, tessearth; dir(tessearth); print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_every_public_name_is_there() -> None:
    for name in tessearth.__all__:
        assert getattr(tessearth, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tessearth.nothing


def test_every_module_imports_first_and_with_the_core_dependencies_alone() -> None:
    names = module_names()
    assert len(names) > 20
    code = f"""
import importlib, torch
for name in {names!r}:
    importlib.import_module(name)
    for loaded in [one for one in sys.modules if one.partition(".")[0] == "tessearth"]:
        del sys.modules[loaded]
"""
    run(BLOCKER + code)


def test_what_needs_an_extra_says_which() -> None:
    code = BLOCKER + (
        "import tessearth\ntry: tessearth.LocationFeatures()\nexcept tessearth.TessearthError as error: print(error)"
    )
    assert run(code) == ("LocationFeatures needs an optional part that is not installed: pip install 'tessearth[eval]'")


def test_the_core_embeds_without_any_extra(tmp_path: object) -> None:
    code = BLOCKER + (
        "import torch, tessearth\n"
        "from tessearth.encoder.config import TessellationConfig\n"
        "config = tessearth.EncoderConfig(tessellations=(TessellationConfig(num_sites=9, site_dim=4),), output_dim=8)\n"
        "encoder = tessearth.SphericalVoronoiEncoder(config, sites='full')\n"
        f"tessearth.save(encoder, {str(tmp_path)!r} + '/m')\n"
        f"print(tessearth.Embedder({str(tmp_path)!r} + '/m')([(48.0, 2.0)]).shape)"
    )
    assert run(code) == "(1, 8)"
