"""Counts and times of requests in the text format that Prometheus reads (version 0.0.4)."""

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What the server has done so far; routes are named by their pattern, so that nobody can make up new labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._gauges: dict[str, tuple[str, str, Callable[[], float]]] = {}

    def gauge(self, name: str, help_text: str, read: Callable[[], float], kind: str = "gauge") -> None:
        """Add a number that is read whenever it is asked for."""
        self._gauges[name] = (help_text, kind, read)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note a finished request."""
        with self._lock:
            self._requests[method, route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(SECONDS) + 1))
            buckets[bisect.bisect_left(SECONDS, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment] # a Counter adds up any number

    def text(self) -> str:
        """Everything, one sample a line."""
        with self._lock:
            return "\n".join((*self._request_lines(), *self._time_lines(), *self._gauge_lines())) + "\n"

    def _request_lines(self) -> Iterator[str]:
        yield "# HELP tessearth_requests_total Requests answered, by route and status."
        yield "# TYPE tessearth_requests_total counter"
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'tessearth_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'

    def _time_lines(self) -> Iterator[str]:
        yield "# HELP tessearth_request_seconds Time to answer, by route."
        yield "# TYPE tessearth_request_seconds histogram"
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*SECONDS, "+Inf"), buckets, strict=True):
                total += count
                yield f'tessearth_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'tessearth_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'tessearth_request_seconds_count{{route="{route}"}} {total}'

    def _gauge_lines(self) -> Iterator[str]:
        for name, (help_text, kind, read) in sorted(self._gauges.items()):
            yield f"# HELP {name} {help_text}"
            yield f"# TYPE {name} {kind}"
            yield f"{name} {read():g}"
