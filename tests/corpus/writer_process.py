"""Records cases for ever (or COUNT of them) and says after each which one is stored.

usage: python writer_process.py CORPUS PREFIX [COUNT]
"""

import itertools
import sys

from corpus_examples import ENVIRONMENT, FIRED, STREAM, bug, campaign, case, report

from fuzzcompile.corpus.store import Store

location, prefix = sys.argv[1:3]
indices = range(int(sys.argv[3])) if sys.argv[3:] else itertools.count()
store = Store.open(location)
campaign_id = store.start_campaign(campaign())
print("started", campaign_id, flush=True)
for index in indices:
    drawn = case(f"# {prefix} {index}\n" + "x = 1\n" * 200, stream=f"{STREAM} {prefix}", index=index)
    judged = bug(f"signature {index % 3}") if index % 2 else report()
    store.record(campaign_id, drawn, ENVIRONMENT, judged, [FIRED])
    store.heartbeat(campaign_id, {"cases": index + 1})
    print(index, flush=True)
