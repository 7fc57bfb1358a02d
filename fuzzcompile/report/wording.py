"""The first paragraph of an issue and the parts of its title, made only of the facts of a finding."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fuzzcompile.corpus.replay.replay_history import ReplayStatus, public
from fuzzcompile.model.compiler_toggles import NEUTRAL
from fuzzcompile.model.contract import EAGER, CauseJson, OutputJson, name_non_finite
from fuzzcompile.model.culprit_contract import read_details, spell_operator
from fuzzcompile.model.evidence import (
    EFFECT,
    ONLY_COMPILED,
    ONLY_EAGER,
    AliasDifference,
    EagerRefusal,
    ObservableName,
    ValuePair,
)
from fuzzcompile.model.hints import format_script
from fuzzcompile.model.privacy import fold_lines
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.verdicts import ERRORS, VALUES, Verdict
from fuzzcompile.report.circumstances import WORDS, meaning_for
from fuzzcompile.report.finding_facts import IssueFacts, read_constants
from fuzzcompile.report.mechanism import tell_mechanism
from fuzzcompile.report.operations import (
    find_ignored,
    is_in_script,
    list_changed_keywords,
    name_operations,
    tell_neighbour,
)
from fuzzcompile.report.proof import describe_repair, list_changes

# Users that a bug hits, conditions that it takes, versions that have it: the sentences of a draft.

_MODES = {"enabled": "with gradients enabled", "inference_mode": "under `torch.inference_mode()`"}


def reach(facts: IssueFacts) -> str:
    """Describe the reach of a bug: whether it is on by default, and the programs that it hits."""
    constants, silent = read_constants(facts.reproducer), facts.effect in (Severity.SILENT, Severity.ALIASING)
    right = "; the values are right" if facts.effect in (Severity.RAISING_LAYOUT, Severity.LAYOUT) else ""
    if constants is None:
        is_script = facts.reproducer is not None and not re.search(r"^def make\(", facts.reproducer, re.MULTILINE)
        where = "with the settings of its own script" if is_script else f"on {_device(facts)}"
        return f"It was seen {where}{' and is silent' if silent else right}."
    seen = f"It was seen {_where(facts, constants)}{right}."
    if facts.promise is not None:
        return f"It breaks a promise that holds only where a setting asks for it ({facts.promise}). {seen}"
    if opt_ins := [text for _, text in list_opt_ins(facts)]:
        return f"It needs options that are off by default: `{'`, `'.join(opt_ins)}`. {seen}"
    if draws := [
        name for name in NEUTRAL if name in _read_settings(constants) or f"{name} = True" in (facts.plain or "")
    ]:
        return f"It happens with the default settings and `{draws[0]} = True`, for equal random numbers. {seen}"
    own = next((own for name, own in WORDS["called_by_module"].items() if f"{name}(" in (facts.plain or "")), None)
    if own is not None:
        return f"It happens with the default settings where it is called as below. {own} {seen}"
    return f"It happens with the default settings. {seen}"


_PATHS = {
    "export": "torch.export.export",
    "aoti": "torch._inductor.aoti_compile_and_package",
    "cached": "graphs from torch's caches on disk",
}


def list_opt_ins(facts: IssueFacts) -> list[tuple[str, str]]:
    """What a program needs that is off by default: a short name (empty if it would say little), and how it is set."""
    constants = read_constants(facts.reproducer) or {}
    set_in = [("options={{{0!r}: {1!r}}}", constants.get("OPTIONS"))]
    set_in += [(f"torch._{area}.config.{{0}} = {{1!r}}", own) for area, own in _settings(constants.get("CONFIG"))]
    found = [(_shortest(*own), text.format(*own)) for text, settings in set_in for own in _settings(settings)]
    if constants.get("MODE"):
        found.append((str(constants["MODE"]), f"mode={constants['MODE']!r}"))
    if constants.get("PATH") in _PATHS:
        found.append(("", _PATHS[str(constants["PATH"])]))
    if constants.get("DYNAMIC"):
        found.append(("", "dynamic=True"))
    return found


def _read_settings(constants: Mapping[str, object]) -> set[str]:
    """The names of the settings that a case sets, of ``torch.compile`` and of the compiler."""
    areas = constants.get("CONFIG")
    given = [constants.get("OPTIONS"), *(areas.values() if isinstance(areas, dict) else [])]
    return {str(key) for settings in given if isinstance(settings, dict) for key in settings}


def _shortest(key: str, value: object) -> str:
    """A setting, or the last of the passes that it switches on."""
    return str(list(value)[-1]) if isinstance(value, dict) and value else key


def _settings(value: object) -> list[tuple[str, object]]:
    return [(str(key), item) for key, item in value.items() if key not in NEUTRAL] if isinstance(value, dict) else []


def since(facts: IssueFacts) -> str:
    """Name the versions that show it, in a sentence that claims no more than what was tried."""
    history, seen = facts.history, public(facts.torch or "")
    if history is None or not history.torch:
        return f"Seen in torch {seen}; other versions were not tried." if seen else ""
    first, newest = history.affected_since, history.newest
    if first is None:
        return f"Seen in torch {seen}; it did not show again on {', '.join(history.torch)}."
    right = [version for version, status in history.torch.items() if status == ReplayStatus.NOT_AFFECTED]
    text = f"torch {first}, the oldest version tried, has it."
    if list(history.torch) == [first]:
        return f"Only torch {first} was tried, and has it."
    if right:
        text = f"It is there since torch {first}; {right[-1]} does not have it."
    if history.fixed_in:
        text += f" It is fixed in {history.fixed_in}."
    elif newest and newest != first:
        said = WORDS["newest"].get(history.torch[newest], "there was no answer")
        text += f" On {newest}, the newest tried, {said}."
    return text


def tell_span(facts: IssueFacts) -> str:
    """The versions that show it in a few words, for a table."""
    history = facts.history
    if history is None or history.affected_since is None:
        return f"{public(facts.torch or '')} (no other was tried)"
    tried = f"{history.affected_since}, fixed in {history.fixed_in}" if history.fixed_in else ""
    return tried or " to ".join(dict.fromkeys([history.affected_since, history.newest or history.affected_since]))


def _where(facts: IssueFacts, constants: Mapping[str, object]) -> str:
    """Device and passes: what the script for the issue needs, else what the case was judged under."""
    mode = "in a forward and a backward pass"
    if not constants.get("BACKWARD"):
        plain = facts.plain or "no_grad"
        named = any(word in plain for word in ("no_grad", "inference_mode", "requires_grad"))
        mode = _MODES.get(str(constants.get("GRAD")), "under `torch.no_grad()`") if named else "in a forward pass"
        needless = constants.get("GRAD") == "enabled" and not named and "nn." not in plain.replace("torch.nn.f", "")
        mode += " in which no input requires gradients" if needless else " (no backward pass was tried)"
    return f"on {_device(facts)} {mode}{', called with several inputs in a row' if 'CALLS' in constants else ''}"


def _device(facts: IssueFacts) -> str:
    if facts.target is not None:
        return f"`{facts.target}` (told to the compiler)"
    kind = (facts.device or "").split(":")[0]
    together = "" if facts.nproc is None else f" in {facts.nproc} processes on gloo"
    return {"cpu": "the CPU", "cuda": "a GPU"}.get(kind, kind or "a device not recorded") + together


# What a bug does, in the words of a user who meets it.

_ERROR = 90  # characters of an error's message in a title
_WHOLE_ERROR = 300  # the same in the text
_PLACE = re.compile(r"(?<=: )[\w/.-]+\.(?:cpp|h|py):\d+: ")
_RAISED_FOR = re.compile(r"\w+(?:Error|Exception): (?=\w+(?:Error|Exception): )")  # another error
_NAMESPACES = re.compile(r"(?:[A-Za-z_]\w*::)+")
_DTYPE = re.compile(r"\b(?:b?float|u?int|complex)\d+\w*|\bbool\b")


class Effect(NamedTuple):
    """``does`` follows the operation; ``then`` follows the words "under torch.compile"."""

    does: str
    then: str = ""
    of_program: bool = False  # it is the program around the operation that does it


def describe_effect(facts: IssueFacts) -> Effect:
    """Describe the effect: what the compiled program does instead of what eager does."""
    verdict = facts.verdict
    if facts.without_compiler or _is_kernel_wrong(facts):
        wrong = "has a gradient that contradicts its values" if facts.by_gradient else "gives wrong values"
        does = WORDS["kernel_effect"].get(verdict, wrong)
        misread = [f"`{name}`" for name in facts.misreads]
        which = f"a non-contiguous {' and '.join(misread)}" if misread else "inputs that are not contiguous"
        of_dtype = f" for {' and '.join(facts.dtypes)}" if facts.by_dtype and facts.dtypes else ""
        of_size = "" if facts.wrong_size is None else f" for a dimension of size {facts.wrong_size}"
        return Effect(does, f" for {which}" if facts.by_layout else f"{of_dtype or of_size} in eager mode")
    if facts.promise is not None and facts.promise.startswith("fallback_random"):
        return Effect("draws other random numbers than eager", " with `fallback_random = True`")
    if written := _written(facts):
        return written
    if verdict in VALUES and (ignores := find_ignored(facts)):
        return Effect(ignores)
    if facts.shares_wrongly:
        return _sharing(facts)
    if facts.target is not None and verdict in VALUES:
        return Effect("is compiled into a program with other values")
    if verdict in ERRORS:
        return Effect("raises" if verdict == Verdict.RUNTIME_ERROR else "fails to compile", f": {error_in(facts)}")
    if verdict == Verdict.ACCEPTS_INVALID:
        return Effect("is accepted", f", where eager raises {refusal(facts)[0]}")
    if verdict in (Verdict.MISCOMPILE, Verdict.NONFINITE):
        return _wrong_truth(facts) or _wrong_values(facts)
    if verdict == Verdict.METADATA:
        return _metadata(facts)
    if verdict == Verdict.STALE and _is_from_cache(facts):
        return Effect("gets a wrong graph from a cache on disk")
    if verdict == Verdict.STALE:
        changed = list_changes(facts)[:1]
        return Effect("runs a stale graph", f" after `{changed[0][0]}` changed" if changed else "")
    if facts.path == EAGER:
        return Effect(WORDS["plain_effect"][Verdict.EAGER_WRONG][0])
    return Effect(*WORDS["plain_effect"].get(verdict, ("behaves differently",)))


def describe_condition(facts: IssueFacts) -> str:
    """On which inputs, as far as a title can say it; begins with a space, or is empty."""
    cause: CauseJson = (not facts.without_compiler and facts.cause) or {}
    kind, before = cause.get("kind"), str(cause.get("before") or "")
    if kind == "layout" and str(cause.get("after") or "").endswith((".clone()", ".contiguous()")):
        return ""  # of a value inside the program, which the repair that is quoted shows
    if kind == "layout":
        form = next((word for text, word in WORDS["layout_form"].items() if text in before), "non-contiguous")
        return f" for {'an' if form[0] in 'aeiou' else 'a'} {form} input"
    if kind == "sharing" and before.isidentifier():
        return " when one tensor is used twice"
    if kind == "gradient":
        return " when no input requires gradients"
    if kind == "dtype" and (names := _DTYPE.findall(before)):
        return f" for {' and '.join(dict.fromkeys(names))}"
    if kind == "size" and str(cause.get("fingerprint")).startswith("size of "):
        return f" for a {cause['fingerprint']}"
    if kind == "argument" and (changed := list_changed_keywords(facts)) and not find_ignored(facts):
        return f" with `{changed[0]}`"
    # Without a cause, what the script shows: every tensor that it makes has one dtype.
    made = (
        [] if kind or facts.without_compiler else re.findall(r"= torch\.\w+\((.*)\)$", facts.plain or "", re.MULTILINE)
    )
    dtypes = {"".join(re.findall(r"dtype=torch\.(\w+)", text)) for text in made}
    return f" for {dtypes.pop()}" if len(dtypes) == 1 and "" not in dtypes else ""


def refusal(facts: IssueFacts) -> tuple[str, str]:
    """The type and the message of the error with which eager refuses a program that runs compiled."""
    said = EagerRefusal.parse(facts.detail)
    parts = None if said is None else said.parts
    return (parts[0], fold_lines(parts[1])) if parts else ("an error", fold_lines(facts.detail))


def error_in(facts: IssueFacts, limit: int = _ERROR) -> str:
    """An error on one line, as code where Markdown would read it; of g++, clang++ or the like before torch's own."""
    kind, message = facts.detail.partition(":")[0], re.search(r": error: (.+)", facts.shown.get("error_log") or "")
    compilers = f"{kind}: {_NAMESPACES.sub('', message[1])}" if message is not None and kind.isidentifier() else ""
    text = _PLACE.sub("", compilers or facts.detail)
    while len(text) > limit and (outer := _RAISED_FOR.match(text)):
        text = text[outer.end() :]
    text = re.sub(r"\s*\S*…$", " …", fold_lines(text, limit)) or "an error"  # no word is cut
    return f"`{text}`" if re.search(r"[<*_]", text) else text


