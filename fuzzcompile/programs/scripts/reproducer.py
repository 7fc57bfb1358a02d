"""Reproducers: cases that are also scripts, which show a bug with torch alone and pass once it is fixed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from fuzzcompile.compiler.custom_code import describe_backend, find_root, get_module_name, has_custom_code, list_passes
from fuzzcompile.model.contract import AOTI, CACHED, EAGER, EXPORTED, ReportJson, read_target
from fuzzcompile.model.custom import ObjectPath
from fuzzcompile.model.errors import CaseError, UsageError
from fuzzcompile.model.package_files import get_environment
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_file import count_processes
from fuzzcompile.programs.ir.case_text import extract_case, find_bound_names, makes_tensors, only_difference
from fuzzcompile.programs.scripts.clean_process import OWN_PACKAGE, FinishedProcess, run_alone, run_together
from fuzzcompile.programs.scripts.script_plan import (
    EagerProbe,
    ScriptPlan,
    choose_comparison,
    find_alias_difference,
    is_flat,
    probe_case,
    run_probe,
)
from fuzzcompile.programs.shrink.search import same_bug
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import RUN_SEED
from fuzzcompile.run.observation import COTANGENT_SEED
from fuzzcompile.run.ranks import on_all_ranks
from fuzzcompile.run.seats import Seat, forms_group
from fuzzcompile.run.sharded_tensors import is_sharded
from fuzzcompile.run.tensors import is_inexact

# The user's own passes and backend that a reproducer needs to show its bug.

_MARK = "# No part of PyTorch: "


def with_custom(source: str) -> str:
    """Add statements to the case that import and apply the user's own passes and backend of this process.

    Modules are imported from where they are on this machine, unless they are installed. A source that has these
    statements already stays as it is.
    """
    if not has_custom_code() or _MARK in source:
        return source
    passes, backend = list_passes(), describe_backend()
    targets = [*(each.custom.target for each in passes), *([backend] if isinstance(backend, ObjectPath) else [])]
    lines = [f"{_MARK}{', '.join(str(target.name) for target in targets) or backend}."]
    if targets:
        roots = list(dict.fromkeys(str(root) for target in targets if (root := find_root(target)) is not None))
        lines += ["import importlib", *["import sys"] * bool(roots), "import torch._inductor.config"]
        lines += [f"sys.path.insert(0, {folder!r})" for folder in roots]
    for setting in dict.fromkeys(each.setting for each in passes):
        held = [f"{_expression(each.custom.target)}{each.ending}" for each in passes if each.setting == setting]
        value = held[0] if len(held) == 1 else f"[{', '.join(held)}]"
        lines.append(f"torch._inductor.config.{setting} = {value}")
    if backend is not None:
        lines.append(f"BACKEND = {_expression(backend) if isinstance(backend, ObjectPath) else repr(backend)}")
    return f"{source}\n" + "\n".join(lines) + "\n"


def _expression(target: ObjectPath) -> str:
    return f'importlib.import_module("{get_module_name(target)}").{target.attribute}'


_SUMMARY_WIDTH = 110
_BUG = "BUG: "
# For these verdicts eager and compiled differ, but neither is wrong.
_NOTHING_TO_SHOW = (Verdict.UNSTABLE, Verdict.PRECISION_CASTS, Verdict.INVALID)
_PHRASES: dict[str, str] = {
    Verdict.MISCOMPILE: "Wrong values",
    Verdict.WRONG_GRADIENT: "Wrong gradients",
    Verdict.NONFINITE: "NaN or infinity in other elements than in eager,",
    Verdict.METADATA: "Wrong metadata",
    Verdict.ALIASING: "Wrong mutation",
    Verdict.PRECISION_LOSS: "Lost precision",
    Verdict.EAGER_WRONG: "Wrong values in eager mode",
    Verdict.STALE: "A stale graph is run",
    Verdict.COMPILE_ERROR: "An error",
    Verdict.RUNTIME_ERROR: "An error at run time",
    Verdict.ACCEPTS_INVALID: "An invalid program is accepted",
    Verdict.CRASH: "A crash",
    Verdict.TIMEOUT: "No end",
    Verdict.NONDETERMINISTIC: "Results that change from run to run",
}


def build_reproducer(source: str, report: ReportJson, *, neighbour: str | None = None, led: Case | None = None) -> str:
    """The case as one script that needs torch only and exits with 1 on the bug, with 0 once it is fixed.

    It stays a valid case. Of the user's own passes and backend it imports those that this process compiles with.
    Its docstring and ``__main__`` part are replaced, so a reproducer of a reproducer is the same
    text. The case runs eagerly in this process, which decides how short the script can be. A script for a GPU, or for a
    target, which is a GPU too, exits with 3 where there is none. If the source of a program that passes, ``neighbour``,
    differs in one line only, that line is quoted. Of a case that several processes run, ``led`` is the case as this
    one, their first, has loaded it. CaseError if the source is no case, UsageError if the verdict is no bug of the
    compiler.
    """
    return write_reproducer(choose_script(source, report, neighbour=neighbour, led=led), report)


def choose_script(
    source: str,
    report: ReportJson,
    *,
    neighbour: str | None = None,
    custom: bool = True,
    led: Case | None = None,
) -> ScriptPlan:
    """Choose the runs and comparisons that show the bug of ``report``, by eager runs in this process.

    With ``custom`` the user's own passes and backend are imported, if this process compiles with any. For the rest see
    :func:`build_reproducer`.
    """
    if report.get("verdict") in _NOTHING_TO_SHOW:
        raise UsageError(f"There is no bug to reproduce: the verdict is {report['verdict']}.")
    try:
        kept = form_group_once(extract_case(source))
        kept = with_custom(kept) if custom else kept
    except SyntaxError as error:
        raise CaseError(f"The source is no case: it is not valid Python ({error}).") from error
    told = read_target(report) is not None
    device = "cuda" if told else str(report.get("device") or "cpu")
    here = device if not device.startswith("cuda") or torch.cuda.is_available() else "cpu"
    difference = only_difference(kept, neighbour) if neighbour else None
    remark = f"Right with `{difference[1]}` instead of `{difference[0]}`." if difference else ""
    remark = remark if len(remark) <= _SUMMARY_WIDTH else ""
    probe = probe_case(kept, torch.device(here)) if led is None else probe_on_ranks(led, torch.device(here))
    plan = ScriptPlan(probe, kept, device, told, nproc=count_processes(kept) or 1, remark=remark)
    return choose_comparison(plan, report)


def probe_on_ranks(case: Case, device: torch.device) -> EagerProbe:
    """Run a case that several processes have loaded in all of them."""
    with torch.random.fork_rng(), on_all_ranks(f"{__name__}:{probe_on_rank.__name__}", case):
        return run_probe(case, device, together=True)


def probe_on_rank(case: Case, device: torch.device) -> None:
    """Make the runs of the first process in this one, another of them."""
    with torch.random.fork_rng():
        run_probe(case, device, together=True)


_FORMED = re.compile(r"^( +)((?:[\w.]+\.)?)init_process_group\(.*\)$", re.MULTILINE)


def form_group_once(source: str) -> str:
    """The case with a condition before the call by which its ``make()`` forms a group: a script may call it twice."""

    def guard(formed: re.Match[str]) -> str:
        indent, owner = formed[1], formed[2]
        condition = f"if not {owner or 'torch.distributed.'}is_initialized():"
        guarded = source[: formed.start()].rstrip().endswith(condition)
        return formed[0] if guarded else f"{indent}{condition}\n    {formed[0]}"

    return _FORMED.sub(guard, source)


# What is compiled with plants must neither be read from torch's caches nor be left in them.
_PLANTED = {**OWN_PACKAGE, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}


def confirm_reproducer(source: str, *, plants: Sequence[Path] = (), timeout: float = 180) -> FinishedProcess:
    """Run a reproducer in a clean process and folder, for at most ``timeout`` seconds.

    It must print its own verdict line, because a traceback ends Python with status 1 too. What is distributed runs as
    under ``torchrun``, in as many processes as it asks for, or a group of one. Each process executes ``plants`` first;
    one that the script starts by itself, as for a crash, does not have them.
    """
    command = ("-m", "fuzzcompile.programs.scripts.clean_process", *map(str, plants)) if plants else ()
    planted = OWN_PACKAGE if _STORED[1] in source else _PLANTED  # it has a cache folder of its own
    environment, count = planted if plants else {}, count_processes(source)
    if count is not None:
        return _join(run_together(source, count, command=command, environment=environment, timeout=timeout))
    seat = Seat().environment() if forms_group(source) else {}
    ran = run_alone(source, command=command, environment={**seat, **environment}, timeout=timeout)
    return replace(ran, confirmed=_shows_bug(ran))


def _shows_bug(ran: FinishedProcess) -> bool:
    return ran.status == 1 and any(line.startswith(_BUG) for line in ran.output.splitlines())


def _join(ran: Sequence[FinishedProcess]) -> FinishedProcess:
    """Several processes as one: the status of the first that failed, what all have printed, confirmed by any."""
    status = next((each.status for each in ran if each.status), 0)
    return FinishedProcess(status, "".join(each.output for each in ran), any(map(_shows_bug, ran)))


def confirm_for_target(source: str, report: ReportJson, *, plants: Sequence[Path] = ()) -> FinishedProcess:
    """Judge a reproducer for the target of ``report`` in a clean process: by itself it needs a GPU.

    It must show the bug of ``report``. It is judged with ``plants``.
    """
    planted = [argument for plant in plants for argument in ("--plant", str(plant))]
    command = ("-m", "fuzzcompile", "triage", "--json", "--target", read_target(report) or "", *planted)
    ran = run_alone(source, command=command, environment=OWN_PACKAGE, timeout=240)
    try:
        reached = json.loads(next((line for line in ran.output.splitlines() if line.startswith("{")), "{}"))
    except json.JSONDecodeError:
        reached = {}
    name = reached.get("signature") or reached.get("verdict") or ran.output
    shows = ran.status == 1 and same_bug(report, reached)
    return FinishedProcess(ran.status, f"triage for {read_target(report)} says {name}\n", shows)


def _summarize(report: ReportJson, plan: ScriptPlan) -> str:
    verdict, where = report.get("verdict"), f"torch {report.get('torch') or torch.__version__}"
    device, target = str(report.get("device") or "cpu"), read_target(report)
    if target is not None:
        where += f" told of {target}, on no GPU"
    elif device != "cpu":
        where += f" on {device.split(':')[0]}"
    if plan.nproc > 1:
        where += f", {plan.nproc} processes on gloo"
    if plants := report.get("plants"):
        where += f" with {len(plants)} bug{'s'[: len(plants) - 1]} planted"
    phrase = _PHRASES.get(str(verdict))
    if plan.form == "memory":
        gained = any((difference := find_alias_difference(t)) and difference.gained for t in plan.targets)
        phrase = "Memory shared that eager does not share" if gained else "A copy where eager shares memory,"
    if phrase is None:
        return _clean(f"Eager and compiled in {where}: {verdict or 'not judged'}.")
    culprit = report.get("culprit") or {}
    names = list(dict.fromkeys(str(culprit[key]) for key in ("rewrite", "pass", "stage") if culprit.get(key)))
    fault, line = "not attributed", ""
    while not line or (len(line) + 6 > _SUMMARY_WIDTH and len(names) > 1):
        names = names[:-1] if line else names
        if names:
            fault = f"{'culprit' if culprit.get('necessary') else 'suspect'} {names[0]}"
            fault += f" ({', '.join(reversed(names[1:]))})" if names[1:] else ""
        under = "" if verdict == Verdict.EAGER_WRONG else " under torch.compile"
        line = _clean(f"{phrase}{under}, {fault}; {where}.".replace(",,", ","))
    return line


def _clean(text: str) -> str:
    return re.sub(r"(?<!\w)/\S+/", "", " ".join(text.split())).replace("\\", "/").replace('"', "'")


# The text, as data of the template ``reports/reproducer.py.j2``.

_GENERATOR = f"torch.manual_seed({COTANGENT_SEED})"
# Export takes modules.
_AS_MODULE = 'type("Program", (torch.nn.Module,), {"forward": lambda self, *args: model(*args)})()'

# Another process runs the same script first, and so fills torch's caches on disk.
_STORED = (
    "import os, subprocess, sys, tempfile",
    'if "STORED" not in os.environ:',
    '    os.environ |= {"STORED": "1", "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp()}',
    "    subprocess.run([sys.executable, *sys.argv], stdout=subprocess.DEVNULL)",
)


def write_reproducer(plan: ScriptPlan, report: ReportJson) -> str:
    """The text of the reproducer for a script that was chosen for ``report``."""
    template = get_environment().get_template("reports/reproducer.py.j2")
    texts = _Texts(plan)
    body = template.render(s=plan, t=texts, imports=[], enclosed=False)
    # The text decides which imports it needs, and whether its names clash with those of the case.
    clashes = bool(find_bound_names(plan.source) & find_bound_names(body))
    main = template.render(s=plan, t=texts, imports=texts.list_imports(body), enclosed=clashes)
    return f'"""{_summarize(report, plan)}"""\n{plan.source}\n{main}'


class _Texts:
    seed = RUN_SEED

    def __init__(self, plan: ScriptPlan) -> None:
        self.plan, self.probe = plan, plan.probe
        self.settings = plan.probe.case.settings
        # Tensors that the program makes without a device argument would stay on the CPU.
        self.placed = plan.told and makes_tensors(plan.source)

    @property
    def flat(self) -> bool:
        outputs = all(target.observable.kind == "output" for target in self.plan.targets)
        exact = self.probe.float64 or self.plan.form != "values"
        single = not (self.plan.calls or self.plan.several)
        # Of a stale graph, what changes between the calls may lie where no comparison sees it.
        short = exact and single and outputs and not (self.plan.eager_is_wrong or self.plan.is_stale)
        return self.probe.repeatable and self.plan.form != "memory" and short

    @property
    def contexts(self) -> str:
        contexts = [] if self.probe.case.grad == "enabled" else [f"torch.{self.probe.case.grad}()"]
        contexts += [f'torch._{name}.config.patch(CONFIG["{name}"])' for name in self.settings.config_patches]
        return ", ".join([*contexts, *(['torch.device("cuda")'] if self.placed else [])])

    @property
    def compiled(self) -> str:
        if self.settings.path in EXPORTED:  # beside eager mode alone, the compiler is another opinion
            return self._export()
        whole = "OPTIONS" in find_bound_names(self.plan.source)
        arguments = {
            "backend=BACKEND": self.settings.backend != "inductor",
            "mode=MODE": self.settings.mode,
            "options=OPTIONS" if whole else f"options={dict(self.settings.options)}": self.settings.options,
            "dynamic=DYNAMIC": self.settings.dynamic is not None,
            "fullgraph=FULLGRAPH": self.settings.fullgraph,
        }
        return f"torch.compile({', '.join(['model', *(text for text, given in arguments.items() if given)])})"

    def _export(self) -> str:
        """The program exported for the inputs of a call; with symbolic sizes for the first call's, and run for all."""
        settings, sizes = self.settings, ""
        if settings.dynamic:
            free = "{d: Dim.AUTO for d in range(x.dim())} if torch.is_tensor(x) else None"
            sizes = f", dynamic_shapes=tree_map(lambda x: {free}, args)"
        run = f"torch.export.export({'model' if self.probe.is_module else _AS_MODULE}, args{sizes})"
        if settings.path == AOTI:
            options = f", inductor_configs={dict(settings.options)}" if settings.options else ""
            run = f"torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package({run}{options}))"
        else:
            run += ".module()"
        once = settings.dynamic and self.plan.calls
        return f"(lambda *args: {run})(*inputs)" if once else f"(lambda *args: {run}(*args))"

    def call(self, target: str, inputs: str = "inputs") -> str:
        if self.probe.case.run is not None:
            return f"run({target}, {inputs})"
        return f"{target}({self.probe.star}{inputs})"

    @property
    def call_doubled(self) -> str:
        return self.call("model.double()" if self.probe.is_module else "model", self._convert("x.double()"))

    def convert(self, conversion: str) -> str:
        converted = self._convert(f"x.{conversion}", floating=conversion == "double()")
        inputs = "calls" if self.plan.calls else "inputs"
        return (
            f"model, {inputs} = model.{conversion}, {converted}" if self.probe.is_module else f"{inputs} = {converted}"
        )

    @property
    def laid_out(self) -> str:
        """The statement that gives the other opinions contiguous inputs, as they may call the same kernel; or empty."""
        strided = any(not x.is_contiguous() for x in self.probe.tensor_inputs if x.layout == torch.strided)
        if not (strided and self.plan.eager_is_wrong and self.settings.path == EAGER):
            return ""
        return f"{'calls' if self.plan.calls else 'inputs'} = {self._convert('x.contiguous()', floating=False)}"

    def _convert(self, tensor: str, *, floating: bool = True) -> str:
        tensors, arguments = self.probe.tensor_inputs, self.probe.inputs[0]
        if self.plan.with_backward and any(x.requires_grad for x in tensors):
            tensor = tensor.replace("x.", "x.detach().", 1) + ".requires_grad_(x.requires_grad)"
        if not self.plan.calls and isinstance(arguments, torch.Tensor) and arguments.is_floating_point():
            return tensor.replace("x.", "inputs.")
        listed = isinstance(arguments, tuple) and all(isinstance(x, torch.Tensor) for x in arguments)
        if self.plan.calls or not listed:
            which = "torch.is_tensor(x)" + (" and x.is_floating_point()" if floating else "")
            return f"tree_map(lambda x: {tensor} if {which} else x, {'calls' if self.plan.calls else 'inputs'})"
        plain = not floating or all(x.is_floating_point() for x in tensors)
        return f"[{tensor}{'' if plain else ' if x.is_floating_point() else x'} for x in inputs]"

    @property
    def backward(self) -> str:
        """The statement that runs the backward pass, as `fuzzcompile.run.observation` does it; empty without one."""
        if not self.plan.with_backward:
            return ""
        where = ', device="cpu"' if self.placed else ""
        cotangent = f"torch.randn({{0}}.shape, generator={{1}}{where}).bfloat16().half().to({{0}})"
        output = self.probe.outputs[0] if self.probe.outputs else None
        generator = _GENERATOR.replace(")", " + dist.get_rank())") if self.plan.nproc > 1 else _GENERATOR
        if isinstance(output, torch.Tensor):
            whole = "out = whole(out)\n" if self.divided else ""
            return f"{whole}out.backward({cotangent.format('out', generator)})"
        leaves = "out" if is_flat(output) and not isinstance(output, dict) else "tree_leaves(out)"
        leaves = f"map(whole, {leaves})" if self.divided else leaves
        if not all(isinstance(x, torch.Tensor) and is_inexact(x) for x in tree_leaves(output)):
            leaves = f"[x for x in {leaves} if torch.is_tensor(x) and x.is_floating_point()]"
        products = f"sum((x * {cotangent.format('x', 'random')}).sum() for x in {leaves})"
        return f"random = {generator}\n{products}.backward()"

    @cached_property
    def distributes(self) -> bool:
        """There are tensors of which each process has a part."""
        model, leaves = self.probe.model, (*tree_leaves(list(self.probe.outputs)), *self.probe.tensor_inputs)
        return any(map(is_sharded, (*leaves, *(model.parameters() if isinstance(model, torch.nn.Module) else ()))))

    @property
    def divided(self) -> bool:
        """Such tensors are compared whole."""
        return self.distributes and self.plan.form not in ("metadata", "memory")

    @property
    def gathers(self) -> bool:
        return self.divided and bool(self.plan.targets or self.backward)

    def whole(self, tensor: str) -> str:
        return f"whole({tensor})" if self.divided else tensor

    @property
    def shown(self) -> str:
        expressions = [
            f"memory({target.expression}) == memory({target.partner})" if target.partner else target.expression
            for target in self.plan.targets
        ]
        expressions = [self.whole(expression) for expression in expressions]
        return f"[{', '.join(expressions)}]" if self.plan.several else expressions[0]

    def show(self, call: str) -> str:
        return call + self.shown[3:] if self.shown.startswith("out") else self.shown.replace("(out", f"({call}", 1)

    @property
    def names(self) -> str:
        return "({})".format(", ".join(f'"{target.observable.name}"' for target in self.plan.targets))

    @property
    def wide(self) -> str:
        dtypes = [target.observable.dtype for target in self.plan.targets]
        return ".to(torch.complex128)" if any(dtype and dtype.is_complex for dtype in dtypes) else ".double()"

    def list_imports(self, text: str) -> list[str]:
        lines = [f"import {name}" for name in ("copy", "inspect", "subprocess", "sys") if f"{name}." in text]
        modules = [f"torch._{name}.config" for name in self.settings.config_patches]
        modules += ["torch._dynamo"] * ("torch._dynamo.reset" in text) + ["torch._inductor.config"] * self.probe.random
        lines += [f"import {name}" for name in sorted(modules)]
        if not modules and "torch" not in find_bound_names(self.plan.source):
            lines.append("import torch")
        if "Dim.AUTO" in text:
            lines.append("from torch.export import Dim")
        if "dist." in text and "dist" not in find_bound_names(self.plan.source):
            lines.append("import torch.distributed as dist")
        if "DTensor)" in text and "DTensor" not in find_bound_names(self.plan.source):
            lines.append("from torch.distributed.tensor import DTensor")
        if trees := [name for name in ("tree_leaves", "tree_map", "tree_structure") if f"{name}(" in text]:
            lines.append(f"from torch.utils._pytree import {', '.join(trees)}")
        lines += ["torch._inductor.config.fallback_random = True"] * self.probe.random
        return [*lines, *_STORED] if self.settings.path == CACHED else lines
