"""Measure events with features, from their messages: the default estimate, the simplest one, and the whole family."""

from __future__ import annotations

from measuring import Benchmark, Ratio
from memory_source import daemon, decoding
from messages import CANDIDATES, events_with_actions

import streameval as se

AVERAGES = (se.Cumulative(), se.Window(), se.Decay(), se.AdaptiveWindow(), se.AdaptiveDecay(), se.Mixture())
FAMILY = (
    *(se.IPS(), se.SNIPS(), se.ClippedIPS(cap=5), se.ControlVariate(), se.StratifiedIPS(), se.StratifiedDR()),
    *(se.DM(), se.DR(), se.StaticBlend(tau=0.5), se.Switch(cap=5), se.CAB(cap=5), se.CABDR(cap=5)),
)


def benchmark(events: int = 8_000) -> Benchmark:
    greedy, mixed = events_with_actions(events, 25, 25, greedy=True), events_with_actions(events // 2, 20, 5)
    plain = se.Evaluator(CANDIDATES, [se.IPS()], [se.Decay()])
    better = se.Evaluator(CANDIDATES, [se.StratifiedDR()], [se.Mixture()])
    family = se.Evaluator(CANDIDATES, FAMILY, AVERAGES, drift=None)
    decoder = plain.config.decoder()
    works = {
        "stratified_dr on mixture": daemon(greedy, better.config.decoder(), better),
        "ips on decay": daemon(greedy, decoder, plain),
        "12 estimators, 6 averages": daemon(mixed, family.config.decoder(), family),
        "their decoding": decoding(mixed, family.config.decoder()),
    }
    ratios = [
        Ratio("stratified_dr on mixture", "ips on decay", 1.5),
        Ratio("12 estimators, 6 averages", "their decoding"),
    ]
    return Benchmark("25 actions x 25 features, and 20 x 5 for the family; 10 candidates, from messages", works, ratios)
