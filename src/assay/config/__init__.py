"""The run configuration: composes the option dataclasses that the rooms define, loads, checks and stores them."""
