"""One thin module a command; wires rooms together and prints. No logic that a Python caller would miss."""
