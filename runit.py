import sys; sys.path.insert(0,'/tmp/rev'); sys.path.insert(0,'/work/main')
import hook
from pathlib import Path
import fuzzcompile
r = fuzzcompile.triage(sys.argv[1]) if False else None
from fuzzcompile.diagnosis.worker import judge as j
import inspect
print(inspect.signature(j.judge_file))