def find_pair(entry: OutputJson) -> ValuePair | None:
    """Return the property of both runs that the evidence states, if it does."""
    return ValuePair.parse(str(entry.get("detail") or ""))


def _written(facts: IssueFacts) -> Effect | None:
    named = [(ObservableName.parse(str(entry.get("name"))), entry.get("detail")) for entry in facts.wrong]
    written = [(observable, detail) for observable, detail in named if observable.after]
    details = {detail for _, detail in written}
    what = "its input" if all("input" in observable.what for observable, _ in written) else "its state"
    held = [re.fullmatch(rf"{EFFECT}(?:\w+\()?(?:\w+\.)*?(\w+(?:\.\w+)?)\)?", name.what) for name, _ in written]
    what = f"`{held[0][1]}`" if held and held[0] else what
    if details == {ONLY_EAGER}:
        return Effect(f"does not change {what}", ", but eager does", of_program=True)
    if details == {ONLY_COMPILED}:
        return Effect(f"changes {what}", ", which eager leaves as it is", of_program=True)
    return None


def _wrong_truth(facts: IssueFacts) -> Effect | None:
    """The truth of a condition, where that condition is what the operation is named by."""
    details = read_details(facts.culprit)
    truths, is_of_call = (details.get("got"), details.get("expected")), "traced call" in details
    if not facts.proved or not is_of_call or facts.expression or set(truths) != {"true", "false"}:
        return None
    return Effect(f"is {truths[0]}", f" instead of {truths[1]}")


