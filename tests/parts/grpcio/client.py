"""A client of a kubelet's podresources socket as one written in Python is: grpcio, and what grpcio-tools makes of proto/.

    grpcio request --socket S --rpc list [--limit 4194304] [--times 3]
    grpcio serve                                  # runs the commands on standard input, a JSON list per line

Arguments and output are those of `podresources request` in ../kubernetes/podresources.
"""

import argparse
import base64
import json
import sys

import grpc
import v1_pb2
import v1_pb2_grpc
import v1alpha1_pb2
import v1alpha1_pb2_grpc
from google.protobuf import json_format


class Recording:
    """A channel that keeps the last message that was read from it."""

    def __init__(self, channel):
        self.channel = channel
        self.received = b""

    def unary_unary(self, method, request_serializer=None, response_deserializer=None, **more):
        def decode(message):
            self.received = message
            return response_deserializer(message)

        return self.channel.unary_unary(method, request_serializer, decode, **more)


def call_of(arguments, channel):
    """The requested method and its request."""
    v1 = v1_pb2_grpc.PodResourcesListerStub(channel)
    namespace, _, name = arguments.pod.partition("/")
    if arguments.rpc == "list":
        return v1.List, v1_pb2.ListPodResourcesRequest()
    if arguments.rpc == "allocatable":
        return v1.GetAllocatableResources, v1_pb2.AllocatableResourcesRequest()
    if arguments.rpc == "get":
        return v1.Get, v1_pb2.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
    if arguments.rpc == "list-v1alpha1":
        return v1alpha1_pb2_grpc.PodResourcesListerStub(channel).List, v1alpha1_pb2.ListPodResourcesRequest()
    none = v1_pb2.ListPodResourcesResponse.FromString
    method = channel.unary_unary(arguments.rpc, v1_pb2.ListPodResourcesRequest.SerializeToString, none)
    return method, v1_pb2.ListPodResourcesRequest()


def request_of(arguments, channel):
    method, request = call_of(arguments, channel)
    channel.received = b""
    try:
        response = method(request, timeout=10)
    except grpc.RpcError as error:
        # DEADLINE_EXCEEDED is DeadlineExceeded elsewhere.
        code, text, response = error.code().name.title().replace("_", ""), error.details(), None
    else:
        code, text, response = "OK", "", json_format.MessageToDict(response)
    received = base64.b64encode(channel.received).decode()
    return {"code": code, "text": text, "bytes": received, "answer": response}


def run(command):
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["request"])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--rpc", default="list")
    parser.add_argument("--pod", default="")
    parser.add_argument("--limit", type=int, default=4 << 20)
    parser.add_argument("--times", type=int, default=1)
    arguments = parser.parse_args(command)
    # Every command has a connection of its own.
    options = [("grpc.max_receive_message_length", arguments.limit), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel("unix://" + arguments.socket, options=options) as channel:
        recording = Recording(channel)
        for _ in range(arguments.times):
            print(json.dumps(request_of(arguments, recording)), flush=True)


if sys.argv[1:] == ["serve"]:
    for line in sys.stdin:
        run(json.loads(line))
else:
    run(sys.argv[1:])
