"""Counts of requests, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Metrics:
    """What has happened since the start; written by the thread of the event loop alone."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by route and status
    seconds: dict[str, float] = field(default_factory=dict)  # by route
    batches: int = 0
    batched_queries: int = 0
    waiting: int = 0  # requests that are answered or wait, now

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[route, status] += 1
        self.seconds[route] = self.seconds.get(route, 0.0) + seconds

    def text(self, reloads: Mapping[str, int]) -> str:
        """Return all values as Prometheus reads them; `reloads` is by index."""
        lines = _family("denserk_requests_total", "counter", "Requests by route and status.")
        for (route, status), requests in sorted(self.requests.items()):
            lines.append(f'denserk_requests_total{{route="{route}",status="{status}"}} {requests}')
        lines += _family("denserk_request_seconds", "summary", "Time to answer, by route.")
        requests_by_route: Counter[str] = Counter()
        for (route, _), requests in self.requests.items():
            requests_by_route[route] += requests
        for route, requests in sorted(requests_by_route.items()):
            seconds = self.seconds[route]
            lines.append(f'denserk_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
            lines.append(f'denserk_request_seconds_count{{route="{route}"}} {requests}')
        lines += _family("denserk_waiting", "gauge", "Requests that are answered or wait.")
        lines.append(f"denserk_waiting {self.waiting}")
        lines += _family("denserk_batches_total", "counter", "Batches that were searched.")
        lines.append(f"denserk_batches_total {self.batches}")
        lines += _family("denserk_batched_queries_total", "counter", "Queries of these batches.")
        lines.append(f"denserk_batched_queries_total {self.batched_queries}")
        lines += _family("denserk_reloads_total", "counter", "Rebuilt indexes that were opened.")
        for index, count in reloads.items():
            lines.append(f'denserk_reloads_total{{index="{index}"}} {count}')
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, description: str) -> list[str]:
    """Return the head of a metric."""
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