def _wrong_values(facts: IssueFacts) -> Effect:
    entry: OutputJson = facts.measured or {}
    at = entry.get("at") or {}
    if facts.verdict == Verdict.MISCOMPILE and at.get("compiled") == 0 and at.get("eager"):
        return Effect("gives 0", f" instead of {at['eager']:.3g}" if isinstance(at["eager"], float) else "")
    if facts.verdict == Verdict.MISCOMPILE:
        return Effect("gives wrong values")
    if facts.wrong_in_gradients:
        return Effect("has other infinities or NaNs in its gradient than in eager")
    # The judge names what is not finite on either side; only a finite value of eager's makes it the compiled side.
    if at.get("eager") is None:
        return Effect("returns other infinities or NaNs than eager")
    what = name_non_finite(at, "compiled") or str(entry.get("non_finite") or "")
    return Effect(f"returns {'NaN' if 'nan' in what else what or 'NaN or infinity'}", ", where eager is finite")


_WORDS_OF_FORMS = {"dtype": "", "shape": "shape ", "requires_grad": "a tensor with requires_grad="}


def _metadata(facts: IssueFacts) -> Effect:
    if facts.effect is Severity.RAISING_LAYOUT:
        return Effect("returns a non-contiguous tensor", ", so `.view()` raises")
    if facts.effect is Severity.LAYOUT:
        return Effect("returns a tensor with other strides", " than in eager")
    for entry in facts.wrong:
        values = find_pair(entry)
        what = _WORDS_OF_FORMS.get(str(entry.get("finding")))
        if what is not None and values:
            return Effect(f"returns {what}{values.compiled}", f" instead of {values.eager}")
    return Effect("returns another dtype or shape", " than in eager")


