"""`tessearth export`: a model as a file for other programs."""

from tessearth.cli import commands, options


def export(
    out: options.Out, model: options.Model = options.DEFAULT_MODEL, overwrite: options.Overwrite = False
) -> None:
    """Write a model as ONNX (.onnx), torch.export (.pt2) or safetensors (.safetensors).

    The file is read back and compared with torch first; a difference beyond 1e-5 is an error.

    tessearth export --model untrained --out untrained.onnx

    tessearth encode --model untrained.onnx 48.8566 2.3522
    """
    from tessearth.embedding import export as write
    from tessearth.storage import check_free

    check_free(out, overwrite=overwrite)
    done = write(model, out)
    size = done.path.stat().st_size / 1e6
    print(f"{done.path}: {done.form}, {size:.1f} MB, within {done.difference:.1e} of torch at 1, 7 and 4096 places")
    commands.warn_if_untrained(model)
