package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"math/rand"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/kubernetes/pkg/apis/core"
	convert "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/printers"
	"k8s.io/kubernetes/pkg/printers/internalversion"
)

// rows makes pods in every state there is, and prints them as `kubectl get pods -o wide` does: a line each, the message in
// hex, a tab, the cells.
func rows(out *bufio.Writer, seed, count int64) {
	generator := printers.NewTableGenerator().With(internalversion.AddHandlers)
	for index := int64(0); index < count; index++ {
		pod := anyPod(rand.New(rand.NewSource(seed+index)), int(index))
		message, err := pod.Marshal()
		if err != nil {
			log.Fatal(err)
		}
		var internal core.Pod
		if err := convert.Convert_v1_Pod_To_core_Pod(pod, &internal, nil); err != nil {
			log.Fatal(err)
		}
		table, err := generator.GenerateTable(&internal, printers.GenerateOptions{Wide: true})
		if err != nil {
			log.Fatal(err)
		}
		cells, err := json.Marshal(table.Rows[0].Cells)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintf(out, "%s\t%s\n", hex.EncodeToString(message), cells)
	}
}

// anyOf returns one of the words: those that affect the row, and one that does not.
func anyOf[T ~string](random *rand.Rand, words ...T) T {
	return words[random.Intn(len(words))]
}

func anyPod(random *rand.Rand, index int) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = fmt.Sprintf("pod-%d", index), "ns"
	pod.UID = types.UID(fmt.Sprintf("uid-%05d", index))
	pod.CreationTimestamp = anyTime(random)
	if random.Intn(4) == 0 {
		deleted := metav1.Now()
		pod.DeletionTimestamp = &deleted
	}
	status := &pod.Status
	status.Phase = anyOf[corev1.PodPhase](random, "Pending", "Running", "Running", "Succeeded", "Failed", "Unknown", "")
	status.Reason = anyOf(random, "", "", "", "Evicted", "NodeLost")
	for range random.Intn(3) {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type:   anyOf[corev1.PodConditionType](random, "PodScheduled", "Initialized", "Ready", "example.com/gate"),
			Status: anyOf[corev1.ConditionStatus](random, "True", "False", "Unknown"),
			Reason: anyOf(random, "", "SchedulingGated", "Other"),
		})
	}
	for number := range random.Intn(3) {
		container := corev1.Container{Name: fmt.Sprintf("init-%d", number)}
		if random.Intn(2) == 0 {
			policy := anyOf[corev1.ContainerRestartPolicy](random, "Always", "Never")
			container.RestartPolicy = &policy
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		if random.Intn(8) > 0 {
			status.InitContainerStatuses = append(status.InitContainerStatuses, anyStatus(random, container.Name))
		}
	}
	for number := range 1 + random.Intn(3) {
		name := fmt.Sprintf("main-%d", number)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
		if random.Intn(8) > 0 {
			status.ContainerStatuses = append(status.ContainerStatuses, anyStatus(random, name))
		}
	}
	if random.Intn(2) == 0 {
		status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}
	}
	return pod
}

func anyStatus(random *rand.Rand, name string) corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: name, Ready: random.Intn(2) == 0}
	if random.Intn(2) == 0 {
		status.RestartCount = int32(random.Intn(3))
	}
	if random.Intn(2) == 0 {
		started := random.Intn(2) == 0
		status.Started = &started
	}
	status.State = anyState(random)
	if random.Intn(2) == 0 {
		status.LastTerminationState = anyState(random)
	}
	return status
}

func anyState(random *rand.Rand) (state corev1.ContainerState) {
	switch random.Intn(5) {
	case 0:
		state.Waiting = &corev1.ContainerStateWaiting{
			Reason: anyOf(random, "", "PodInitializing", "CrashLoopBackOff", "ContainerCreating"),
		}
	case 1, 2:
		state.Running = &corev1.ContainerStateRunning{StartedAt: anyTime(random)}
	case 3:
		state.Terminated = &corev1.ContainerStateTerminated{
			ExitCode:   int32(random.Intn(2)),
			Signal:     int32(random.Intn(2) * 9),
			Reason:     anyOf(random, "", "Completed", "Completed", "Error", "OOMKilled"),
			FinishedAt: anyTime(random),
		}
	}
	return state
}

// Of every length that is written in another way, in the middle of it; some in the future, and none.
func anyTime(random *rand.Rand) metav1.Time {
	ages := []time.Duration{
		-time.Hour, 4*time.Hour + 30*time.Minute, 20*time.Hour + 30*time.Minute, 48*time.Hour + 30*time.Minute,
		75*time.Hour + 30*time.Minute, 30*24*time.Hour + time.Hour, 1000*24*time.Hour + time.Hour,
		(2*365*24 + 1) * time.Hour, 20 * 366 * 24 * time.Hour, 90*time.Minute + 30*time.Second,
	}
	if random.Intn(6) == 0 {
		return metav1.Time{}
	}
	return metav1.Time{Time: time.Now().Add(-ages[random.Intn(len(ages))]).Truncate(time.Second)}
}
