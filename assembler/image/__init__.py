"""A lock in, an OCI image out: a function of the lock, byte for byte."""
