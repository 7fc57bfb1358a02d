"""The interface for Python programs: ``triage`` and ``Report``, and their use in pytest and notebooks."""
