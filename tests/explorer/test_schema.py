"""Requests made up from the server's own description never find a 500."""

import pytest

from tests.explorer.serving import Client

# A server is asked about single places; that some look like radians is a line in its log, not a failure.
pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
hypothesis = pytest.importorskip("hypothesis")

EXAMPLES = 12


def test_no_request_that_fits_or_almost_fits_the_description_breaks_the_server(client: Client) -> None:
    schema = schemathesis.openapi.from_url(f"{client.url}openapi.json")
    tried: list[str] = []
    broken: list[str] = []
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)

            @hypothesis.settings(
                max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
            )
            @hypothesis.given(cases)
            def ask(case: object) -> None:
                answer = case.call(base_url=client.url)  # type: ignore[attr-defined]
                tried.append(operation.label)  # noqa: B023
                if answer.status_code >= 500 and answer.status_code != 503:
                    broken.append(f"{operation.label}: {answer.status_code} {answer.text[:200]}")  # noqa: B023

            try:
                ask()
            except (hypothesis.errors.Unsatisfiable, TypeError):  # nothing can be wrong with a route without parameters
                continue
    assert broken == []
    assert len(set(tried)) >= 15
