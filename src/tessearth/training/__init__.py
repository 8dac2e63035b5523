"""Training an encoder on stored image features: recipe in, run folder out."""
