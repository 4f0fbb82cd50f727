"""Frozen copies of a policy that learns: candidates that are what it was at one event, and stay so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import Configurable, strict
from streameval.common.text import counted
from streameval.ope.candidates.kinds import LEARNERS
from streameval.ope.policies.base import Answer, Copied, LearningPolicy, Log, learns
from streameval.ope.policies.external import ExternalPolicy
from streameval.ope.policies.policy_file import POLICY_SUFFIX


@dataclass(frozen=True, config=strict)
class VersionsOf(metaclass=Configurable):
    """A frozen copy of a policy that learns after every `every` of its events; the last `keep` of them are candidates.

    The copy after `3 every` events of `{frozen: {kind: versions_of, ...}}` is called `frozen-3`. It starts with the
    next event, from zero, on events that it has not learned from; it gets the next share of the error that candidates
    share. The copy before the last `keep` ones is then forgotten. `every` is a multiple of the block.
    """

    policy: Annotated[str, Field(min_length=1, description="the name of the candidate that learns")]
    every: Annotated[PositiveInt, Field(description="number of events after which a copy is made")] = 200_000
    keep: Annotated[PositiveInt, Field(description="number of newest copies that are candidates")] = 3
    kind: Literal["versions_of"] = field(default="versions_of", kw_only=True, repr=False)

    def check(self, name: str, policies: Mapping[str, Any], block: int, model_is_external: bool = False) -> None:
        """Check that there is such a policy, and that versions are made at ends of blocks.

        `policies`: all candidates by name. `model_is_external`: the reward model is code.

        Raises:
            ValueError: A part does not fit; the message names it.
        """
        policy = policies.get(self.policy)
        if not learns(policy):
            raise ValueError(f"{name}: policy must be a candidate that learns, found {self.policy!r}")
        if policy.follows_model and model_is_external:
            raise ValueError(
                f"{name}: {self.policy!r} follows a reward model in code; only ridge and tabular have frozen copies"
            )
        if self.every % block:
            raise ValueError(f"{name}: every must be a multiple of {counted(block, 'event')}, found {self.every}")
        if "/" in name or name.startswith("."):
            raise ValueError(f"{name}: versions are also files with this name: it has no slash, and no dot in front")
        taken = [each for each in policies if number_of(each, name) is not None]
        if taken:
            raise ValueError(f"{name}: its versions are called {name}-1, {name}-2, ...; rename {taken[0]}")


if TYPE_CHECKING:
    CopiedPolicy: TypeAlias = LearningPolicy
else:
    CopiedPolicy = Annotated[Union[LEARNERS], Field(discriminator="kind")]  # noqa: UP007
    """The policies that have frozen copies: all that learn."""
CONTENT_SUFFIX = ".bin"
"""Of the file of a copy of code, which has the content that the code gives."""


@dataclass(frozen=True, config=strict)
class FrozenPolicy(LearningPolicy):
    """One frozen copy, the one with this number of `VersionsOf` called `of`: what `policy` was after these `events`.

    Its state is that of the policy then, or of the reward model that the policy followed, and does not change.
    """

    of: str
    number: int
    events: int
    policy: CopiedPolicy
    kind: Literal["frozen"] = field(default="frozen", kw_only=True, repr=False)

    @property
    def name(self) -> str:
        """The name of the candidate."""
        return f"{self.of}-{self.number}"

    @property
    def file(self) -> str:
        """The name of its file, if it has one: of its weights, or of the content that code gives."""
        return f"{self.name}{CONTENT_SUFFIX if self.is_external else POLICY_SUFFIX}"

    @property
    def is_external(self) -> bool:
        return self.policy.is_external

    @property
    def keeps_model(self) -> bool:
        return self.policy.follows_model

    @property
    def keeps_learning(self) -> bool:
        return False

    @property
    def needs_raw_fields(self) -> bool:
        return self.policy.needs_raw_fields

    def start(self) -> State:
        """A state of the right form: the real one is given."""
        return self.policy.start()

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """The distributions, and the state, which stays as it is."""
        return self.policy.predict(state, log), state

    def to_state(self, state: State) -> State:
        """The state, of code with the content of its file."""
        kept = self.policy.to_state(state)
        return {**kept, "content": self.policy.content(state)} if isinstance(self.policy, ExternalPolicy) else kept

    def written(
        self, own: State, coefficients: Callable[[Any], Array | None], reward_range: tuple[float, float]
    ) -> bytes | None:
        """Return the content of its file in this state, live or saved; None if it has no file. See `Copied`."""
        if "content" in own:
            content: bytes | None = own["content"]
            return content
        return self.policy.file_content(own, Copied(self.events, coefficients, reward_range))

    def from_state(self, saved: State) -> State:
        return self.policy.from_state({name: part for name, part in saved.items() if name != "content"})


def is_trusted(name: str, policy: object, named: Mapping[str, Any]) -> bool:
    """Whether a policy is our own code, or is `named`; a frozen copy is, where the policy that it copies is."""
    if not (isinstance(policy, LearningPolicy) and policy.is_external):
        return True
    return policy.policy in named.values() if isinstance(policy, FrozenPolicy) else named.get(name) == policy


def number_of(name: str, versions: str) -> int | None:
    """The number of the version with this name; None if it is not called as those of `versions` are.

    >>> number_of("frozen-3", "frozen"), number_of("frozen-b", "frozen")
    (3, None)
    """
    of, _, number = name.rpartition("-")
    return int(number) if of == versions and number.isdecimal() else None