def _sharing(facts: IssueFacts) -> Effect:
    parsed = [AliasDifference.parse(str(entry.get("detail") or "")) for entry in facts.wrong]
    differences = [difference for difference in parsed if difference is not None]
    known = len(differences) == len(parsed)
    if known and all(difference.copied_when_compiled for difference in differences):
        return Effect("returns a copy", ", where eager returns a view")
    if known and all(difference.copied_by_eager for difference in differences):
        gained = [ObservableName.parse(name).leaf for difference in differences for name in difference.gained[:1]]
        inputs = gained and all(leaf is not None and leaf.kind == "input" for leaf in gained)
        return Effect(f"shares memory with {'its input' if inputs else 'another tensor'}")
    return Effect("shares other memory", " than in eager")


def summary(facts: IssueFacts) -> str:
    """The first paragraph: what goes wrong, by how much, for whom, and since which version."""
    return " ".join(filter(None, _sentences(facts)))


def tell_claim(facts: IssueFacts) -> str:
    """The sentence that says what goes wrong, and the nearest program that passes."""
    return " ".join(filter(None, (_claim(facts), tell_neighbour(facts))))


def why_not(facts: IssueFacts) -> str:
    """Return the reason why there is nothing to file."""
    return f"no bug: {WORDS['benign'].get(facts.verdict, 'it is no bug')}"


