"""A client of the Pods API as one written in Python is: grpcio, and what grpcio-tools makes of upstream's definitions, those of
the API and those of Pods; of ours for PodInfo.

    grpcio-pods list --socket S
    grpcio-pods get --socket S --uid U
    grpcio-pods watch --socket S
    grpcio-pods conditions-list --socket S        # and conditions-get, conditions-watch
    grpcio-pods serve                             # runs the commands on standard input, a JSON list per line

Each prints JSON lines: a response's code, text and pods; a watch's events, and how it ended.
"""

import argparse
import hashlib
import json
import sys
import time

import api_pb2
import api_pb2_grpc
import grpc
import v1alpha1_pb2
import v1alpha1_pb2_grpc
from google.protobuf import json_format
from k8s.io.api.core.v1 import generated_pb2 as core

DEADLINE = 10


def decoded(came):
    """A pod, by the definitions of its types; unknown fields are kept, so that encoding it again gives the same bytes."""
    pod = core.Pod.FromString(came)
    return {
        "bytes": len(came),
        "hash": hashlib.sha256(came).hexdigest()[:16],
        "pod": json_format.MessageToDict(pod),
    }


def condition(pod):
    """What PodInfo has of a pod, called like a Pod."""
    came = pod.SerializeToString(deterministic=True)
    return {
        "bytes": len(came),
        "hash": hashlib.sha256(came).hexdigest()[:16],
        "pod": {
            "metadata": {"uid": pod.podUID, "name": pod.podName, "namespace": pod.podNamespace},
            "info": json_format.MessageToDict(pod),
        },
    }


def status(error):
    # DEADLINE_EXCEEDED is DeadlineExceeded elsewhere.
    return {"code": error.code().name.title().replace("_", ""), "text": error.details()}


def write(line):
    print(json.dumps(line), flush=True)


def respond(method, request, pods_of):
    try:
        pods = pods_of(method(request, timeout=DEADLINE))
    except grpc.RpcError as error:
        return write({**status(error), "pods": []})
    return write({"code": "OK", "text": "", "pods": pods})


def follow(events, kind, pod_of):
    try:
        for event in events:
            write({"type": kind.Name(event.type), "time": time.time_ns(), **pod_of(event)})
        ended = {"code": "OK", "text": ""}
    except grpc.RpcError as error:
        ended = status(error)
    write({"type": "ENDED", "time": time.time_ns(), **ended})


def pods(arguments, channel):
    stub = api_pb2_grpc.PodsStub(channel)
    if arguments.command == "list":
        respond(stub.ListPods, api_pb2.ListPodsRequest(), lambda came: [decoded(pod) for pod in came.pods])
    elif arguments.command == "get":
        respond(stub.GetPod, api_pb2.GetPodRequest(podUID=arguments.uid), lambda came: [decoded(came.pod)])
    else:
        events = stub.WatchPods(api_pb2.WatchPodsRequest())
        follow(events, api_pb2.EventType, lambda event: decoded(event.pod) if event.pod else {})


def conditions(arguments, channel):
    stub = v1alpha1_pb2_grpc.PodInfoStub(channel)
    if arguments.command == "conditions-list":
        request = v1alpha1_pb2.ListPodConditionsRequest()
        respond(stub.ListPodConditions, request, lambda came: [condition(pod) for pod in came.pods])
    elif arguments.command == "conditions-get":
        request = v1alpha1_pb2.GetPodConditionsRequest(podUID=arguments.uid)
        respond(stub.GetPodConditions, request, lambda came: [condition(came.pod)])
    else:
        events = stub.WatchPodConditions(v1alpha1_pb2.WatchPodConditionsRequest())
        pod_of = lambda event: condition(event.pod) if event.HasField("pod") else {}
        follow(events, v1alpha1_pb2.EventType, pod_of)


def run(command):
    parser = argparse.ArgumentParser()
    kinds = ["list", "get", "watch"]
    parser.add_argument("command", choices=kinds + ["conditions-" + kind for kind in kinds])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--uid", default="")
    arguments = parser.parse_args(command)
    # Every command has a connection of its own.
    options = [("grpc.max_receive_message_length", 32 << 20), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel("unix://" + arguments.socket, options=options) as channel:
        (conditions if arguments.command.startswith("conditions-") else pods)(arguments, channel)


if sys.argv[1:] == ["serve"]:
    for line in sys.stdin:
        run(json.loads(line))
else:
    run(sys.argv[1:])
