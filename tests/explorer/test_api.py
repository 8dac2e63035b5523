"""What the server answers, against the library."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from tessearth import Embedder
from tessearth.explorer.pictures import HEAT, check_tile, grid_of, ramp
from tests.explorer.serving import Client

# A server is asked about single places; that some look like radians is a line in its log, not a failure.
pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

PARIS = (48.8566, 2.3522)
PLACES = np.random.default_rng(1).uniform((-90, -180), (90, 180), (200, 2))


def picture(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize("body", [{"lat": PARIS[0], "lon": PARIS[1]}, {"points": [list(PARIS)]}])
def test_one_place_equals_the_library(client: Client, embedder: Embedder, body: dict[str, object]) -> None:
    answer = client.ask("/embed", body)
    assert answer.status == 200
    want = embedder(PARIS) if "lat" in body else embedder([PARIS])
    np.testing.assert_allclose(answer.json()["embedding"], want, atol=1e-6)
    assert answer.json()["shape"] == list(want.shape)


def test_the_address_alone_is_enough_for_one_place(client: Client, embedder: Embedder) -> None:
    answer = client.ask(f"/embed?lat={PARIS[0]}&lon={PARIS[1]}")
    np.testing.assert_allclose(answer.json()["embedding"], embedder(PARIS), atol=1e-6)


def test_many_places_equal_the_library_in_every_form(client: Client, embedder: Embedder) -> None:
    want = embedder(PLACES)
    columns = {"lat": PLACES[:, 0].tolist(), "lon": PLACES[:, 1].tolist()}
    for body in (columns, {"points": PLACES.tolist()}):
        np.testing.assert_allclose(client.ask("/embed", body).json()["embedding"], want, atol=1e-6)
        binary = client.ask("/embed", {**body, "format": "binary"})
        assert binary.headers["x-shape"] == f"200,{embedder.dim}"
        np.testing.assert_array_equal(np.frombuffer(binary.body, "<f4").reshape(want.shape), want)
    raw = client.ask("/embed/binary", PLACES.astype("<f8").tobytes())
    np.testing.assert_array_equal(np.frombuffer(raw.body, "<f4").reshape(want.shape), want)


def test_the_first_numbers_are_sent_at_unit_length(client: Client, embedder: Embedder) -> None:
    first = embedder(PARIS)[:5]
    want = first / np.linalg.norm(first)
    place = {"lat": PARIS[0], "lon": PARIS[1]}
    for answer in (
        client.ask("/embed", {**place, "dims": 5}),
        client.ask(f"/embed?lat={PARIS[0]}&lon={PARIS[1]}&dims=5"),
    ):
        np.testing.assert_allclose(answer.json()["embedding"], want, atol=1e-6)
    for path, body in (
        ("/embed", {**place, "dims": 5, "format": "binary"}),
        ("/embed/binary?dims=5", np.array(PARIS, "<f8").tobytes()),
    ):
        np.testing.assert_allclose(np.frombuffer(client.ask(path, body).body, "<f4"), want, atol=1e-6)
    refused = client.ask("/embed", {**place, "dims": 1000})
    assert refused.status == 422
    assert f"dims is 1000; it must lie between 1 and the embedding's width, {embedder.dim}" in refused.error


def test_rows_without_a_place_are_refused_skipped_or_answered_by_null(client: Client, embedder: Embedder) -> None:
    body = {"lat": [PARIS[0], None, 95.0, -1.3], "lon": [PARIS[1], 2.0, 3.0, 36.8]}
    want = embedder([PARIS, (-1.3, 36.8)])
    refused = client.ask("/embed", body)
    assert refused.status == 422
    assert "row 1" in refused.error
    skipped = client.ask("/embed", {**body, "on_bad": "skip"}).json()
    np.testing.assert_allclose(skipped["embedding"], want, atol=1e-6)
    first, *gaps, last = client.ask("/embed", {**body, "on_bad": "null"}).json()["embedding"]
    assert gaps == [None, None]
    np.testing.assert_allclose([first, last], want, atol=1e-6)
    binary = client.ask("/embed", {**body, "on_bad": "null", "format": "binary"})
    rows = np.frombuffer(binary.body, "<f4").reshape(4, -1)
    assert np.isnan(rows[1:3]).all()
    np.testing.assert_array_equal(rows[[0, 3]], want)
    pairs = np.array([PARIS, (np.nan, 2.0), (95.0, 3.0), (-1.3, 36.8)], "<f8").tobytes()
    assert client.ask("/embed/binary", pairs).status == 422
    assert client.ask("/embed/binary?on_bad=null", pairs).body == binary.body
    assert client.ask("/embed/binary?on_bad=skip", pairs).body == rows[[0, 3]].tobytes()


def test_labels_without_a_place_are_refused_or_left_out(client: Client) -> None:
    lat, lon = PLACES.T.tolist()
    values = np.arange(float(len(lat))).tolist()
    whole = client.ask("/predict", {"lat": lat, "lon": lon, "values": values}).json()
    assert (whole["rows"], whole["left_out"]) == (len(lat), 0)
    body = {"lat": [None, *lat], "lon": [2.0, *lon], "values": [1e9, *values]}
    assert client.ask("/predict", body).status == 422
    found = client.ask("/predict", {**body, "on_bad": "skip"}).json()
    assert (found["rows"], found["left_out"]) == (len(lat), 1)
    assert found["random"] == whole["random"]


def test_what_two_places_share_does_not_count(client: Client, embedder: Embedder) -> None:
    body = {"lat": PARIS[0], "lon": PARIS[1], "count": 3, "apart_km": 0, "unlike": [10.0, 20.0]}
    found = client.ask("/similar", body).json()["places"]
    here, other = embedder([PARIS, (10.0, 20.0)])
    query = here - (here @ other) * other
    for place in found:
        there = embedder((place["lat"], place["lon"]))
        assert place["similarity"] == pytest.approx(float(query @ there / np.linalg.norm(query)), abs=1e-3)
    same = client.ask("/similar", {**body, "unlike": list(PARIS)})
    assert "nothing is left" in same.error


def test_long_answers_are_not_written_as_json(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessearth.explorer.routes.JSON_NUMBERS", 100)
    answer = client.ask("/embed", {"points": PLACES.tolist()})
    assert answer.status == 422
    assert 'ask for "binary"' in answer.error


def test_a_place_comes_with_what_is_known_of_it(client: Client, embedder: Embedder) -> None:
    answer = client.ask(f"/place?lat={PARIS[0]}&lon={PARIS[1]}").json()
    assert (answer["country"], answer["climate"], answer["land"]) == ("France", "Cfb", True)
    explained = embedder.explain(PARIS)
    assert answer["tokens"][0]["token"] == int(explained.token_attention.argmax())
    near = embedder.nearest_sites(PARIS)
    assert [site["site"] for site in answer["sites"]] == near.site.tolist()
    assert 0 <= answer["support"]["score"] <= 1
    sea = client.ask("/place?lat=0&lon=-30").json()
    assert (sea["country"], sea["land"]) == (None, False)


def test_places_alike_are_the_nearest_embeddings(client: Client, embedder: Embedder) -> None:
    answer = client.ask("/similar", {"lat": PARIS[0], "lon": PARIS[1], "count": 5, "apart_km": 0}).json()
    found = answer["places"]
    similarity = [place["similarity"] for place in found]
    assert similarity == sorted(similarity, reverse=True)
    here = embedder(PARIS) / np.linalg.norm(embedder(PARIS))
    for place in found:
        there = embedder((place["lat"], place["lon"]))
        assert place["similarity"] == pytest.approx(float(here @ there / np.linalg.norm(there)), abs=1e-3)
    apart = client.ask("/similar", {"lat": PARIS[0], "lon": PARIS[1], "count": 3, "apart_km": 2000}).json()["places"]
    assert min(place["distance_km"] for place in apart) >= 2000


def test_two_places_are_compared(client: Client) -> None:
    same = client.ask("/compare?lat1=10&lon1=20&lat2=10&lon2=20").json()
    assert same["similarity"] == pytest.approx(1, abs=1e-5)
    assert same["distance_km"] == 0
    far = client.ask("/compare?lat1=0&lon1=0&lat2=0&lon2=180").json()
    assert far["distance_km"] == pytest.approx(20015, abs=1)
    assert 0 <= far["rank"] <= 1


def test_sites_share_the_sphere(client: Client, embedder: Embedder) -> None:
    sites = client.ask("/sites").json()
    assert len(sites["lat"]) == embedder.encoder.config.num_sites
    assert sum(sites["territory_km2"]) == pytest.approx(510_065_000, rel=1e-4)
    np.testing.assert_allclose(sites["sharpness"], embedder.encoder.sites().sharpness.numpy(), atol=1e-3)


def test_every_site_has_its_cell(client: Client, embedder: Embedder) -> None:
    cells = client.ask("/cells").json()
    assert cells["type"] == "FeatureCollection"
    assert [cell["properties"]["site"] for cell in cells["features"]] == list(range(embedder.encoder.config.num_sites))
    assert sum(cell["properties"]["area_km2"] for cell in cells["features"]) == pytest.approx(510_065_000, rel=1e-4)
    assert client.ask("/cells?tessellation=1").status == 404


def test_tokens_come_by_use_with_places_where_they_are_strong(client: Client, embedder: Embedder) -> None:
    answer = client.ask("/tokens").json()
    means = [token["mean"] for token in answer["tokens"]]
    assert answer["count"] == embedder.encoder.config.num_tokens == len(means)
    assert means == sorted(means, reverse=True)
    assert sum(means) == pytest.approx(1, abs=1e-2)
    token = answer["tokens"][0]
    best = token["places"][0]
    share = embedder.explain((best["lat"], best["lon"])).token_attention[token["token"]]
    assert best["share"] == pytest.approx(float(share), abs=0.05)


def test_sites_are_followed_through_training(client: Client, embedder: Embedder) -> None:
    ways = client.ask("/migration?share=1&frames=4").json()
    assert ways["steps"] == [0, 10, 20, 30]
    sites = client.ask("/sites").json()
    np.testing.assert_allclose(ways["lat"][-1], sites["lat"], atol=2e-3)
    some = client.ask("/migration?share=0.3&frames=2").json()
    assert len(some["sites"]) == round(0.3 * embedder.encoder.config.num_sites)
    assert some["steps"] == [0, 30]
    assert client.ask("/migration?share=0.3&frames=2").json() == some
    for wrong in ("share=0", "frames=1", "seed=-1"):
        assert client.ask(f"/migration?{wrong}").status == 422


def test_layers_are_ready_and_say_how_to_read_them(client: Client) -> None:
    layers = {layer["name"]: layer for layer in client.ask("/layers").json()}
    assert layers.keys() == {"embedding", "sharpness", "token", "similarity", "prediction"}
    assert all(layer["ready"] for layer in layers.values())
    sharpness = client.ask("/legend/sharpness").json()
    assert 0 < sharpness["low"] < sharpness["high"]
    assert client.ask("/legend/token?token=2").json()["title"] == "Token 2"
    assert client.ask("/legend/similarity?lat=10&lon=20").json()["high"] == 1


@pytest.mark.parametrize("tile", ["0/0/0", "3/4/2", "5/16/11"])
@pytest.mark.parametrize("layer", ["embedding", "sharpness", "token?token=1", "similarity?lat=48&lon=2"])
def test_every_layer_is_painted_near_and_far(client: Client, layer: str, tile: str) -> None:
    name, _, query = layer.partition("?")
    answer = client.ask(f"/tiles/{name}/{tile}.png?{query}")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    pixels = picture(answer.body)
    assert pixels.shape == (256, 256, 3)
    assert pixels.std() > 0
    land = picture(client.ask(f"/tiles/{name}/{tile}.png?{query}&sea=false").body)
    shown = land[..., 3] > 0
    assert 0.05 < shown.mean() < 0.95
    np.testing.assert_array_equal(land[shown][:, :3], pixels[shown])


@pytest.mark.parametrize("tile", [(2, 1, 1), (4, 8, 5)])
def test_a_token_is_painted_by_its_attention(client: Client, embedder: Embedder, tile: tuple[int, int, int]) -> None:
    """Colours read back through the legend are the attention itself, on the world grid and on a tile's own places."""
    pixels = picture(client.ask(f"/tiles/token/{'/'.join(map(str, tile))}.png?token=1").body)[::16, ::16].astype(int)
    lat, lon = check_tile(*tile).pixel_axes()
    share = embedder.explain(grid_of(lat, lon)[::16, ::16]).token_attention[..., 1]
    high = client.ask("/legend/token?token=1").json()["high"] / 100
    distance = np.abs(pixels[..., None, :] - ramp(HEAT).astype(int)).sum(-1)
    np.testing.assert_allclose(distance.argmin(-1) / 255 * high, np.clip(share, 0, high), atol=0.02 * high)


