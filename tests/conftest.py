"""Options and fixtures shared by every test."""
