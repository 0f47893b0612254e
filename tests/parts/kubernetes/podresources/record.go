package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// sized looks at how large a message is, and may leave it at that.
type sized struct {
	*recording
	decode bool
	bytes  int
}

func (s *sized) Unmarshal(data mem.BufferSlice, v any) error {
	s.bytes = data.Len()
	if !s.decode {
		return nil
	}
	return s.CodecV2.Unmarshal(data, v)
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

func (asItIs) Name() string { return "" }

// recorded is one line: a call, when it came and when its response was sent (nanoseconds since 1970), and the response.
type recorded struct {
	Path     string `json:"path"`
	Received int64  `json:"received"`
	Answered int64  `json:"answered"`
	Sent     []byte `json:"sent,omitempty"`
	Error    string `json:"error,omitempty"`
}

// recorder is a proxy in front of a kubelet.
type recorder struct {
	upstream *grpc.ClientConn
	plain    bool
	quiet    bool
	pad      []byte

	mu   sync.Mutex
	out  *json.Encoder
	next uint64
}

func record(arguments []string) error {
	var to target
	set := flag.NewFlagSet("record", flag.ExitOnError)
	set.StringVar(&to.socket, "upstream", "", "the socket to which calls are forwarded")
	listen := set.String("listen", "", "the socket that is served")
	plain := set.Bool("plain", false, "add nothing")
	quiet := set.Bool("quiet", false, "print of what was sent only when")
	pad := set.Int("pad", 0, "additional bytes in every response, as devices of an unknown pod")
	_ = set.Parse(arguments)
	to.dial, to.limit, to.timeout = "unix", 64<<20, 10*time.Second

	upstream, err := to.connectByHand()
	if err != nil {
		return err
	}
	made := *listen + ".new"
	listener, err := net.Listen("unix", made)
	if err != nil {
		return err
	}
	if err := os.Rename(made, *listen); err != nil {
		return err
	}
	r := &recorder{upstream: upstream, plain: *plain, quiet: *quiet, pad: padding(*pad), out: json.NewEncoder(os.Stdout)}
	server := grpc.NewServer(grpc.ForceServerCodecV2(asItIs{}), grpc.UnknownServiceHandler(r.forward))
	if err := r.out.Encode(recorded{Path: *listen, Received: time.Now().UnixNano()}); err != nil {
		return err
	}
	return server.Serve(listener)
}

func (r *recorder) forward(_ any, stream grpc.ServerStream) error {
	path, _ := grpc.MethodFromServerStream(stream)
	one := recorded{Path: path, Received: time.Now().UnixNano()}
	var request, response through
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), 10*time.Second)
	defer cancel()
	err := r.upstream.Invoke(ctx, path, &request, &response, grpc.ForceCodecV2(asItIs{}))
	if err != nil {
		one.Error = err.Error()
		_ = r.print(one)
		return err
	}
	r.mu.Lock()
	serial := r.next
	r.next++
	r.mu.Unlock()
	if one.Sent, err = r.with(path, response.bytes, serial); err != nil {
		return err
	}
	// Before it is sent, so that a client that has the response finds it in the record.
	if err := r.print(one); err != nil {
		return err
	}
	return stream.SendMsg(&through{one.Sent})
}

func (r *recorder) print(one recorded) error {
	if r.quiet {
		one.Sent = nil
	}
	one.Answered = time.Now().UnixNano()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Encode(one)
}

// with makes the configured additions to a response.
func (r *recorder) with(path string, response []byte, serial uint64) ([]byte, error) {
	if len(r.pad) > 0 && strings.HasSuffix(path, "/List") {
		response = append(response, r.pad...)
	}
	if r.plain {
		return response, nil
	}
	kind := kindOf(path)
	if kind == nil {
		return nil, fmt.Errorf("the response of %s is unknown", path)
	}
	salt := salt{serial: serial}
	return salt.into(kind, response)
}

func kindOf(path string) protoreflect.MessageDescriptor {
	kinds := map[string]proto.Message{
		"/v1.PodResourcesLister/List":                    &v1.ListPodResourcesResponse{},
		"/v1.PodResourcesLister/Get":                     &v1.GetPodResourcesResponse{},
		"/v1.PodResourcesLister/GetAllocatableResources": &v1.AllocatableResourcesResponse{},
		"/v1alpha1.PodResourcesLister/List":              &v1alpha1.ListPodResourcesResponse{},
	}
	if message, found := kinds[path]; found {
		return message.ProtoReflect().Descriptor()
	}
	return nil
}

// salt is unknown fields of every wire type, no two of them alike.
type salt struct {
	serial uint64
	grains uint64
}

// into puts unknown fields before, between and behind the known ones of a message and of all messages in it.
func (s *salt) into(kind protoreflect.MessageDescriptor, message []byte) ([]byte, error) {
	out := s.grain(nil)
	for len(message) > 0 {
		number, wire, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		value := protowire.ConsumeFieldValue(number, wire, message[tag:])
		if value < 0 {
			return nil, protowire.ParseError(value)
		}
		field, record := kind.Fields().ByNumber(number), message[:tag+value]
		message = message[tag+value:]
		if field == nil || field.Message() == nil || wire != protowire.BytesType {
			out = append(out, record...)
			continue
		}
		inner, _ := protowire.ConsumeBytes(record[tag:])
		salted, err := s.into(field.Message(), inner)
		if err != nil {
			return nil, err
		}
		out = protowire.AppendBytes(append(out, record[:tag]...), salted)
		out = s.grain(out)
	}
	return s.grain(out), nil
}

// grain adds one unknown field.
func (s *salt) grain(out []byte) []byte {
	s.grains++
	number := protowire.Number(500 + s.grains%7)
	switch s.grains % 4 {
	case 0:
		out = protowire.AppendTag(out, number, protowire.Fixed64Type)
		return protowire.AppendFixed64(out, s.serial)
	case 1:
		out = protowire.AppendTag(out, number, protowire.BytesType)
		return protowire.AppendString(out, fmt.Sprintf("response %d, grain %d", s.serial, s.grains))
	case 2:
		out = protowire.AppendTag(out, number, protowire.VarintType)
		return protowire.AppendVarint(out, s.grains)
	}
	out = protowire.AppendTag(out, number, protowire.Fixed32Type)
	return protowire.AppendFixed32(out, uint32(s.grains))
}

// padding is a record for a List: a pod with devices of so many bytes.
func padding(size int) []byte {
	if size == 0 {
		return nil
	}
	container := &v1.ContainerResources{Name: "main"}
	for i := 0; i*1024 < size; i++ {
		container.Devices = append(container.Devices, &v1.ContainerDevices{
			ResourceName: "example.com/padding",
			DeviceIds:    []string{fmt.Sprintf("%01000d", i)},
		})
	}
	pod := &v1.PodResources{Name: "padding", Namespace: "elsewhere", Containers: []*v1.ContainerResources{container}}
	bytes, err := proto.Marshal(&v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{pod}})
	if err != nil {
		panic(err)
	}
	return bytes
}
