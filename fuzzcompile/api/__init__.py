"""The interface for Python programs: ``triage`` and ``Report``, and what pytest and notebooks make of them."""