def test_the_base_is_the_earth(client: Client) -> None:
    pixels = picture(client.ask("/tiles/earth/0/0/0.png").body).astype(int)
    sahara, pacific = pixels[112, 140], pixels[128, 20]
    assert sahara[0] > sahara[2] + 40
    assert pacific[2] > pacific[0] + 10
    assert client.ask("/picture.png?lat=48.86&lon=2.35").headers["content-type"] == "image/png"


def test_tiles_outside_the_map_are_not_there(client: Client) -> None:
    for path in (
        "embedding/1/2/0",
        "embedding/-1/0/0",
        "embedding/9/0/0",
        "earth/6/0/0",
        "token/0/0/0",
        "prediction/0/0/0",
    ):
        answer = client.ask(f"/tiles/{path}.png")
        assert (answer.status, path) == (404, path)
        assert answer.error
    assert client.ask("/tiles/token/0/0/0.png?token=99").error == "there is no token 99: add token=0 to token=4"
    assert client.ask("/tiles/nonsense/0/0/0.png").status == 422


def test_health_says_what_is_served(client: Client, embedder: Embedder) -> None:
    health = client.ask("/health").json()
    assert (health["status"], health["sites"], health["tokens"], health["migration"]) == ("ok", 40, 5, True)
    assert health["fingerprint"] == embedder.fingerprint()


def test_metrics_count_requests_by_route(client: Client) -> None:
    def count() -> int:
        lines = client.ask("/metrics").body.decode().splitlines()
        wanted = 'tessearth_requests_total{method="GET",route="/place",status="200"} '
        return sum(int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted))

    before = count()
    client.ask("/place?lat=1&lon=20")
    assert count() == before + 1
    client.ask("/nothing/of/the/sort")
    assert "/nothing" not in client.ask("/metrics").body.decode()


def test_the_api_is_described_without_a_page_that_loads_from_elsewhere(client: Client) -> None:
    described = client.ask("/openapi.json").json()
    for path in ("/embed", "/similar", "/predict", "/cells", "/tokens", "/sites", "/health", "/metrics"):
        assert path in described["paths"]
    assert client.ask("/docs").status == client.ask("/redoc").status == 404


def test_json_says_so(client: Client) -> None:
    assert client.ask("/sites").headers["content-type"] == "application/json"
    json.loads(client.ask("/outlines").body)
