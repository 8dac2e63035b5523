"""What no input may cause: code run from it, processes, connections, files elsewhere, or memory without bound."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPARE_BYTES = 1536 * 2**20
"""Address space a case may take beyond what the process had before the first."""
MOST_GROWTH_BYTES = 400 * 2**20
"""Resident memory one case may add; the inputs are kilobytes."""
ALWAYS_WRONG = {
    *("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill"),
    *("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto", "webbrowser.open", "ctypes.dlopen"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "shutil.rmtree", "os.truncate"),
}
MAKERS_OF_CLASSES = (
    "dataclasses",
    "collections",
    "enum",
    "typing",
    "functools",
    "torch",
    "pydantic",
    "numpy",
    "importlib",
)
"""Libraries that build classes and functions by running text of their own."""


class Watch:
    """An audit hook that remembers what happened while it was armed."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.armed = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in ALWAYS_WRONG and not (event.startswith(("os.", "shutil.")) and self._is_ours(args)):
            self.seen.append(f"{event} {args!r:.200}")
        elif event == "open" and self._is_write_elsewhere(args):
            self.seen.append(f"open for writing {args!r:.200}")
        elif event == "exec" and not _is_a_librarys_own(args):
            self.seen.append(f"{event} {args!r:.200}")

    def _is_ours(self, args: tuple[Any, ...]) -> bool:
        return bool(args) and isinstance(args[0], str) and args[0].startswith(self.folder)

    def _is_write_elsewhere(self, args: tuple[Any, ...]) -> bool:
        path, mode, flags = args
        writing = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & 3)
        return writing and isinstance(path, str) and not path.startswith((self.folder, "/dev/null"))


def limit_memory() -> None:
    """Let this process take so much address space more than it has, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def peak_bytes() -> int:
    """The most resident memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def outcome_of(call: Callable[[], None], watch: Watch, accepted: type[Exception]) -> tuple[str, BaseException | None]:
    """What became of one call: "ok", "refused" (an accepted error in one line), or the kind of finding."""
    before = peak_bytes()
    watch.seen.clear()
    watch.armed = True
    problem: BaseException | None = None
    kind = "ok"
    try:
        call()
    except accepted as error:
        kind, problem = ("refused" if _is_one_line(error) else "message"), error
    except MemoryError as error:
        kind, problem = "memory", error
    except BaseException as error:
        kind, problem = "exception", error
    finally:
        watch.armed = False
    if watch.seen:
        return "code", RuntimeError("; ".join(watch.seen))
    if peak_bytes() - before > MOST_GROWTH_BYTES:
        return "memory", MemoryError(f"{(peak_bytes() - before) >> 20} MB")
    return kind, problem


def _is_one_line(error: Exception) -> bool:
    words = str(error)
    return bool(words) and "\n" not in words and len(words) < 2000


def _is_a_librarys_own(args: tuple[Any, ...]) -> bool:
    """Modules being imported, and classes that libraries make from text of their own."""
    name = getattr(args[0], "co_filename", "")
    if name.startswith("<frozen") or Path(name).is_file():
        return True
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tests.fuzz.watch"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith(MAKERS_OF_CLASSES)
