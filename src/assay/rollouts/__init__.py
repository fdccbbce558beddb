"""Who writes the completions: the engine protocol, the engines, and the producer of scored groups. Nothing outside this room
knows which engine runs. Never computes a gradient."""