def _sentences(facts: IssueFacts) -> Iterator[str]:
    yield _claim(facts)
    if facts.verdict == Verdict.EAGER_WRONG:
        yield from _tell_eager_fault(facts)
    elif facts.without_compiler:
        side = "eager mode gives it" if facts.eager_is_wrong else "compiled programs give it"
        yield f"No compiler is involved: the operator itself is wrong, on inputs that {side}."
        if not facts.eager_is_wrong:
            yield f"The table is of {_subject(facts)} under `torch.compile`."
        else:
            backward = "Autograd in eager mode makes that call in the backward of"
            how = backward if facts.verdict == Verdict.WRONG_GRADIENT else "Eager mode makes that call in"
            yield f"{how} {_subject(facts)}."
            if facts.proved:
                yield "Backends that compute it in another way match the operator called on contiguous copies."
            yield "In the table, what agrees with eager mode is wrong."
    else:
        if facts.target is not None and facts.verdict in VALUES:
            text = meaning_for(facts.report, "")
            yield f"{text[:1].upper()}{text[1:]}."
        yield _observe_in_script(facts)
        yield from _tell_stale_graph(facts)
        yield tell_neighbour(facts)
        yield reach(facts)
    if facts.nproc is not None:
        command = format_script(Path("repro.py"), facts.nproc)
        yield WORDS["together"]["says"].format(count=facts.nproc, command=command)
    yield since(facts)


def _is_from_cache(facts: IssueFacts) -> bool:
    return read_details(facts.culprit).get("kind") == "cache"


def _tell_stale_graph(facts: IssueFacts) -> Iterator[str]:
    """What changed between the calls, and how it was shown that no guard notices it."""
    if facts.verdict != Verdict.STALE:
        return
    if _is_from_cache(facts):
        yield "Compiled anew without the cache, the program is right: the graph that the cache gave is not its graph."
        return
    for name, values in list_changes(facts) if not tell_mechanism(facts.report) else ():
        yield f"Between the calls, `{name}` changes ({values})."
    yield "The call is right if it is compiled anew from the same state, so that the graph is stale and not wrong."
    guards = read_details(facts.culprit).get("guards") or ()
    told = f"Dynamo's guards on it: {'; '.join(f'`{guard}`' for guard in guards)}." if guards else ""
    yield told or "Dynamo has no guard on it."


