"""`python -m crossgrade`: the same program, found by its interpreter. The dead-man switch is started so."""

from crossgrade.cli import main

main()
