"""One check per file; each is a function from an opened tree and the policy to a gate's result."""
