"""The synthetic rows of bench/corpus.py: their sizes are about those of a campaign's cases and reports."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from fuzzcompile.corpus.databases import set_sequences
from fuzzcompile.corpus.merge import find_umbrella, in_short
from fuzzcompile.corpus.models import Base, CampaignRow, CaseRow, EnvironmentRow, FindingRow, ReproducerRow, RunRow
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.severity import rate_severity

ENVIRONMENT = {"torch": "2.13.0+cpu", "device": "cpu", "cpu": "synthetic"}
STAGES = ("decomposition", "joint_graph", "post_grad", "lowering", "codegen")
STRIDES = {"outputs": [{"name": "out0", "finding": "stride", "view_raises": False}]}
START = datetime(2026, 1, 1, tzinfo=UTC)
# One case in so many shows a bug. Sizes are about those of a campaign's cases and reports.
HIT_EVERY = 5
SOURCE = "import torch\n" + "x = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # a line of a case\n" * 25
PROOF = [f"%add_{line} : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor]" for line in range(60)]
CHUNK = 2000


def begin(store: Store, findings: int, cases: int) -> None:
    """Make an environment, a campaign and findings, as they are when so many cases have been judged."""
    with Session(store._engine) as session, session.begin():
        session.execute(
            insert(EnvironmentRow), {"id": 1, "sha256": "e" * 64, "torch": "2.13.0+cpu", "details": ENVIRONMENT}
        )
        session.execute(insert(CampaignRow), campaign())
        hits = cases // HIT_EVERY // findings
        session.execute(insert(FindingRow), [finding_row(number, hits) for number in range(1, findings + 1)])


def add(store: Store, first: int, last: int, findings: int) -> None:
    """Add cases, each judged once, of which one in `HIT_EVERY` hits one of the findings."""
    for start in range(first, last + 1, CHUNK):
        numbers = range(start, min(start + CHUNK, last + 1))
        hit = {n: 1 + n // HIT_EVERY % findings if n % HIT_EVERY == 0 else None for n in numbers}
        with Session(store._engine) as session, session.begin():
            session.execute(insert(CaseRow), [case(number) for number in numbers])
            session.execute(insert(RunRow), [run(number, hit[number]) for number in numbers])


def conclude(store: Store, findings: int) -> None:
    """Let each finding have its reproducer and its best run, and the database its statistics."""
    with Session(store._engine) as session, session.begin():
        session.execute(insert(ReproducerRow), [reproducer_row(number) for number in range(1, findings + 1)])
        session.execute(update(FindingRow), [shown(number, findings) for number in range(1, findings + 1)])
    settle(store)


def settle(store: Store) -> None:
    """What a server does by itself after rows came with ids of their own, in time."""
    if store._engine.dialect.name != "postgresql":
        return
    with store._engine.begin() as connection:
        set_sequences(connection, [name for name, table in Base.metadata.tables.items() if "id" in table.columns])
        connection.exec_driver_sql("ANALYZE")


def campaign() -> dict[str, object]:
    """The row of a campaign."""
    times = dict.fromkeys(("started", "last_heard", "finished"), START)
    said = {"settings": {}, "command": "fuzzcompile run", "fuzzcompile_version": "0", "counters": {}, "ended": "budget"}
    return {"id": 1, "environment_id": 1, "seed": 0, **said, **times}


def case(number: int) -> dict[str, object]:
    """The row of a case."""
    source = f"# case {number}\n{SOURCE}"
    drawn = {"idioms": ["sdpa"], "near_misses": [], "features": ["a", "b", "c"], "choices": b"x" * 200}
    return {"id": number, "sha256": sha(source), "source": source, "origin": "generated", "created": START, **drawn}


def run(number: int, finding: int | None) -> dict[str, object]:
    """The row of a run."""
    judged = clean() if finding is None else report(finding)
    when = START + timedelta(seconds=number)
    cost = {"screened": number % 2 == 0, "seconds": 1.0, "compiles": 2}
    told = {"verdict": judged["verdict"], "is_bug": finding is not None, "report": judged, "created": when}
    placed = {"stream": "seed=0", "stream_index": number, "campaign_id": 1, "environment_id": 1}
    return {"id": number, "case_id": number, "finding_id": finding, **placed, **told, **cost}


def clean() -> dict[str, object]:
    """The report on a case that shows no bug."""
    told = ("max_abs_error_eager", "max_abs_error_compiled", "error_ratio", "noise_floor", "cosine")
    close = {"finding": "close", "within_default_tolerance": True, "torch_same": True, **dict.fromkeys(told, 1e-7)}
    outputs = [{"name": f"out{number}", **close} for number in range(4)]
    rules = [
        {"stage": "joint_graph", "pass": "p", "rewrite": f"_sfdp_pattern_{n}", "fired": 0, "refused": 1}
        for n in range(9)
    ]
    return {"verdict": "rounding", "is_bug": False, "evidence": {"outputs": outputs}, "rewrites": rules}


def report(number: int) -> dict[str, object]:
    """The report on a case that hits a finding; every severity has its share."""
    verdict = ("miscompile", "compile_error", "metadata", "aliasing", "accepts_invalid")[number % 5]
    details = {"graph": {"before": PROOF, "after": PROOF}}
    culprit = {"stage": STAGES[number % 5], "source": f"torch/f{number}.py", "line": 1, "rewrite": f"rule_{number}"}
    culprit |= {"pass": None, "nodes": [], "site": None, "step": None, "sufficient": None}
    culprit |= {"family": f"rule_{number}", "necessary": number % 3 > 0, "details": details}
    bug = {"verdict": verdict, "is_bug": True, "confidence": "high", "signature": signature(number), "culprit": culprit}
    judged = {"case": "c", "device": "cpu", "torch": "2.13.0+cpu", "detail": "it differs", "workaround": None}
    judged |= dict.fromkeys(("contributors", "ablations", "changed_bits", "suspects"), ())
    judged |= {"target": None, "cost": {"compiles": 3, "replays": 9, "seconds": 2.0}}
    return {**clean(), **judged, **bug, **({"evidence": STRIDES} if verdict == "metadata" else {})}


def signature(name: int | str) -> str:
    """The signature of a finding."""
    stage = STAGES[name % 5] if isinstance(name, int) else STAGES[0]
    return f"{stage}:torch/f{name}.py:rule_{name}:dtype"


def finding_row(number: int, hits: int) -> dict[str, object]:
    """The row of a finding, before it has runs."""
    judged = report(number)
    own = rate_severity(judged)  # type: ignore[arg-type]
    said = {name: judged[name] for name in ("signature", "verdict", "confidence", "evidence")}
    said["culprit"] = in_short(judged.get("culprit"))
    seen = {"status": "open", "hits": hits, "first_seen": START, "last_seen": START}
    return {"id": number, "severity": own, "umbrella": find_umbrella(own, signature(number)), **said, **seen}


def shown(number: int, findings: int) -> dict[str, object]:
    """What a finding shows: its reproducer, and the first case that hit it."""
    first = HIT_EVERY * (number - 1 or findings)
    ids = dict.fromkeys(("best_run_id", "case_id"), first)
    return {"id": number, "best_reproducer_id": number, "speaks_by_reproducer": True, **ids}


def reproducer_row(number: int) -> dict[str, object]:
    """The row of a reproducer."""
    told = {"lines": 26, "kind": "graph", "confirmed": True, "torch": "2.13.0+cpu", "report": report(number)}
    key = {"sha256": sha(f"repro {number}"), "program": sha(f"program {number}"), "shown": {"plain": SOURCE[:800]}}
    return {"id": number, "finding_id": number, "source": SOURCE, "created": START, **key, **told}


def sha(text: str) -> str:
    """The key of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
