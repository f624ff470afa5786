"""The command line: one file per group of commands, imported when it is called.

``main.py`` is what the ``chronosd`` script runs: it catches signals for ``run`` before anything else, then
hands over to the group in ``commands.py`` and turns what is raised into one line and an exit code. So a
command raises what the library raises and prints only what it was asked for.
"""
