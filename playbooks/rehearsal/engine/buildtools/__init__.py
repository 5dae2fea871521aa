"""How the rehearsal engine's native code is compiled; used by ``hatch_build.py`` only."""
