"""A task's arguments and result <-> JSON text. Payloads are stored by parameter name; omitted arguments are
not stored, so that the handler's default at run time applies."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import InvalidArguments, InvalidPayload, TaskDefinitionError
from ..runtime.handler import NeedsNewer, NeverFits, PayloadError
from .convert import Converter, Misfit, NewerVersion, Raw, Scalar, TooDeep, Unsupported, converter, type_name
from .fingerprint import fingerprint
from .options import EnqueueOptions
from .payload import RESULT_BYTES, WRITERS, dump, quoted, short
from .signature import HandlerSignature, call_line

Upgrade = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]


class Codec:
    """Encodes and decodes for one task. Converters are built at first use."""

    __slots__ = (
        "_converters",
        "_fingerprint",
        "_heads",
        "_kinds",
        "_names",
        "_plain_types",
        "_required",
        "_task",
        "_upgrade",
        "_version",
        "signature",
        "versions",
    )

    def __init__(
        self, task: str, signature: HandlerSignature, version: int = 1, upgrade: Upgrade | None = None
    ) -> None:
        self.signature = signature
        self.versions = frozenset({version, *(upgrade or ())})
        self._task = task
        self._version = version
        self._upgrade = dict(upgrade or {})
        self._converters: dict[str, Converter] = {}
        self._fingerprint: str | None = None
        self._plain_types: dict[str, type | None] = {}  # those that need no conversion
        self._kinds: dict[str, type | None] | None = None  # the same, of all parameters
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        params = signature.params
        self._names = tuple(params) if all(p.kind is plain for p in params.values()) else None
        self._heads = {name: quoted(name) + ":" for name in params}
        self._required = {name for name, p in params.items() if p.default is p.empty}

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The payload of a call; InvalidArguments or InvalidPayload name the part that does not fit."""
        names = self._names
        if names is not None and len(args) <= len(names):  # the usual call, at a tenth of the cost
            if (
                not kwargs
                and len(args) == len(names)
                and (text := self._short(zip(names, args, strict=True)))
            ):
                return text
            given = dict(zip(names, args, strict=False))
            if kwargs:  # in the order of the signature, as bind() has them
                given.update({name: kwargs[name] for name in names[len(args) :] if name in kwargs})
            if len(given) == len(args) + len(kwargs) and (
                len(given) == len(names) or self._required <= given.keys()
            ):
                return self._short(given.items()) or self._dump(given)
        try:
            arguments = self.signature.call.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArguments(self._unbindable(error, kwargs)) from None
        return self._dump(arguments)

    def encode_some(self, arguments: Mapping[str, Any]) -> str:
        """The payload of some of the arguments, for tests that compare a part."""
        if wrong := [name for name in arguments if name not in self.signature.params]:
            raise InvalidArguments(f"{self._task} has no parameter {_names(wrong)}")
        return self._dump(arguments)

    def _short(self, arguments: Iterable[tuple[str, Any]]) -> str | None:
        """The payload if it is short, and every argument a plain value of its declared type: the result of `_dump`, at a
        third of the cost. None: use that, also to find out what is wrong."""
        plain, heads, members = self._plain_types, self._heads, []
        try:
            for name, value in arguments:
                kind, declared = type(value), plain[name]
                if declared is not kind and declared is not object:
                    return None
                members.append(heads[name] + WRITERS[kind](value))
            return short(members)
        except (KeyError, ValueError):
            return None

    def _dump(self, arguments: Mapping[str, Any]) -> str:
        payload = {}
        converters = self._converters
        for name, value in arguments.items():
            try:
                payload[name] = (converters.get(name) or self._converter(name)).dump(value)
            except TooDeep as error:
                raise InvalidPayload(
                    f"payload value {name} of {self._task} is {error}. Flatten it, or pass it as one string"
                ) from None
            except Misfit as error:
                raise self._unfit(name, error) from None
        return dump(payload)

    def load_argument(self, name: str, value: Any) -> Any:
        """One argument from its JSON form, as a person types it; InvalidArguments when it does not fit."""
        try:
            return self._converter(name).load(value)
        except Misfit as error:
            raise self._unfit(name, error) from None

    def _unfit(self, name: str, error: Misfit) -> InvalidArguments:
        kind = type_name(self.signature.hint(name))
        text = f", {error}" if str(error).startswith("not ") else f": {error}"
        return InvalidArguments(f"argument {name!r} of {self._task} must be {kind}{text}")

    def decode(self, version: int, text: str) -> dict[str, Any]:
        """The handler's keyword arguments from a stored payload; PayloadError says why not."""
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = self._plain_kinds()
        # Most payloads are the arguments as they are: all of them present, each a plain value of its declared type.
        # Checking that takes a third of the time.
        if version == self._version:
            try:
                payload, end = _scan(text, 0)
                if end == len(text) and type(payload) is dict and len(payload) == len(kinds):
                    for name, value in payload.items():
                        kind = kinds[name]
                        if kind is not type(value) and kind is not object:
                            break
                    else:
                        return payload
            except (StopIteration, ValueError, RecursionError, KeyError):
                pass  # the usual way reports what is wrong
        return self._decoded(self._upgraded(version, self._read(text)))

    def _plain_kinds(self) -> dict[str, type | None]:
        """Parameter -> the type whose values need no conversion; None: each does, or may."""
        try:
            for name in self.signature.params:
                self._converter(name)
        except TaskDefinitionError:  # reported when it is needed
            return {"": None}
        return {name: self._plain_types[name] for name in self.signature.params}

    @property
    def returns_none(self) -> bool:
        """Whether the return annotation is None, or missing."""
        try:
            hint = self.signature.hint("return")
        except TaskDefinitionError:
            return False
        return hint in (None, type(None), Any, object)

    def _decoded(self, payload: dict[str, Any]) -> dict[str, Any]:
        params = self.signature.params
        if unknown := [name for name in payload if name not in params]:
            raise PayloadError(
                f"{self._task} has no parameter {_names(unknown)} (known: {', '.join(params) or 'none'})"
            )
        if missing := [n for n, p in params.items() if n not in payload and p.default is p.empty]:
            raise PayloadError(f"the payload lacks {_names(missing)}, which {self._task} requires")
        arguments = {}
        for name, value in payload.items():
            try:
                arguments[name] = self._converter(name).load(value)
            except NewerVersion as error:
                raise NeedsNewer(str(error)) from None
            except Misfit as error:
                kind = type_name(self.signature.hint(name))
                raise PayloadError(f"parameter {name!r} of {self._task} must be {kind}: {error}") from None
            except TaskDefinitionError as error:
                raise PayloadError(str(error)) from error
        return arguments

    def encode_result(self, value: object) -> str:
        """The result as JSON text; InvalidPayload when it cannot be stored or is not of the declared type."""
        try:
            made = self._converter("return").dump(value)
        except Misfit as error:
            kind = type_name(self.signature.hint("return"))
            raise InvalidPayload(
                f"the result of {self._task} does not fit its return annotation {kind}: {error}. "
                "Correct the annotation or the return value"
            ) from None
        except TaskDefinitionError as error:
            raise InvalidPayload(str(error)) from error
        try:
            return dump(made, "result", RESULT_BYTES)
        except InvalidPayload as error:
            raise InvalidPayload(f"{self._task}: {error}") from None

    def decode_result(self, text: str | None) -> Any:
        """The result of a completed job; PayloadError when it does not fit the handler as it is now."""
        value = None if text is None else json.loads(text)
        try:
            return self._converter("return").load(value)
        except Misfit as error:
            kind = type_name(self.signature.hint("return"))
            raise PayloadError(f"the stored result of {self._task} does not fit {kind}: {error}") from None

    def fingerprint(self) -> str:
        """The payloads it accepts, as a short text: the same for the same signature, in every process."""
        if self._fingerprint is None:
            converters = {name: self._converter(name) for name in self.signature.params}
            self._fingerprint = fingerprint(self.signature, converters, self._upgrade)
        return self._fingerprint

    def check(self) -> None:
        """Build every converter now; TaskDefinitionError names the parameter that has none."""
        for name in (*self.signature.params, "return"):
            self._converter(name)

    def _converter(self, name: str) -> Converter:
        known = self._converters.get(name)
        if known is None:
            known = self._converters[name] = self._build(name)
            self._plain_types[name] = known.kind if isinstance(known, Scalar | Raw) else None
        return known

    def _build(self, name: str) -> Converter:
        try:
            hint = self.signature.hint(name)
        except TaskDefinitionError as error:
            raise TaskDefinitionError(f"{self._task}: {error}") from None
        try:
            return converter(hint)
        except Unsupported as error:
            which = "the return value" if name == "return" else f"parameter {name!r}"
            raise TaskDefinitionError(
                f"{which} of {self._task} has type {type_name(hint)}, which has no JSON form: {error} "
                "Use a JSON type, a dataclass, a pydantic model or a msgspec.Struct"
            ) from error

    def _read(self, text: str) -> dict[str, Any]:
        try:
            payload = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NeverFits(f"the payload is not readable JSON: {error}") from error
        if not isinstance(payload, dict):
            raise NeverFits(
                f"the payload of {self._task} must be a JSON object, not {type(payload).__name__}"
            )
        return payload

    def _upgraded(self, version: int, payload: dict[str, Any]) -> dict[str, Any]:
        if version not in self.versions:
            known = ", ".join(str(v) for v in sorted(self.versions))
            raise PayloadError(f"{self._task} takes payload version {known}, not {version}")
        for step in range(version, self._version):
            try:
                payload = self._upgrade[step](payload)
            except Exception as error:
                raise PayloadError(
                    f"upgrading the payload of {self._task} from version {step} to {step + 1} failed: "
                    f"{type(error).__name__}: {error}"
                ) from error
            if not isinstance(payload, dict):
                raise PayloadError(
                    f"upgrading the payload of {self._task} from version {step} to {step + 1} "
                    f"returned {type(payload).__name__}, not a dict"
                )
        return payload

    def _unbindable(self, error: TypeError, kwargs: dict[str, Any]) -> str:
        usage = call_line(self.signature.func.__name__, self.signature.call)
        if wrong := [name for name in kwargs if name in self.signature.injected]:
            return (
                f"{self._task}: {_names(wrong)} is injected by the worker; leave it out. Call it as {usage}"
            )
        if misplaced := [name for name in kwargs if name in EnqueueOptions.__annotations__]:
            name = misplaced[0]
            return f"{self._task}: {error}. Options go into using({name}=...), arguments into {usage}"
        return f"{self._task}: {error}. Call it as {usage}"


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _names(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
