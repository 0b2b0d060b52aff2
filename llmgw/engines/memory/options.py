"""What people's arguments say that changes how much memory an engine takes."""

from llmgw.model.desired import DesiredModel


def option(model: DesiredModel, *names: str) -> str | None:
    """The value given last to a flag, by the profile or the model; None: not given. ``_`` and ``-`` are the same to engines."""
    found: str | None = None
    rest = iter((*model.profile.args, *model.spec.args))
    for arg in rest:
        flag, equals, attached = arg.partition("=")
        if _plain(flag) in names:
            found = attached if equals else next(rest, None)
    return found


def flag(model: DesiredModel, *names: str) -> bool:
    return any(_plain(arg.partition("=")[0]) in names for arg in (*model.profile.args, *model.spec.args))


def count(model: DesiredModel, *names: str) -> int | None:
    """The same where it is a number of something."""
    value = option(model, *names)
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


def amount(model: DesiredModel, *names: str) -> float | None:
    """The same where it may have a fraction."""
    value = option(model, *names)
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _plain(flag_: str) -> str:
    return flag_.replace("_", "-")
