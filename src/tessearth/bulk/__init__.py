"""Whole tables and rasters of embeddings, resumable and in bounded memory."""
