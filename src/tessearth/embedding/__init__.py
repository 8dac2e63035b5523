"""Using an encoder: places of any kind in, embeddings out, from one point to tables that do not fit in memory."""
