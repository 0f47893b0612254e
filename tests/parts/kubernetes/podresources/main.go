// Command podresources is a client of the podresources socket as written in Go:
// with Kubernetes' own client library and grpc-go. It has three commands, which
// print JSON lines on standard output:
//
//	podresources request --socket S --rpc list [--limit 4194304] [--dial library] [--times 3]
//	podresources load --socket S --clients 200 --seconds 60 [--mix get:default/a:10]
//	podresources record --upstream S --listen T [--plain] [--pad 5242880]
//
// "request" prints one line per response: the code and text of its status, its bytes
// and what the library decodes from them. "load" runs clients with a connection
// each in a closed loop, and prints one line of figures. "record" forwards every
// call to another socket, adds unknown fields at every level of the response, and
// prints what it sent.
package main

import (
	"fmt"
	"os"
)

func main() {
	commands := map[string]func([]string) error{"request": request, "load": load, "record": record}
	run := func([]string) error { return fmt.Errorf("the first argument is request, load or record") }
	arguments := os.Args[1:]
	if len(arguments) > 0 && commands[arguments[0]] != nil {
		run, arguments = commands[arguments[0]], arguments[1:]
	}
	if err := run(arguments); err != nil {
		fmt.Fprintf(os.Stderr, "podresources: %v\n", err)
		os.Exit(1)
	}
}
