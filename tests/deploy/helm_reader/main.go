// Prints the messages of `helm lint` and the output of `helm template` as JSON: Helm's own packages, without a cluster.
//
//	helm_reader CHART RELEASE < values.json
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
)

const namespace = "recommender"

type reading struct {
	Lint      []string          `json:"lint"`
	Templates map[string]string `json:"templates"`
}

func read(directory, release string, given map[string]any) (*reading, error) {
	chart, err := loader.Load(directory)
	if err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true, Revision: 1}
	values, err := chartutil.ToRenderValues(chart, given, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	templates, err := engine.Render(chart, values)
	if err != nil {
		return nil, err
	}
	messages := []string{}
	for _, message := range lint.All(directory, given, namespace, true).Messages {
		messages = append(messages, message.Error())
	}
	return &reading{messages, templates}, nil
}

func main() {
	var given map[string]any
	err := json.NewDecoder(os.Stdin).Decode(&given)
	if err == nil {
		var found *reading
		if found, err = read(os.Args[1], os.Args[2], given); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(found)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
