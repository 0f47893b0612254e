package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is listened to
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	podresources "k8s.io/kubernetes/pkg/kubelet/apis/podresources"
)

// grpcLimit is grpc-go's default limit for the size of a response.
const grpcLimit = 4 << 20

// target is a socket, and how it is reached.
type target struct {
	socket  string
	dial    string
	limit   int
	timeout time.Duration
}

func (t *target) flags(set *flag.FlagSet) {
	set.StringVar(&t.socket, "socket", "", "the socket")
	set.StringVar(&t.dial, "dial", "library",
		"library: as k8s.io/kubernetes does; unix: by grpc-go's own unix: resolver; raw: the path itself as :authority, as old versions of grpc-go did")
	set.IntVar(&t.limit, "limit", grpcLimit, "the largest message that is accepted, in bytes")
	set.DurationVar(&t.timeout, "timeout", 10*time.Second, "deadline of a call")
}

// clients are those of one connection.
type clients struct {
	v1       v1.PodResourcesListerClient
	v1alpha1 v1alpha1.PodResourcesListerClient
	conn     *grpc.ClientConn
}

func (t *target) connect() (clients, error) {
	if t.dial == "library" {
		// Each version has its own connection.
		client, conn, err := podresources.GetV1Client(context.Background(), t.socket, t.timeout, t.limit)
		if err != nil {
			return clients{}, err
		}
		return clients{v1: client, v1alpha1: v1alpha1.NewPodResourcesListerClient(conn), conn: conn}, nil
	}
	conn, err := t.connectByHand()
	if err != nil {
		return clients{}, err
	}
	return clients{v1: v1.NewPodResourcesListerClient(conn), v1alpha1: v1alpha1.NewPodResourcesListerClient(conn), conn: conn}, nil
}

func (t *target) connectByHand() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(t.limit)),
	}
	switch t.dial {
	case "unix":
		return grpc.NewClient("unix://"+t.socket, options...)
	case "raw":
		dialer := func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", t.socket)
		}
		options = append(options, grpc.WithAuthority(t.socket), grpc.WithContextDialer(dialer))
		return grpc.NewClient("passthrough:///"+t.socket, options...)
	}
	return nil, fmt.Errorf("no dialer is called %q", t.dial)
}

// call is one method with its request.
type call struct {
	rpc, namespace, name string
}

func (c call) by(ctx context.Context, clients clients, options ...grpc.CallOption) (proto.Message, error) {
	switch c.rpc {
	case "list":
		return clients.v1.List(ctx, &v1.ListPodResourcesRequest{}, options...)
	case "allocatable":
		return clients.v1.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{}, options...)
	case "get":
		return clients.v1.Get(ctx, &v1.GetPodResourcesRequest{PodNamespace: c.namespace, PodName: c.name}, options...)
	case "list-v1alpha1":
		return clients.v1alpha1.List(ctx, &v1alpha1.ListPodResourcesRequest{}, options...)
	}
	// A method by its whole name, which the server may not have.
	var none v1.ListPodResourcesResponse
	return &none, clients.conn.Invoke(ctx, c.rpc, &v1.ListPodResourcesRequest{}, &none, options...)
}

// recording is the codec of protobuf, which keeps the last message that it read.
type recording struct {
	encoding.CodecV2
	received []byte
}

func newRecording() *recording {
	return &recording{CodecV2: encoding.GetCodecV2("proto")}
}

func (l *recording) Unmarshal(data mem.BufferSlice, v any) error {
	l.received = data.Materialize()
	return l.CodecV2.Unmarshal(data, v)
}

// Name is empty, so that the content type stays what it is without the codec.
func (l *recording) Name() string { return "" }

// response is a line that "request" prints.
type response struct {
	Code   string          `json:"code"`
	Text   string          `json:"text"`
	Bytes  []byte          `json:"bytes"`
	Answer json.RawMessage `json:"answer,omitempty"`
}

func request(arguments []string) error {
	var to target
	var what call
	set := flag.NewFlagSet("request", flag.ExitOnError)
	to.flags(set)
	set.StringVar(&what.rpc, "rpc", "list", "list, list-v1alpha1, allocatable, get, or a method by its whole name")
	pod := set.String("pod", "", "namespace/name, for get")
	times := set.Int("times", 1, "how often, over one connection")
	_ = set.Parse(arguments)
	what.namespace, what.name, _ = strings.Cut(*pod, "/")

	clients, err := to.connect()
	if err != nil {
		return err
	}
	defer clients.conn.Close()
	out := json.NewEncoder(os.Stdout)
	for range *times {
		one, err := to.request(clients, what)
		if err != nil {
			return err
		}
		if err := out.Encode(one); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) request(clients clients, what call) (response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	codec := newRecording()
	message, err := what.by(ctx, clients, grpc.ForceCodecV2(codec))
	result := status.Convert(err)
	one := response{Code: result.Code().String(), Text: result.Message(), Bytes: codec.received}
	if err != nil {
		return one, nil
	}
	one.Answer, err = protojson.Marshal(message)
	return one, err
}
