"""Which device to work on, and how many places it takes at once. Only `find_device` imports torch."""

from typing import TYPE_CHECKING

from tessearth.errors import ConfigError

if TYPE_CHECKING:
    import torch

NUMBERS_AT_ONCE = {"cpu": 2**23, "gpu": 2**27}
"""Of the widest array held at once: 32 MB of float32 keep a CPU's caches busy, a GPU wants more work per launch."""


def places_at_once(device_type: str, widest: int) -> int:
    """How many places are taken at once where the widest array holds `widest` numbers for each."""
    return max(1, NUMBERS_AT_ONCE["cpu" if device_type == "cpu" else "gpu"] // widest)


def find_device(device: "str | torch.device | None" = None) -> "torch.device":
    """The device of a name such as "cpu" or "cuda:0"; None is a GPU when there is one."""
    import torch

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["not available"])[0]
        raise ConfigError(f"the device {str(device)!r} cannot be used: {reason}") from None
    return found
