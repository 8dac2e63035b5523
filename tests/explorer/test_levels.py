"""What the explorer says of places by an encoder with levels: the same as from every site's weight."""

import numpy as np
import torch

from tessearth import Embedder
from tessearth.explorer.answers import explain_places, site_fields
from tessearth.sphere import latlon_to_xyz
from tests.embedding.test_levels import ENCODER, FIRST_FINE

LATLON = np.array([[53.0, 0.4], [52.6, -1.2], [-33.0, 151.0], [89.0, 12.0]])
FEW = Embedder(ENCODER, device="cpu").few_sites


def test_sites_near_a_place_have_their_weights_and_levels_their_distance() -> None:
    weights = ENCODER.encode(torch.from_numpy(LATLON).float()).site_weights
    support = Embedder(ENCODER, device="cpu").support(LATLON)
    assert support.relative is not None
    for number, row in enumerate(explain_places(FEW, LATLON)):
        for site in row["sites"]:
            assert abs(site.weight - float(weights[number, site.site])) < 2e-5
        assert len({site.site for site in row["sites"]}) == 5
        np.testing.assert_allclose(row["support"].relative, support.relative[number], atol=2e-3)
    assert all(site.site >= FIRST_FINE for site in explain_places(FEW, LATLON)[0]["sites"])


def test_fields_of_a_map_are_means_over_the_sites_that_matter() -> None:
    attention, sharpness = site_fields(FEW, LATLON)
    encoding = ENCODER.encode(torch.from_numpy(LATLON).float())
    assert encoding.token_attention is not None
    np.testing.assert_allclose(attention, encoding.token_attention, atol=1e-5)
    logs = []
    for level in ENCODER.voronois():
        share = level.double().weights(latlon_to_xyz(torch.from_numpy(LATLON)))
        logs.append(share @ level.log_sharpness / share.sum(-1).clamp(min=1e-30))
    ENCODER.float()
    np.testing.assert_allclose(sharpness[:2, 0], torch.stack(logs).mean(0).exp()[:2], rtol=1e-4)
