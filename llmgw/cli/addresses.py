"""Addresses as arguments of commands."""

from typing import Any

import click

from llmgw.model.addresses import parse_address


class Address(click.ParamType[str]):
    """``model/chat``, ``model/chat/0`` or ``node/gpu01``. Where only one kind is meant, its name alone will do."""

    name = "address"

    def __init__(self, *, kind: str = "") -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            address = parse_address(f"{'' if '/' in str(value) else self._kind}{value}")
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)
        if not address.startswith(self._kind):
            self.fail(f"{value} is no {self._kind.rstrip('/')}: write {self._kind}NAME", param, ctx)
        return address


ADDRESS = Address()
MODEL_ADDRESS = Address(kind="model/")
