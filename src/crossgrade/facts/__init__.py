"""What a server is: one file for each kind of fact, each a pure parser and a thin reader.

A reader is told where to look (`system`, a root; a runner for programs), so that tests can show it recorded trees. What
could not be asked is None or empty, and the `unknown` of its section says why; nothing is guessed.
"""
