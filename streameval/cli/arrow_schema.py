"""Print the Arrow schema of the events that a configuration reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import inspect

from streameval.config.model import Config
from streameval.errors import InputError, missing_package
from streameval.events.fields import FieldNames
from streameval.events.rankings import ranking_type
from streameval.events.schema import event_type

__all__ = ["Form", "print_arrow_schema"]

Form: TypeAlias = Literal["action", "actions", "slots"]

OPTIONAL = ("sampling_probability", "unit", "logging_policy", "context")
FIELDS: Mapping[str, Sequence[str]] = {
    "action": ("action", "propensity"),
    "actions": ("action", "actions", "propensities", "features"),
    "slots": ("slots",),
}
"""The fields of a form, next to those that all forms have."""
NAMES = ("action", "unit", "logging_policy")
"""Fields with texts that repeat."""
NULLABLE = (*OPTIONAL, "policies", "features")
LEFT_OUT = ("ranks", "support")
"""Fields by the names of items, which are no columns."""
PREFERRED = (inspect.ListType, inspect.StructType, inspect.DictType, inspect.FloatType, inspect.StrType)
"""Types in the order in which one of several becomes a column."""


def print_arrow_schema(config_path: Path | None, form: Form) -> None:
    """Print the columns of the events of a configuration, in one of the forms of decisions.

    Raises:
        InputError: There is no configuration, or pyarrow is not installed.
    """
    if config_path is None:
        raise InputError("the columns depend on a configuration", hint="streameval schema arrow streameval.yaml")
    try:
        schema = arrow_schema(Config.load(config_path), form)
    except ImportError as error:
        raise missing_package("Arrow", "pyarrow", "columnar") from error
    for field in schema:
        print(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}")


def arrow_schema(config: Config, form: Form) -> Any:
    """Return the schema of Arrow batches of the events that a configuration reads.

    Args:
        config: names the candidates, the rewards and the columns
        form: single actions with their propensities, lists of actions with distributions, or slates. Pages have one
    """
    import pyarrow as pa

    evaluator, rewards = config.evaluator_config(), [reward.field for reward in config.reward_fields]
    if evaluator.ranking is not None:
        fields, kind, rewards = ["ranking", "features"], inspect.type_info(ranking_type()), []
    else:
        fields = [name for name in FIELDS[form] if config.propensity is None or name != "propensity"]
        kind = inspect.type_info(event_type())
        rewards = [] if config.reward_topic else rewards
    types = {field.encode_name: field.type for field in kind.fields}  # type: ignore[attr-defined]
    wanted = [name for name in ("event_id", "timestamp", *fields, "policies", *OPTIONAL) if name in types]
    policies = evaluator.logged_policies
    columns = {name: _column(types[name], policies, pa, are_lists=form != "action") for name in wanted}
    columns |= {name: pa.dictionary(pa.int32(), pa.string()) for name in NAMES if name in columns}
    columns |= dict.fromkeys(rewards, pa.float64())
    optional = (*NULLABLE, *(rewards if len(rewards) > 1 else ()))
    event = {name: pa.field(name, column, name in optional) for name, column in columns.items()}
    names = FieldNames.from_columns(config.columns, rewards or ["reward"])
    if names.actions is not None:
        event.pop("actions", None)
    if names.context:
        event["context"] = {name: pa.field(name, pa.string()) for name in names.context}
    event["policies"] = {} if "slots" in fields else {cell.name: cell for cell in columns["policies"]}
    record = names.record(event)
    cells = record.pop("policies")
    if cells:
        record["policies"] = pa.field("policies", pa.struct(list(cells.values())))
    return pa.schema([field.with_name(name) for name, field in record.items()])


def _column(kind: Any, policies: Sequence[str], pa: Any, *, are_lists: bool) -> Any:
    """Return the Arrow type of a column for values of a type. Values of any type become JSON as text.

    Args:
        kind: the type that is decoded
        policies: the names of policies, which are the fields of a mapping
        pa: the module pyarrow
        are_lists: whether policies have distributions over lists of actions
    """
    if isinstance(kind, inspect.Metadata):
        return _column(kind.type, policies, pa, are_lists=are_lists)
    if isinstance(kind, inspect.UnionType):
        bare = [one.type if isinstance(one, inspect.Metadata) else one for one in kind.types]
        found = [one for form in PREFERRED for one in bare if isinstance(one, form)]
        is_cell = {*map(type, found)} == {inspect.ListType, inspect.FloatType}
        one = found[-1 if is_cell and not are_lists else 0] if found else None
        return _column(one, policies, pa, are_lists=are_lists)
    if isinstance(kind, inspect.ListType):
        return pa.list_(_column(kind.item_type, policies, pa, are_lists=are_lists))
    if isinstance(kind, inspect.DictType):
        value = _column(kind.value_type, policies, pa, are_lists=are_lists)
        return pa.struct([(policy, value) for policy in policies])
    if isinstance(kind, inspect.StructType):
        fields = [field for field in kind.fields if field.encode_name not in LEFT_OUT]
        types = [(field.encode_name, _column(field.type, policies, pa, are_lists=are_lists)) for field in fields]
        return pa.struct(types)
    if isinstance(kind, inspect.IntType):
        return pa.int64()
    return pa.float64() if isinstance(kind, inspect.FloatType) else pa.string()
