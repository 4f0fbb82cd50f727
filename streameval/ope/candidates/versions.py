"""Freeze copies of a policy that learns: candidates that stay what the policy was at one event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, cast

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import Configurable, strict
from streameval.common.text import counted
from streameval.errors import StateError
from streameval.ope.candidates.kinds import LEARNERS
from streameval.ope.policies.base import Answer, Copied, LearningPolicy, Log, learns
from streameval.ope.policies.external import ExternalPolicy
from streameval.ope.policies.policy_file import POLICY_SUFFIX


@dataclass(frozen=True, config=strict)
class VersionsOf(metaclass=Configurable):
    """Freeze a copy of a policy that learns after every `every` of its events. The last `keep` copies are candidates.

    The copy after `3 every` events of `{frozen: {kind: versions_of, ...}}` is called `frozen-3`. It starts with the
    next event, from zero, on events that it has not learned from. It gets the next share of the error that candidates
    share. The copy before the last `keep` ones is then forgotten.

    Args:
        policy: the name of the candidate that learns
        every: the number of events after which a copy is made, a multiple of the block
        keep: the number of newest copies that are candidates
        temperature: of the copies, in place of the policy's own one
    """

    policy: Annotated[str, Field(min_length=1, description="the name of the candidate that learns")]
    every: Annotated[PositiveInt, Field(description="number of events after which a copy is made")] = 200_000
    keep: Annotated[PositiveInt, Field(description="number of newest copies that are candidates")] = 3
    temperature: Annotated[PositiveFloat | None, Field(description="of the copies; null: the policy's own one")] = None
    kind: Literal["versions_of"] = field(default="versions_of", kw_only=True, repr=False)

    def copied(self, policy: LearningPolicy) -> LearningPolicy:
        """Return the policy as its copies have it."""
        return policy if self.temperature is None else replace(cast(Any, policy), temperature=self.temperature)

    def check(self, name: str, policies: Mapping[str, Any], block: int, model_is_external: bool = False) -> None:
        """Check that there is such a policy, and that versions are made at ends of blocks.

        Args:
            name: the name of these versions
            policies: all candidates by name
            block: the number of events in a block
            model_is_external: whether the reward model is code

        Raises:
            ValueError: A part does not fit. The message names it.
        """
        policy = policies.get(self.policy)
        if not learns(policy):
            raise ValueError(f"{name}: policy must be a candidate that learns, found {self.policy!r}")
        if policy.follows_model and model_is_external:
            raise ValueError(
                f"{name}: {self.policy!r} follows a reward model in code; only ridge and tabular have frozen copies"
            )
        if self.temperature is not None and not hasattr(policy, "temperature"):
            raise ValueError(f"{name}: {self.policy!r} has no temperature that its copies could change")
        if self.every % block:
            raise ValueError(f"{name}: every must be a multiple of {counted(block, 'event')}, found {self.every}")
        if "/" in name or name.startswith("."):
            raise ValueError(f"{name}: versions are also files with this name: it has no slash, and no dot in front")
        taken_names = [other for other in policies if number_of(other, name) is not None]
        if taken_names:
            raise ValueError(f"{name}: its versions are called {name}-1, {name}-2, ...; rename {taken_names[0]}")


if TYPE_CHECKING:
    CopiedPolicy: TypeAlias = LearningPolicy
else:
    CopiedPolicy = Annotated[Union[LEARNERS], Field(discriminator="kind")]  # noqa: UP007
    """Policies that have frozen copies: all that learn."""
CONTENT_SUFFIX = ".bin"
"""Suffix of the file of a copy of code, with the content that the code gives."""


@dataclass(frozen=True, config=strict)
class FrozenPolicy(LearningPolicy):
    """Hold one frozen copy.

    Its state is the policy's state at that event, or the state of the reward model it followed.

    Attributes:
        of: the name of the `VersionsOf`
        number: the number of the copy, from 1
        events: the number of events that the policy had learned from
        policy: the policy that was copied, with the temperature of the copies
    """

    of: str
    number: int
    events: int
    policy: CopiedPolicy
    kind: Literal["frozen"] = field(default="frozen", kw_only=True, repr=False)

    @property
    def name(self) -> str:
        """Return the name of the candidate."""
        return f"{self.of}-{self.number}"

    @property
    def file(self) -> str:
        """Return the name of its file, if it has one, with its weights or the content that code gives."""
        return f"{self.name}{CONTENT_SUFFIX if self.is_external else POLICY_SUFFIX}"

    @property
    def is_external(self) -> bool:
        return self.policy.is_external

    @property
    def keeps_model(self) -> bool:
        return self.policy.follows_model

    @property
    def ranks_pages(self) -> bool:
        return self.policy.ranks_pages

    @property
    def fills_slots(self) -> bool:
        return self.policy.fills_slots

    @property
    def keeps_learning(self) -> bool:
        return False

    @property
    def needs_raw_fields(self) -> bool:
        return self.policy.needs_raw_fields

    def start(self) -> State:
        """Return a state of the right form. The real state is set later."""
        return self.policy.start()

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """Return the distributions, and the unchanged state."""
        return self.policy.predict(state, log), state

    def to_state(self, state: State) -> State:
        """Return the state. For code it includes the content of its file."""
        saved = self.policy.to_state(state)
        if not isinstance(self.policy, ExternalPolicy):
            return saved
        try:
            return {**saved, "content": self.policy.content(state)}
        except StateError:  # counted when the copy was made
            return {**saved, "content": None}

    def written(
        self, state: State, coefficients: Callable[[Any], Array | None], reward_range: tuple[float, float]
    ) -> bytes | None:
        """Return the content of its file in this state, live or saved, or None if it has no file. See `Copied`."""
        if "content" in state:
            content: bytes | None = state["content"]
            return content
        return self.policy.file_content(state, Copied(self.events, coefficients, reward_range))

    def from_state(self, saved: State) -> State:
        return self.policy.from_state({name: value for name, value in saved.items() if name != "content"})


def is_trusted(name: str, policy: object, named: Mapping[str, Any]) -> bool:
    """Tell whether a policy is our own code, or is in `named`.

    A frozen copy is trusted if the policy that it copies is.
    """
    if not (isinstance(policy, LearningPolicy) and policy.is_external):
        return True
    return policy.policy in named.values() if isinstance(policy, FrozenPolicy) else named.get(name) == policy


def number_of(name: str, versions: str) -> int | None:
    """Return the number of the version with this name, or None if it is not a version of `versions`.

    >>> number_of("frozen-3", "frozen"), number_of("frozen-b", "frozen")
    (3, None)
    """
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == versions and number.isdecimal() else None
