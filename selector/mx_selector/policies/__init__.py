"""The policies, one module each, and the registry that finds them by name.

`registry` is what the rest of the package asks; a new policy is a module here and a line there.
"""
