// Command pods is a client of the kubelet's Pods API as written in Go: with the code
// that upstream generates from its definitions, grpc-go, and Kubernetes' own decoder
// of pods. Each command prints JSON lines on standard output:
//
//	pods list --socket S [--times 3] [--limit 33554432]
//	pods get --socket S --uid U
//	pods watch --socket S [--stall]
//	pods call --socket S --rpc /v1alpha1.Pods/ListPods [--request FILE]
//
// "list" and "get" print one line per response: code and text of its status, and the
// pods. "watch" prints one line per event, and one with code and text when it has
// ended; with --stall it reads nothing after the end of the initial list until a line
// comes on standard input. "call" sends a file's bytes unchanged, which need not be a
// valid request, and receives one message.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that asItIs stands on
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"k8s.io/api/core/v1"
	"k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// deadline is that of a call that is no watch.
const deadline = 10 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "pods: %v\n", err)
		os.Exit(1)
	}
}

type arguments struct {
	socket, uid, rpc, request string
	limit, times              int
	stall                     bool
}

func run(from []string) error {
	commands := map[string]func(arguments, *grpc.ClientConn) error{"list": list, "get": get, "watch": watch, "call": call}
	if len(from) == 0 || commands[from[0]] == nil {
		return fmt.Errorf("the first argument is list, get, watch or call")
	}
	var a arguments
	set := flag.NewFlagSet(from[0], flag.ExitOnError)
	set.StringVar(&a.socket, "socket", "", "the socket")
	set.StringVar(&a.uid, "uid", "", "of the pod, for get")
	set.StringVar(&a.rpc, "rpc", "", "a method by its whole name, for call")
	set.StringVar(&a.request, "request", "", "the file of what is sent, for call")
	set.IntVar(&a.limit, "limit", 32<<20, "the largest message that is taken, in bytes")
	set.IntVar(&a.times, "times", 1, "how often, over one connection")
	set.BoolVar(&a.stall, "stall", false, "take nothing after the initial list until a line comes on standard input")
	_ = set.Parse(from[1:])

	conn, err := grpc.NewClient("unix://"+a.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Fixed: what a client that takes nothing has taken anyway would grow otherwise.
		grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(a.limit)))
	if err != nil {
		return err
	}
	defer conn.Close()
	return commands[from[0]](a, conn)
}

func print(line any) error {
	return json.NewEncoder(os.Stdout).Encode(line)
}

// one is a pod as it came.
type one struct {
	// Bytes and Hash are of what came.
	Bytes int    `json:"bytes"`
	Hash  string `json:"hash"`
	// Exact: what was decoded, encoded again, is what came.
	Exact bool    `json:"exact"`
	Pod   *v1.Pod `json:"pod"`
}

func decoded(came []byte) (one, error) {
	sum := sha256.Sum256(came)
	made := one{Bytes: len(came), Hash: hex.EncodeToString(sum[:8]), Pod: &v1.Pod{}}
	if err := made.Pod.Unmarshal(came); err != nil {
		return made, fmt.Errorf("these %d bytes are no pod: %w", len(came), err)
	}
	again, err := made.Pod.Marshal()
	made.Exact = bytes.Equal(again, came)
	return made, err
}

// response is a line that list, get and call print.
type response struct {
	Code string `json:"code"`
	Text string `json:"text"`
	Pods []one  `json:"pods"`
	// Message is what call has got.
	Message []byte `json:"message,omitempty"`
}

func printResponse(pods [][]byte, err error) error {
	result := status.Convert(err)
	line := response{Code: result.Code().String(), Text: result.Message(), Pods: []one{}}
	for _, came := range pods {
		made, err := decoded(came)
		if err != nil {
			return err
		}
		line.Pods = append(line.Pods, made)
	}
	return print(line)
}

func list(a arguments, conn *grpc.ClientConn) error {
	client := v1alpha1.NewPodsClient(conn)
	for range a.times {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		came, err := client.ListPods(ctx, &v1alpha1.ListPodsRequest{})
		cancel()
		if err := printResponse(came.GetPods(), err); err != nil {
			return err
		}
	}
	return nil
}

func get(a arguments, conn *grpc.ClientConn) error {
	client := v1alpha1.NewPodsClient(conn)
	for range a.times {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		came, err := client.GetPod(ctx, &v1alpha1.GetPodRequest{PodUID: a.uid})
		cancel()
		var pods [][]byte
		if err == nil {
			pods = [][]byte{came.GetPod()}
		}
		if err := printResponse(pods, err); err != nil {
			return err
		}
	}
	return nil
}

// watched is a line that watch prints.
type watched struct {
	Type string `json:"type"`
	// Time in nanoseconds since 1970.
	Time int64 `json:"time"`
	*one
	Code string `json:"code,omitempty"`
	Text string `json:"text,omitempty"`
}

func watch(a arguments, conn *grpc.ClientConn) error {
	events, err := v1alpha1.NewPodsClient(conn).WatchPods(context.Background(), &v1alpha1.WatchPodsRequest{})
	for err == nil {
		var event *v1alpha1.WatchPodsEvent
		if event, err = events.Recv(); err != nil {
			break
		}
		line := watched{Type: event.GetType().String(), Time: time.Now().UnixNano()}
		if len(event.GetPod()) > 0 {
			made, err := decoded(event.GetPod())
			if err != nil {
				return err
			}
			line.one = &made
		}
		if err := print(line); err != nil {
			return err
		}
		if a.stall && event.GetType() == v1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		}
	}
	if err == io.EOF {
		err = nil
	}
	ended := status.Convert(err)
	return print(watched{Type: "ENDED", Time: time.Now().UnixNano(), Code: ended.Code().String(), Text: ended.Message()})
}

// through is a message as it is on the wire.
type through struct{ bytes []byte }

// asItIs is the codec of such messages.
type asItIs struct{ encoding.CodecV2 }

func (asItIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*through).bytes)}, nil
}

func (asItIs) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*through).bytes = data.Materialize()
	return nil
}

// Name is empty, so that the content type stays what it is without the codec.
func (asItIs) Name() string { return "" }

func call(a arguments, conn *grpc.ClientConn) error {
	request, err := os.ReadFile(a.request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var message through
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, a.rpc, grpc.ForceCodecV2(asItIs{}))
	if err == nil {
		err = stream.SendMsg(&through{request})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil || err == io.EOF {
		// If sending failed, this returns the reason.
		err = stream.RecvMsg(&message)
	}
	result := status.Convert(err)
	return print(response{Code: result.Code().String(), Text: result.Message(), Pods: []one{}, Message: message.bytes})
}
