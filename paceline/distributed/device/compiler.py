"""torch's compiler, as a run uses it: how many forms of a network there may be, and how many were made.

torch compiles a network once for each shape of its input, and gives up past a limit: whatever comes then is computed uncompiled,
with a line in torch's own log. Here the limit follows from the shapes of the run and passing it is an error, so nothing becomes
slow in silence. The names are those of torch 2.11 to 2.15; torch._dynamo takes a second to import, so it is only where it is used.
"""

from __future__ import annotations

import sys
from typing import Any

from paceline._utils.errors import RecipeError

# Beside one form for each shape: torch's own limit is eight for whoever knows of one.
SPARE_FORMS = 7
# Of all networks inside another that the compiler could not take as one: torch's own limit, for one shape.
FORMS_OF_PARTS = 256
LIMIT_PASSED = "FailOnRecompileLimitHit"  # torch._dynamo.exc's


def set_recompile_limit(shapes: int) -> None:
    """Let a network be compiled for so many shapes, and make one that is compiled oftener than that an error."""
    config = _dynamo("config")
    # A process may train several runs, and forms of the same code add up.
    config.recompile_limit = max(config.recompile_limit, count_compilations() + shapes + SPARE_FORMS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, shapes * FORMS_OF_PARTS)
    # Whoever tells torch by its variable to go on uncompiled after an error has asked for that.
    config.fail_on_recompile_limit_hit = not config.suppress_errors


def count_compilations() -> int:
    """Graphs that this process has compiled so far. A network that is taken as one is one for each shape of its input."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return int(_dynamo("utils").counters["stats"]["unique_graphs"])


def explain_recompile_limit(error: BaseException) -> RecipeError | None:
    """What to say where `error` is that of a network past the limit; None for any other."""
    if type(error).__name__ != LIMIT_PASSED:
        return None
    return RecipeError(
        f"--system.compile: the network exceeds torch's limit of {_dynamo('config').recompile_limit} compiled variants and would "
        "continue without compilation. Set --system.compile off. To see the variants, set TORCH_LOGS=recompiles."
    )


def _dynamo(part: str) -> Any:
    import torch._dynamo

    return getattr(torch._dynamo, part)
