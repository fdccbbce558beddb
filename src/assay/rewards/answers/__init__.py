"""Final answers as strings and as values: finding them in a completion, normalising, reading and comparing them.

Pure functions of text; nothing here executes what a model wrote, and only `symbolic` (which runs in a worker process)
imports a computer-algebra system."""
