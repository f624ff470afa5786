"""chronos.yaml, from the file to a frozen value.

The stages, each in a module of its own and each unaware of the next::

    read       bytes of a regular, small, UTF-8 file
    load       YAML events to nodes that know their line and column (the only user of yaml), and the whole
    syntax     what to say of a text that is no YAML
    tree       nodes to plain data with a place for each value: duplicates, merge keys, tags, expansions
    expand     ${VAR} and ${VAR:-default}
    shorthand  short forms to the long one, places moving along
    schema     the keys, validated by pydantic; fields and names have the types of values
    checks     limits between keys; schedules has those of schedules
    report     pydantic's errors to sentences

Beside them, ``diff`` says what changes from one configuration to the next, and ``json_schema`` tells editors
what may stand in a file.

Problems are collected from all stages and reported at once, sorted by line. A problem stands at its key
(or list item), because that is what one searches for in an editor.
"""
