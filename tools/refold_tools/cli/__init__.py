"""The refold command: each command is imported when it is called, so that start-up stays short."""

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (design, section 8).

    0 done; 1 the run or request failed or was cancelled; 2 wrong usage or input; 3 stopped, waiting
    for a person or other code; 4 log, registry or database not reachable. Nothing that a person
    can provoke ends in a traceback; `--debug` (or `REFOLD_DEBUG=1`) shows it.
    """
    from refold_tools.cli.failures import report, wants_traceback

    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = wants_traceback(arguments)
    progress = "--progress" in arguments
    arguments = [one for one in arguments if one not in ("--debug", "--progress")]
    try:
        from refold_tools.cli.commands import root
        from refold_tools.cli.output import ReadingProgress

        ReadingProgress.wanted = progress
        code = root().main(args=arguments, prog_name="refold", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # Whoever read our output has gone: say nothing more, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return report(error, as_json="--json" in arguments, debug=debug)
