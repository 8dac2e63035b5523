"""The encoder of the method: soft Voronoi cells on the sphere, shared semantic tokens, a residual head."""
