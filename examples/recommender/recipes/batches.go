// Logs decisions of a recommender as Arrow batches of streameval. Try it: go run batches.go 1000 > log.arrows
//
// With Kafka (github.com/twmb/franz-go), each message is one batch. Replace os.Stdout.Write by
//
//	client.Produce(ctx, &kgo.Record{Topic: "interactions", Value: message}, countFailures)
//
// Write a batch after 500 decisions or 200 ms, and on the way out. A process that is killed loses its last batch.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"math"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

const (
	exploration = 0.2 // no propensity is below this divided by the number of actions
	size        = 500 // decisions in a batch
)

// columns as of `streameval schema arrow streameval.yaml`
var columns = []arrow.Field{
	{Name: "event_id", Type: arrow.BinaryTypes.String},
	{Name: "timestamp", Type: arrow.PrimitiveTypes.Float64},
	{Name: "action", Type: arrow.BinaryTypes.String},
	{Name: "propensity", Type: arrow.PrimitiveTypes.Float64},
	{Name: "reward", Type: arrow.PrimitiveTypes.Float64},
	{Name: "policies", Type: arrow.StructOf(arrow.Field{Name: "challenger", Type: arrow.PrimitiveTypes.Float64, Nullable: true})},
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

// batch returns the next decisions as a message.
func batch(count int) []byte {
	lost := arrow.NewMetadata([]string{"streameval.events"}, []string{strconv.Itoa(count)}) // if the message is damaged
	schema := arrow.NewSchema(columns, &lost)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	text := func(column int) *array.StringBuilder { return builder.Field(column).(*array.StringBuilder) }
	number := func(column int) *array.Float64Builder { return builder.Field(column).(*array.Float64Builder) }
	policies := builder.Field(5).(*array.StructBuilder)

	actions := []string{"news", "sport", "music"} // after every filter and business rule
	propensities := policy([]float64{1.2, 0.4, 0.0})
	challenger := policy([]float64{0.2, 1.4, 0.3})
	for range count {
		chosen, reward := draw(propensities), 0.0
		if mathrand.Float64() < 0.1+0.1*float64(chosen) {
			reward = 1 // a click
		}
		text(0).Append(newID())
		number(1).Append(float64(time.Now().UnixMilli()) / 1000) // seconds
		text(2).Append(actions[chosen])
		number(3).Append(propensities[chosen])
		number(4).Append(reward)
		policies.Append(true)
		policies.FieldBuilder(0).(*array.Float64Builder).Append(challenger[chosen])
	}
	record := builder.NewRecord()
	defer record.Release()
	var message bytes.Buffer
	writer := ipc.NewWriter(&message, ipc.WithSchema(schema))
	if err := writer.Write(record); err != nil {
		panic(err)
	}
	if err := writer.Close(); err != nil {
		panic(err)
	}
	return message.Bytes()
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	for ; count > 0; count -= size {
		if _, err := os.Stdout.Write(batch(min(size, count))); err != nil {
			panic(err)
		}
	}
}
