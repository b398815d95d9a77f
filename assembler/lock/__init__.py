"""A channel in, an exact set of packages out, in the formats that others read."""