def _elide_names(code: str) -> str:
    """A call without the names of tensors, which the script that is shown may lack."""
    return re.sub(r"\((?:[a-z_]\w*(?:, )?)+\)", "(…)", code)


def _is_kernel_wrong(facts: IssueFacts) -> bool:
    return facts.verdict == Verdict.EAGER_WRONG and facts.kernel is not None


def _tell_eager_fault(facts: IssueFacts) -> Iterator[str]:
    """That the compiled program is right, how that was shown, and how far eager mode is off."""
    if facts.kernel is not None:
        maker = (
            "Autograd makes that call in the backward of"
            if "backward" in facts.kernel
            else "Eager mode makes that call in"
        )
        yield f"{maker} {_elide_names(_subject(facts))}, as in the program that is folded below."
        compiled = "Under `torch.compile` the same program computes it by other code, and is right"
        right = "A second reference computes it by other code" if facts.path == EAGER else compiled
        yield f"No compiler is involved. {right}: eager mode agrees with it {describe_repair(facts)}."
    else:
        yield f"The same program under `torch.compile` is right: {fold_lines(facts.detail)}."
    yield "" if facts.without_compiler else _observe_in_script(facts)  # its script calls the kernel on other values


class Claim(NamedTuple):
    """The parts of the sentence that says what goes wrong; ``subjects`` are ways to name the operation."""

    subjects: Sequence[str]
    does: str
    under: str
    condition: str
    then: str


def make_claim(facts: IssueFacts, compiler: str = "torch.compile") -> Claim:
    """The claim of an issue; what follows the subject is put together as it stands."""
    effect = describe_effect(facts)
    if facts.kernel and (facts.without_compiler or _is_kernel_wrong(facts)):
        on = f" on {_device(facts)}" if facts.device else ""
        name = facts.kernel.removesuffix(".default")
        kernels = (f"`{spell_operator(name)}`", f"`{name}`", f"`{name.removeprefix('aten.')}`")
        return Claim(kernels, effect.does, on, effect.then, "")
    if facts.verdict == Verdict.STALE:
        return Claim(("A compiled program",), effect.does, "", "", effect.then)
    # An error of the compiler needs no "under torch.compile".
    bare = facts.without_compiler or facts.verdict in (Verdict.COMPILE_ERROR, Verdict.EAGER_WRONG)
    bare |= facts.target is not None
    names = name_operations(facts)
    if effect.of_program:
        names = tuple(name if name.startswith("a program") else f"a program with {name}" for name in names)
    subjects = [f"{name[:1].upper()}{name[1:]}" for name in names or ("a program",)]
    return Claim(subjects, effect.does, "" if bare else f" under {compiler}", describe_condition(facts), effect.then)


def _claim(facts: IssueFacts) -> str:
    """The sentence of the claim, with the whole message of an error."""
    claim = make_claim(facts, "`torch.compile`")
    then = f": {error_in(facts, _WHOLE_ERROR)}" if facts.verdict in ERRORS and claim.then else claim.then
    subject = next((name for name in claim.subjects if is_in_script(facts, name)), claim.subjects[-1])
    text = f"{subject} {claim.does}{claim.under}{claim.condition}{then}"
    return text if text.endswith((".", "…")) else f"{text}."


def _subject(facts: IssueFacts) -> str:
    return next(iter(name_operations(facts)), "a program")


_NUMBERED = re.compile(r" at \[[^]]*\]|\binputs? \d+|\b[Rr]esult \d+")
_TUPLE = re.compile(r"\([\d, ]+\)")
# A number with its fraction and exponent, not a digit of a name.
_NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d*|\d+)(?:e[-+]?\d+)?(?![\w.]*\w)|\bnan\b|\binf\b")


