"""The options of sbatch: which there are, and how they are found in a script.

Read as sbatch reads them: only lines that begin with `#SBATCH`, before the first command; words with quotes and
backslashes, a `#` outside of them ends the line; `--name=value`, `--name value`, an abbreviation that fits one name, `-N2`,
`-N 2`. What an option means is said in `muster.doors.slurm`.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from muster.doors.errors import DoorError, quoted
from muster.doors.origin import Notices

OPTIONS_MAX = 1000
LETTERS_MAX = 100

NEEDS: Final = "needs"
FLAG: Final = "flag"
MAY: Final = "may"


class Option(msgspec.Struct, frozen=True):
    """One option: its long name, its letter, whether it takes a value, and why it is not honoured ("" if it is)."""

    name: str
    letter: str = ""
    value: Literal["needs", "flag", "may"] = "needs"
    why_not: str = ""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """An option as it was said, with its place."""

    option: Option
    value: str
    spelled: str
    file: str
    line: int

    def error(self, sentence: str) -> DoorError:
        """The error that this option is, to be raised."""
        return DoorError(self.file, self.line, self.spelled, sentence)


_BINDING = "a task is given cores and GPUs by number, and not which"
_LATER = "it is not supported yet"
_MAIL = "Muster sends no mail"
_SITE = "nodes have labels and no such property"

OPTIONS = (
    # what Muster does
    Option("array", "a"),
    Option("chdir", "D"),
    Option("constraint", "C"),
    Option("exclusive", "", MAY),
    Option("licenses", "L"),
    Option("mincpus"),
    Option("prefer"),
    Option("spread-job", "", FLAG),
    Option("switches"),
    Option("workdir"),  # what chdir was called until Slurm 17.11
    Option("cpus-per-gpu"),
    Option("cpus-per-task", "c"),
    Option("error", "e"),
    Option("exclude", "x"),
    Option("export"),
    Option("gpus", "G"),
    Option("gpus-per-node"),
    Option("gpus-per-task"),
    Option("gres"),
    Option("job-name", "J"),
    Option("mem"),
    Option("mem-per-cpu"),
    Option("mem-per-gpu"),
    Option("nice", "", MAY),
    Option("nodelist", "w"),
    Option("nodes", "N"),
    Option("ntasks", "n"),
    Option("tasks"),
    Option("ntasks-per-gpu"),
    Option("ntasks-per-node"),
    Option("tasks-per-node"),
    Option("output", "o"),
    Option("partition", "p"),
    Option("priority"),
    Option("requeue", "", FLAG),
    Option("time", "t"),
    Option("tmp"),
    # what is kept with the job and decides nothing
    Option("account", "A", NEEDS, "it is kept as the label slurm.account, and nothing is charged to it"),
    Option("comment"),
    Option("qos", "q", NEEDS, "it is kept as the label slurm.qos, and decides nothing"),
    # what makes no difference here
    Option("ignore-pbs", "", FLAG),
    Option("oversubscribe", "s", MAY),
    Option("parsable", "", MAY),
    Option("quiet", "Q", FLAG),
    Option("share", "", FLAG),
    Option("verbose", "v", FLAG),
    Option("wait-all-nodes"),
    # what Muster does not do
    Option("acctg-freq", "", NEEDS, "use is not sampled"),
    Option("batch", "", NEEDS, _SITE),
    Option("bb", "", NEEDS, "there are no burst buffers"),
    Option("bbf", "", NEEDS, "there are no burst buffers"),
    Option("begin", "b", NEEDS, "the job may start at once: " + _LATER),
    Option("cluster-constraint", "", NEEDS, "there is one cluster"),
    Option("clusters", "M", NEEDS, "there is one cluster"),
    Option("contiguous", "", FLAG, "which nodes stand side by side is not known"),
    Option("core-spec", "S", NEEDS, _BINDING),
    Option("cores-per-socket", "", NEEDS, _BINDING),
    Option("cpu-freq", "", NEEDS, "the frequency of a core is left alone"),
    Option("deadline", ""),
    Option("delay-boot", "", NEEDS, "nodes are not booted"),
    Option("dependency", "d"),
    Option("distribution", "m", NEEDS, "ranks are numbered node by node"),
    Option("export-file", "", NEEDS, "variables are said with --export"),
    Option("extra", "", NEEDS, "it decides nothing"),
    Option("extra-node-info", "B", NEEDS, _BINDING),
    Option("get-user-env", "", MAY, "the environment is that of the submission"),
    Option("gpu-bind", "", NEEDS, _BINDING),
    Option("gpu-freq", "", NEEDS, "the frequency of a GPU is left alone"),
    Option("gpus-per-socket", "", NEEDS, _BINDING),
    Option("gres-flags", "", NEEDS, _BINDING),
    Option("hint", "", NEEDS, _BINDING),
    Option("hold", "H", FLAG, "the job may start at once"),
    Option("input", "i", NEEDS, "standard input is empty"),
    Option("kill-on-invalid-dep", "", NEEDS, "a job that waits for what can never be is rejected"),
    Option("mail-type", "", NEEDS, _MAIL),
    Option("mail-user", "", NEEDS, _MAIL),
    Option("mcs-label", "", NEEDS, "it decides nothing"),
    Option("mem-bind", "", NEEDS, _BINDING),
    Option("network", "", NEEDS, "the network is left alone"),
    Option("no-kill", "k", MAY, "the job ends when a node of it is lost, and is run again"),
    Option("no-requeue", "", FLAG, "a job that lost its nodes or was preempted is run again"),
    Option("nodefile", "F", NEEDS, "nodes are named with --nodelist"),
    Option("ntasks-per-core", "", NEEDS, _BINDING),
    Option("ntasks-per-socket", "", NEEDS, _BINDING),
    Option("open-mode", "", NEEDS, "output is added to a file that is there"),
    Option("overcommit", "O", FLAG, "each task is given its cores"),
    Option("power", "", NEEDS, "power is left alone"),
    Option("profile", "", NEEDS, "use is not sampled"),
    Option("propagate", "", MAY, "limits are those of the agent"),
    Option("reboot", "", FLAG, "nodes are not booted"),
    Option("reservation", "", NEEDS, "there are no reservations yet"),
    Option("resv-ports", "", MAY, "ports are not counted"),
    Option("segment", "", NEEDS, "which nodes stand side by side is not known"),
    Option("signal", "", NEEDS, "no signal is sent before the time limit; SIGTERM is, 30 s before SIGKILL"),
    Option("sockets-per-node", "", NEEDS, _BINDING),
    Option("test-only", "", FLAG, "muster convert shows what would be submitted"),
    Option("thread-spec", "", NEEDS, _BINDING),
    Option("threads-per-core", "", NEEDS, _BINDING),
    Option("time-min", "", NEEDS, "the time limit is the one of --time"),
    Option("tres-bind", "", NEEDS, _BINDING),
    Option("tres-per-task", "", NEEDS, "say --cpus-per-task and --gpus-per-task"),
    Option("umask", "", NEEDS, "it is that of the agent"),
    Option("use-min-nodes", "", FLAG, "as many nodes as fit are taken"),
    Option("wait", "W", FLAG, "muster submit --wait waits"),
    Option("wckey", "", NEEDS, "it decides nothing"),
    Option("wrap", "", NEEDS, "it belongs on the command line and not into a script"),
)
_BY_NAME = {option.name: option for option in OPTIONS}
_BY_LETTER = {option.letter: option for option in OPTIONS if option.letter}
_SAME = {"workdir": "chdir", "tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}


def script_options(text: str, file: str, notices: Notices) -> dict[str, Said]:
    """The options of a script by their names; of an option that is said twice the last counts.

    Raises:
        DoorError: a line that sbatch would not take.
    """
    found: dict[str, Said] = {}
    count = 0
    begun = late = pbs = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#SBATCH"):
            if begun:
                if not late:
                    notices.add(number, "#SBATCH", "stands after the first command: like sbatch, nobody reads it")
                late = True
                continue
            count += 1
            if count > OPTIONS_MAX:
                raise DoorError(file, number, "#SBATCH", f"is beyond the {OPTIONS_MAX} lines of options that a script may have")
            words = split_line(line[len("#SBATCH") :], file, number)
            if any(word in ("hetjob", "packjob") for word in words):
                raise DoorError(file, number, "#SBATCH", "begins another part of a heterogeneous job, which is not supported")
            for said in read_words(words, file, number, notices):
                found[said.option.name] = said
        elif line.startswith(("#PBS", "#BSUB")) and not pbs:
            pbs = True
            notices.add(number, line[:5].strip(), "is an option of another scheduler and not honoured")
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = True
    return found


def split_line(line: str, file: str, number: int) -> list[str]:
    """The words of a line, as sbatch splits it.

    Raises:
        DoorError: a quote is not closed.
    """
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    escaped = False
    for sign in line:
        if escaped:
            word = [] if word is None else word
            word.append(sign)
            escaped = False
        elif sign == "\\":
            escaped = True
        elif quote:
            if sign == quote:
                quote = ""
            elif word is not None:
                word.append(sign)
        elif sign in "\"'":
            word = [] if word is None else word
            quote = sign
        elif sign == "#":
            break
        elif sign.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = [] if word is None else word
            word.append(sign)
    if quote:
        raise DoorError(file, number, "#SBATCH", f"has a quote {quote} that is not closed")
    if word is not None:
        words.append("".join(word))
    return words


def read_words(words: Sequence[str], file: str, line: int, notices: Notices) -> Iterator[Said]:
    """The options in these words.

    Raises:
        DoorError: a value is missing, or a word is no option.
    """
    if len(words) > OPTIONS_MAX:
        raise DoorError(file, line, "#SBATCH", f"has {len(words)} words; at most {OPTIONS_MAX} are read")
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            option = _long(name, file, line, notices)
            if option is None:
                if not equals and rest and not rest[-1].startswith("-"):
                    rest.pop()  # most likely its value
                continue
            if option.value == FLAG:
                if equals:
                    raise DoorError(file, line, f"--{option.name}", f"takes no value, and was given {quoted(value)}")
            elif option.value == NEEDS and not equals:
                if not rest:
                    raise DoorError(file, line, f"--{option.name}", f"needs a value: --{option.name}=...")
                value = rest.pop()
            yield Said(option=_same(option), value=value, spelled=f"--{name}", file=file, line=line)
        elif word.startswith("-") and len(word) > 1:
            yield from _letters(word[1:], rest, file, line, notices)
        else:
            raise DoorError(file, line, "#SBATCH", f"has {quoted(word)}, which is no option; options begin with - or --")


def _letters(letters: str, rest: list[str], file: str, line: int, notices: Notices) -> Iterator[Said]:
    for _ in range(LETTERS_MAX):
        if not letters:
            return
        letter, letters = letters[0], letters[1:]
        option = _BY_LETTER.get(letter)
        if option is None:
            notices.add(line, f"-{letter}", "is no option of sbatch and not honoured")
            if not letters and rest and not rest[-1].startswith("-"):
                rest.pop()
            return
        value = ""
        if option.value == NEEDS:
            value = letters or (rest.pop() if rest else "")
            if not value:
                raise DoorError(file, line, f"-{letter}", f"needs a value: -{letter} ... or --{option.name}=...")
            letters = ""
        elif option.value == MAY:
            value, letters = letters, ""
        yield Said(option=_same(option), value=value, spelled=f"-{letter}", file=file, line=line)
    raise DoorError(file, line, "#SBATCH", f"has more than {LETTERS_MAX} letters behind one -")


def _long(name: str, file: str, line: int, notices: Notices) -> Option | None:
    """The option of this name, or the one that it abbreviates."""
    option = _BY_NAME.get(name)
    if option is not None:
        return option
    fitting = [option for option in OPTIONS if option.name.startswith(name)] if name else []
    if len(dict.fromkeys(_same(option).name for option in fitting)) > 1:
        names = ", ".join(f"--{option.name}" for option in fitting[:6])
        raise DoorError(file, line, f"--{name[:40]}", f"may stand for {names}: write it out")
    if not fitting:
        notices.add(line, f"--{name[:40]}", "is no option of sbatch and not honoured")
        return None
    return fitting[0]


def _same(option: Option) -> Option:
    return _BY_NAME[_SAME.get(option.name, option.name)]
