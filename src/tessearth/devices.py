"""Which device to work on: the one asked for, if it is there, else a GPU when there is one."""

import torch

from tessearth.errors import ConfigError


def find_device(device: str | torch.device | None = None) -> torch.device:
    """The device of a name such as "cpu" or "cuda:0"; None is a GPU when there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["not available"])[0]
        raise ConfigError(f"the device {str(device)!r} cannot be used: {reason}") from None
    return found
