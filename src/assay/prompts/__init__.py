"""Where prompts come from and which of them to spend generation on: sources, procedural tasks, difficulty, curriculum. Never
loads a model."""
