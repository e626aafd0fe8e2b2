"""What every method of a table must do: properties that hold for polytask's own methods and for those of plug-ins.

Each module has the properties of one table (`PROPERTIES`): functions that raise an AssertionError which says what does
not hold. `polytask contract FILE` and tests/contracts call them.
"""
