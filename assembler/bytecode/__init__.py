"""Bytecode made by the channel's own python: for packages that are built, and for images."""
