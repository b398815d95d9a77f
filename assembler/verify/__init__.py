"""An image or a package in, findings out: the gates."""
