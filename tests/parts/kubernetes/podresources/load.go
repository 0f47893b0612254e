package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// figures are what load prints. Latencies are those of successful calls, in milliseconds.
type figures struct {
	Clients   int            `json:"clients"`
	Seconds   float64        `json:"seconds"`
	Calls     int            `json:"calls"`
	Accepted  int            `json:"accepted"`
	PerSecond float64        `json:"acceptedPerSecond"`
	P50       float64        `json:"p50"`
	P99       float64        `json:"p99"`
	Max       float64        `json:"max"`
	Bytes     int            `json:"bytes"` // of the largest response
	Codes     map[string]int `json:"codes"`
	Texts     []string       `json:"texts"` // of statuses, each once
}

// tally is what one client counts.
type tally struct {
	calls, bytes int
	took         []time.Duration
	codes        map[string]int
	texts        map[string]bool
}

func load(arguments []string) error {
	var to target
	set := flag.NewFlagSet("load", flag.ExitOnError)
	to.flags(set)
	count := set.Int("clients", 200, "how many, each with a connection of its own")
	seconds := set.Float64("seconds", 60, "for how long")
	mix := set.String("mix", "", "get:<namespace>/<name>:<n>: every nth call is a Get of that pod; otherwise all are List")
	decode := set.Bool("decode", true, "decode what comes")
	_ = set.Parse(arguments)
	calls, err := parseMix(*mix)
	if err != nil {
		return err
	}

	all := make([]clients, *count)
	for i := range all {
		if all[i], err = to.connect(); err != nil {
			return err
		}
		defer all[i].conn.Close()
	}
	started := time.Now()
	ends := started.Add(time.Duration(*seconds * float64(time.Second)))
	tallies := make([]tally, *count)
	var running sync.WaitGroup
	for i := range all {
		running.Go(func() { tallies[i] = to.loop(all[i], calls, *decode, ends) })
	}
	running.Wait()
	return json.NewEncoder(os.Stdout).Encode(summed(tallies, time.Since(started)))
}

// parseMix gives the calls that are made one after the other.
func parseMix(mix string) ([]call, error) {
	if mix == "" {
		return []call{{rpc: "list"}}, nil
	}
	parts := strings.Split(mix, ":")
	if len(parts) != 3 || parts[0] != "get" {
		return nil, fmt.Errorf("--mix %s is not get:<namespace>/<name>:<n>", mix)
	}
	every, err := strconv.Atoi(parts[2])
	if err != nil || every < 1 {
		return nil, fmt.Errorf("--mix %s: %q is no number from 1 on", mix, parts[2])
	}
	calls := slices.Repeat([]call{{rpc: "list"}}, every)
	namespace, name, _ := strings.Cut(parts[1], "/")
	calls[every-1] = call{rpc: "get", namespace: namespace, name: name}
	return calls, nil
}

func (t *target) loop(clients clients, calls []call, decode bool, ends time.Time) tally {
	own := tally{codes: map[string]int{}, texts: map[string]bool{}}
	for time.Now().Before(ends) {
		codec := &sized{recording: newRecording(), decode: decode}
		ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
		begun := time.Now()
		_, err := calls[own.calls%len(calls)].by(ctx, clients, grpc.ForceCodecV2(codec))
		took := time.Since(begun)
		cancel()
		own.calls++
		own.bytes = max(own.bytes, codec.bytes)
		result := status.Convert(err)
		own.codes[result.Code().String()]++
		if err == nil {
			own.took = append(own.took, took)
		} else {
			own.texts[result.Message()] = true
		}
	}
	return own
}

func summed(tallies []tally, took time.Duration) figures {
	sum := figures{Clients: len(tallies), Seconds: took.Seconds(), Codes: map[string]int{}, Texts: []string{}}
	var all []time.Duration
	for _, one := range tallies {
		sum.Calls += one.calls
		sum.Bytes = max(sum.Bytes, one.bytes)
		all = append(all, one.took...)
		for code, count := range one.codes {
			sum.Codes[code] += count
		}
		for text := range one.texts {
			if !slices.Contains(sum.Texts, text) {
				sum.Texts = append(sum.Texts, text)
			}
		}
	}
	sum.Accepted = len(all)
	sum.PerSecond = float64(len(all)) / took.Seconds()
	if len(all) > 0 {
		slices.Sort(all)
		milliseconds := func(of float64) float64 {
			return float64(all[int(of*float64(len(all)-1))].Microseconds()) / 1000
		}
		sum.P50, sum.P99, sum.Max = milliseconds(0.5), milliseconds(0.99), milliseconds(1)
	}
	return sum
}
