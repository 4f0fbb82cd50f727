"""Where results go: to Prometheus, to a browser. Sinks read `Published` and never touch the evaluator."""
