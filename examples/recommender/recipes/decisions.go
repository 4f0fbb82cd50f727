// Logs decisions of a recommender as events of streameval. Try it: go run decisions.go 1000 > log.ndjson
//
// With Kafka (github.com/twmb/franz-go), replace write by
//
//	client.Produce(ctx, &kgo.Record{Topic: "interactions", Value: line}, countFailures)
//
// franz-go produces idempotently by default. The callback must count failures and must not block.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"math"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"time"
)

const exploration = 0.2 // no propensity is below this divided by the number of actions

type event struct {
	EventID      string               `json:"event_id"`
	Timestamp    float64              `json:"timestamp"` // seconds
	Action       string               `json:"action"`
	Actions      []string             `json:"actions"`
	Propensities []float64            `json:"propensities"`
	Policies     map[string][]float64 `json:"policies"`
	Reward       float64              `json:"reward"`
}

// policy returns probabilities that grow with the scores, with a share of uniformly random choices.
func policy(scores []float64) []float64 {
	weights, total := make([]float64, len(scores)), 0.0
	for place, score := range scores {
		weights[place] = math.Exp(score)
		total += weights[place]
	}
	for place := range weights {
		weights[place] = (1-exploration)*weights[place]/total + exploration/float64(len(scores))
	}
	return weights
}

// draw returns an index, drawn from the probabilities that are logged.
func draw(probabilities []float64) int {
	left := mathrand.Float64()
	for place, probability := range probabilities[:len(probabilities)-1] {
		left -= probability
		if left < 0 {
			return place
		}
	}
	return len(probabilities) - 1
}

func newID() string {
	id := make([]byte, 16)
	rand.Read(id)
	return hex.EncodeToString(id)
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	write := json.NewEncoder(out).Encode
	actions := []string{"news", "sport", "music"} // after every filter and business rule
	propensities := policy([]float64{1.2, 0.4, 0.0})
	challenger := policy([]float64{0.2, 1.4, 0.3})
	for range count {
		chosen, reward := draw(propensities), 0.0
		if mathrand.Float64() < 0.1+0.1*float64(chosen) {
			reward = 1 // a click
		}
		err := write(event{
			EventID:      newID(),
			Timestamp:    float64(time.Now().UnixMilli()) / 1000,
			Action:       actions[chosen],
			Actions:      actions,
			Propensities: propensities,
			Policies:     map[string][]float64{"challenger": challenger},
			Reward:       reward,
		})
		if err != nil {
			panic(err)
		}
	}
}
