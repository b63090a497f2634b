// Command hello is Knative's own sample of a Service in Go, helloworld-go of
// knative/docs: what a pod costs that does nothing. The cluster's bench compares
// with it.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "Hello World!") })
	log.Fatal(http.ListenAndServe(":"+os.Getenv("PORT"), nil))
}
