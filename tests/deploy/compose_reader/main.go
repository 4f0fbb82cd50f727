// Prints the project of compose files as JSON, or what is wrong with them: `docker compose config` without Docker.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func resolved(files []string) ([]byte, error) {
	options, err := cli.NewProjectOptions(files)
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}

func main() {
	text, err := resolved(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}
