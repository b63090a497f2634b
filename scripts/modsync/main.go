// Modsync checks that the modules of go.work stay one product: the same go
// line, one version of every external module, no requirement between functions,
// and the one replace that lets a function build alone. What `go work` hides
// until an image is built, it says at once.
//
//	go run ./scripts/modsync [folder of go.work]
//
// It prints one line per problem, with the file and what mends it, and exits 1.
package main

import (
	"fmt"
	"os"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	problems, err := Check(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "modsync:", err)
		os.Exit(2)
	}
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, "modsync:", p)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}
