"""The Python interface: `assay.train(...)`, and `Session`, the parts of a run built from its configuration. The command
line is a thin caller of this room; nothing else imports it."""
