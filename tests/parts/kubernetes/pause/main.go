// The process of a pod's sandbox and of a test's containers: it waits until it is told to end, or for a time.
//
//	pause [-for 2s]
package main

import (
	"flag"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	limit := flag.Duration("for", 0, "exits with 0 after this time instead of waiting for a signal")
	flag.Parse()
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	// A sandbox with a shared process namespace has the children of others to reap.
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	var over <-chan time.Time
	if *limit > 0 {
		over = time.After(*limit)
	}
	for {
		select {
		case <-ends:
			return
		case <-over:
			return
		case <-children:
			for pid := 1; pid > 0; {
				pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			}
		}
	}
}
