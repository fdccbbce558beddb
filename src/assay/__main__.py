"""`python -m assay` is the `assay` command, for launchers that start modules."""

from assay.cli.main import main

main()
