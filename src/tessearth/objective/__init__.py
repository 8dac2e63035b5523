"""What training minimises, and what it is judged by on the way: pure functions of tensors."""
