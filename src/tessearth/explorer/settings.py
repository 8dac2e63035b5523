"""What may be asked of the server, and how much of it at once."""

from dataclasses import dataclass

from tessearth.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Limits of the service; a request beyond one is answered with 4xx or 503, never left waiting."""

    max_points: int = 65_536
    """How many places one request may hold."""

    max_pending_points: int = 131_072
    """How many places may wait for the model altogether; beyond that the answer is 503."""

    max_body_bytes: int = 8 * 2**20
    """How large a request's body may be."""

    max_labels: int = 20_000
    """How many labelled places a probe may be fitted on."""

    rate: float = 1000.0
    """Requests a second that one client may send, twice as many in one burst; 0 sets no limit."""

    timeout_s: float = 60.0
    """After so many seconds a request is answered with 503 whatever it was doing."""

    body_timeout_s: float = 15.0
    """After so many seconds a body that is still arriving is answered with 408."""

    api_key: str | None = None
    """What requests must carry (X-API-Key, a Bearer token or the page's cookie); None asks for nothing."""

    def __post_init__(self) -> None:
        for name in ("max_points", "max_pending_points", "max_body_bytes", "max_labels"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("timeout_s", "body_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if not self.rate >= 0:
            raise ConfigError(f"rate is {self.rate}; it must be 0 (no limit) or more requests a second")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError("the API key must be plain ASCII text and not empty")
