"""Models from the Hugging Face hub: only ever the one the user named."""

import os
import re
from pathlib import Path

from tessearth.errors import UnknownNameError
from tessearth.packages import require

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_id(model: str) -> bool:
    """Whether a name reads as owner/name or owner/name@revision; below a folder that exists it is a mistyped path."""
    return bool(_HUB_ID.fullmatch(model)) and not os.path.exists(Path(model).parent)


def fetch(model: str) -> Path:
    """Download a model's configuration and weights into the hub's own cache and say where they lie."""
    hub = require("huggingface_hub", extra="hub", what=f"the model {model!r} (no such path here, so taken as a hub id)")
    name, _, revision = model.partition("@")
    try:
        folder: str = hub.snapshot_download(
            name, revision=revision or None, allow_patterns=["config.json", "model.safetensors"]
        )
    except Exception as error:  # the hub client raises its own, the network's and the file system's kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnknownNameError(
            f"the model {model!r} is no path here and cannot be had from the hub: {reason}"
        ) from error
    return Path(folder)