def _observe_in_script(facts: IssueFacts) -> str:
    """What was observed, if the script that is shown says or prints the same numbers; nothing of any other program."""
    told = _observed(facts)
    if not facts.plain or not told:
        return told
    shown = f"{facts.plain}\n{facts.shown.get('plain_output') or ''}"
    tuples = _TUPLE.findall(told)
    there = [float(number) for number in _NUMBER.findall(shown)]
    numbers = [float(number) for number in _NUMBER.findall(_NUMBERED.sub("", _TUPLE.sub("", told)))]
    found = all(any(_is_printed_as(number, own) for own in there) for number in numbers)
    return told if found and all(each in shown for each in tuples) else ""


def _is_printed_as(number: float, printed: float) -> bool:
    """Return whether a number of four digits may be one that torch prints, with four digits behind the point."""
    both_nan = math.isnan(number) and math.isnan(printed)
    return both_nan or math.isclose(number, printed, rel_tol=5e-4, abs_tol=5e-5 if number > 5e-4 else 0.0)


def _observed(facts: IssueFacts) -> str:
    if facts.verdict == Verdict.ACCEPTS_INVALID:
        message = refusal(facts)[1]
        return f"Eager's error: `{message}`." if message else ""
    if facts.verdict in ERRORS:
        return ""  # the claim has its message
    if not facts.wrong:
        return f"{fold_lines(facts.detail)}." if facts.detail else ""
    if facts.measured:
        return f"{_measured(facts, facts.measured)}."
    entry = facts.wrong[0]
    name, detail = _name(facts, entry), fold_lines(str(entry.get("detail") or entry.get("finding")), 160)
    values, shared = find_pair(entry), AliasDifference.parse(detail)
    if facts.shares_wrongly and shared is None:
        return "The values are the same."
    if facts.shares_wrongly and shared is not None:
        is_or = "is " if shared.copied_when_compiled else ""
        what = shared.eager.removeprefix(f"{entry.get('name')} ")
        said = f"{name} {what} in eager, and {is_or}{shared.compiled} when compiled; the values are the same."
        return re.sub(r"\binput(?=\d)", "input ", said)
    if entry.get("finding") == "integer" and (at := entry.get("at") or {}).keys() >= {"eager", "compiled"}:
        return f"{name}{_tell_place(entry)} is {at['eager']} in eager and {at['compiled']} compiled."
    if entry.get("finding") == "stride" and values:
        return f"Its strides are {values.eager} in eager and {values.compiled} compiled."
    return f"{name}: {detail}."


def _measured(facts: IssueFacts, entry: OutputJson) -> str:
    at = entry.get("at") or {}
    eager, compiled = _number(at.get("eager")), _number(at.get("compiled")) or name_non_finite(at, "compiled")
    name = _name(facts, entry)
    errors = [_number(entry.get(key)) for key in ("max_abs_error_compiled", "max_abs_error_eager")]
    against = f"{errors[0]} away from float64, eager {errors[1]}" if all(errors) else ""
    # Float64 in eager mode calls the kernel that is wrong, and a plain script does not compute in it.
    against = "" if facts.eager_is_wrong or (facts.plain and eager and compiled) else against
    if not eager or not compiled:
        return f"{name} is {against or 'NaN or infinite in other elements than in eager'}"
    other = "by a second reference" if facts.path == EAGER else "compiled"
    pair = f"{name}{_tell_place(entry)} is {eager} in eager and {compiled} {other}"
    return f"{pair} (at worst {against})" if against else pair


def _tell_place(entry: OutputJson) -> str:
    return f" at {entry['where']}" if entry.get("where") else ""


def _name(facts: IssueFacts, entry: OutputJson) -> str:
    name = str(entry.get("name"))
    observable = ObservableName.parse(name)
    if observable.derivative and observable.call is None:
        return f"The {name.replace('input', 'input ', 1) if name[-1].isdigit() else name}"
    if observable.leaf is not None and observable.leaf.kind == "out" and observable.what == name:
        return "The result" if len(facts.outputs) == 1 else f"Result {observable.leaf.index}"
    return f"`{name}`"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else ""
