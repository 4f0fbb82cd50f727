// The module of Flagger, for its resource definitions: deploy/flagger is checked against them.
module streameval/tests/deploy/flagger

go 1.24

require github.com/fluxcd/flagger v1.36.1
