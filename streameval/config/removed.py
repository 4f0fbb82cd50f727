"""List the options that earlier versions had, each with the reason why it is gone and what happens instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from streameval.common.problems import KeyPath, Problem

REMOVED: Mapping[str, tuple[str, str]] = {
    "source.fetch_max_bytes": (
        "it is an option of the client library",
        "a fetch takes up to 16 MiB from each broker; for another size, write client_options: "
        "{fetch_max_bytes: 1000000} ({fetch.max.bytes: 1000000} with client: confluent)",
    ),
    "source.request_timeout": (
        "it is an option of the client library",
        "a request has 30 s; for another time, write client_options: {request_timeout_ms: 60000} "
        "({socket.timeout.ms: 60000} with client: confluent)",
    ),
    "source.ssl_check_hostname": (
        "it is an option of the client library",
        "a certificate must name its host; to trust any, write client_options: {ssl_check_hostname: false} "
        "({ssl.endpoint.identification.algorithm: none} with client: confluent)",
    ),
    "source.stall_timeout": (
        "nobody can know a better value",
        "the daemon reconnects when events are waiting and none arrives for 30 s",
    ),
    "source.discovery_interval": (
        "nobody can know a better value",
        "new partitions are found within a minute, and events that they have by then count too",
    ),
    "source.max_ahead": (
        "clocks of sound machines differ by seconds",
        "an event dated more than 5 minutes ahead of this machine's clock counts as one of now",
    ),
    "source.span": (
        "only tests of this program need it",
        "users of the simulated recommender change within 100,000 events",
    ),
    "source.start_time": (
        "only tests of this program need it",
        "simulated events carry the time at which they are generated",
    ),
    "http.users_file": (
        "logins for people belong to a reverse proxy",
        "deploy/reverse_proxy has Caddy, nginx and oauth2-proxy; programs show a bearer token (http.token_file)",
    ),
    "policies.candidates.*.weights": (
        "no person writes them",
        "write file: NAME.npz with the policy file of `streameval learn` or of a frozen copy",
    ),
    "averages.*.bias_weight": (
        "nobody knows a better value before the truth",
        "the objective of the average sets it; in Python, AdaptiveWindow and AdaptiveDecay have the argument",
    ),
    "averages.*.objective": (
        "it serves studies of the published methods",
        "the average minimises its mean squared error; in Python, AdaptiveWindow and AdaptiveDecay have the argument",
    ),
    "averages.*.growth": (
        "it serves studies of the published methods",
        "the window grows event by event; in Python, AdaptiveWindow has the argument",
    ),
    "averages.*.bias": (
        "it serves studies of the published methods",
        "the published bias is used; in Python, AdaptiveDecay has the argument",
    ),
    "averages.*.rate": (
        "nobody knows a better value before the truth",
        "the learning rate of a mixture follows from the number of candidates; in Python, Mixture has the argument",
    ),
    "reward_model.penalty": (
        "it fades with the first evidence",
        "ridge has a penalty of 1; in Python, Ridge has the argument",
    ),
    "reward_model.shrinkage": (
        "it fades with the first evidence",
        "tabular starts each action with 10 pseudo-events; in Python, Tabular has the argument",
    ),
    "reward_model.scale": (
        "a model that needs no scaled numbers is not harmed by them",
        "numbers are scaled to mean 0 and variance 1; in Python, RiverModel has the argument",
    ),
    "propensity.floor": (
        "nobody knows a better value before the propensities",
        "an event with an estimate below 0.001 is missing for all candidates",
    ),
    "propensity.warm_up": (
        "the check of how often an action was chosen follows anyway",
        "the first estimate comes after 1,000 events",
    ),
    "propensity.model.shrinkage": (
        "it fades with the first evidence",
        "each context starts with 10 events of the share over all contexts",
    ),
    "propensity.model.scale": (
        "a classifier that needs no scaled numbers is not harmed by them",
        "numbers are scaled to mean 0 and variance 1",
    ),
    "promotion.tau": (
        "it belongs to one rule",
        "write rule: {kind: anytime, tau: 50000}",
    ),
    "promotion.max_weight": (
        "it belongs to one rule",
        "write rule: {kind: sea, max_weight: 20}",
    ),
    "promotion.trust.effective_sample_size": (
        "an estimate of fewer events is not trusted, whatever is wanted",
        "the check needs an effective sample size of 100",
    ),
    "promotion.trust.largest_share": (
        "an estimate that hangs on one event is not trusted, whatever is wanted",
        "one event may carry 10 % of the value or of all weights",
    ),
    "promotion.trust.unsupported_share": (
        "what production never shows cannot be estimated, whatever is wanted",
        "10 % of a ranking's gain may be at ranks whose items production did not show",
    ),
    "dead_letters.max_bytes": (
        "the size of a file that is read once matters to nobody",
        "a file of 100 MiB is renamed to NAME.1; write to a topic (kind: kafka) to keep more",
    ),
    "dead_letters.keep": (
        "older rejected messages say the same",
        "three full files are kept; write to a topic (kind: kafka) to keep more",
    ),
}
"""The reason and the replacement by path, in which `*` stands for any name or index."""


def removed_options(document: object, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield the removed options in a document of mappings, lists and plain values."""
    options: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(document, Mapping):
        options = iter(document.items())
    elif isinstance(document, list):
        options = enumerate(document)
    for step, value in options:
        inner = (*path, step)
        for pattern, (reason, replacement) in REMOVED.items():
            if _matches(pattern, inner):
                yield Problem(inner, f"this option was removed: {reason}", f"remove it: {replacement}")
        yield from removed_options(value, inner)


def without_removed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a configuration without the removed options, which Python may still have."""
    pruned = deepcopy(schema)
    _prune(pruned, pruned["$defs"], ())
    return pruned


def _prune(schema: Any, definitions: dict[str, Any], path: KeyPath) -> None:
    if not isinstance(schema, dict):
        return
    members = [*schema.get("oneOf", ()), *schema.get("anyOf", ())]
    if "$ref" in schema:
        members.append(definitions[schema["$ref"].rpartition("/")[2]])
    for member in members:
        _prune(member, definitions, path)
    for inner in ("items", "additionalProperties"):
        _prune(schema.get(inner), definitions, (*path, "*"))
    properties = schema.get("properties", {})
    for key in list(properties):
        if any(_matches(pattern, (*path, key)) for pattern in REMOVED):
            del properties[key]
        else:
            _prune(properties[key], definitions, (*path, key))


def _matches(pattern: str, path: KeyPath) -> bool:
    steps = pattern.split(".")
    return len(steps) == len(path) and all(step in ("*", str(key)) for step, key in zip(steps, path, strict=True))
