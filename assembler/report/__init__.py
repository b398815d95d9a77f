"""Results in, words and documents out."""
