"""Checks of provider requests against the vendors' own SDK models, closed where the SDKs are open.

Each module has `check(fields)`: the body members of a request, inline media in place; it raises `Rejected`
with every fault found.
"""


class Rejected(Exception):
    """A body the provider's SDK model does not describe."""
