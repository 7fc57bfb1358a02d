"""Queries for GitHub's search, which finds what holds all words of a query, in its title, text or comments."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzcompile.report.search.terms import Terms

# Asked for issues and for pull requests, so many queries are what GitHub answers in a minute without a token.
MOST_QUERIES = 5
# GitHub refuses longer ones; qualifiers do not count.
_MOST_CHARACTERS = 256


def queries_of(terms: Terms) -> list[str]:
    """Up to `MOST_QUERIES` queries, the narrowest first, without qualifiers such as ``repo:``."""
    queries = dict.fromkeys(query for query in _queries(terms) if len(query) <= _MOST_CHARACTERS)
    return list(queries)[:MOST_QUERIES]


def _queries(terms: Terms) -> Iterator[str]:
    operators, symptoms = terms.operators[:1], terms.symptoms[:1]
    if terms.names:
        yield " OR ".join(f'"{name}"' for name in terms.names)
    if len(terms.errors) > 1:
        yield f'"{terms.errors[1]}" compile'
    if terms.owner:
        yield _joined((terms.owner,), terms.arguments[:1], ("inductor",))
    if terms.places:
        yield _joined(operators, terms.places)
    if operators:
        yield _joined(operators, symptoms, terms.context[:1])
        yield _joined(operators, symptoms, ("compile",))
        yield _joined(operators, ("inductor",))
        yield _joined(terms.operators[:2], ("inductor",))
    elif terms.names:
        yield _joined(terms.names[:1], symptoms)


def _joined(*groups: tuple[str, ...]) -> str:
    return " ".join(f'"{word}"' if " " in word else word for group in groups for word in group)
