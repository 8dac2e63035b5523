"""`tessearth export`: a model as a file for other programs."""

from typing import Annotated

import typer

from tessearth.cli.options import warn_if_untrained


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Any model that `tessearth encode --model` takes.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where it goes: .onnx, .pt2 or .safetensors.")],
    form: Annotated[
        str | None, typer.Option("--format", help="onnx, torch-export or safetensors [default: by the file's suffix].")
    ] = None,
) -> None:
    """Write a model for other programs; it is read back and compared with torch first, and refused beyond 1e-5.

    tessearth export untrained --format onnx --out untrained.onnx

    tessearth encode --runtime onnx --model untrained.onnx 48.8566 2.3522
    """
    from tessearth.embedding.export import export as write

    done = write(model, out, form)  # type: ignore[arg-type] # it names the choices itself
    size = done.path.stat().st_size / 1e6
    print(f"{done.path}: {done.form}, {size:.1f} MB, within {done.difference:.1e} of torch at 1, 7 and 4096 places")
    warn_if_untrained(model)
