// Command fakenode simulates what a real kubelet needs: the container runtime and
// the device plugins. It also keeps the mount namespace of the described machine
// in which the kubelet is started.
//
// It reads requests as JSON lines on standard input, writes one response line for
// each on standard output, and ends with standard input, so that nothing is left
// over when the test that started it dies. Its first line of output means that the
// runtime is listening.
//
//	{"do":"setDevices","resource":"example.com/nic","devices":[{"id":"nic-0","numa":[0]},{"id":"nic-1","unhealthy":true}]}
//	{"do":"stopPlugin","resource":"example.com/nic"}
//	{"do":"startPlugin","resource":"example.com/nic"}
//	{"do":"served"}
//	{"do":"exitContainers","namespace":"default","pod":"a","code":1}
//
// A container of the image "true:latest" ends by itself, with code 0; one of
// "pause:latest" runs until it is stopped. With --run-containers those of every other image are run by that program, which
// is given the kubelet's request in a file (JSON) and the pod's address. "served" fails unless the kubelet has been sent the devices as they are now.
// A plugin starts with the first setDevices of its resource and registers again
// by itself whenever the kubelet was restarted.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
)

// request is one line of standard input.
type request struct {
	Do        string   `json:"do"`
	Resource  string   `json:"resource"`
	Devices   []device `json:"devices"`
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Code      int32    `json:"code"`
}

// response is the response to one request.
type response struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func main() {
	runtimeSocket := flag.String("runtime-socket", "", "serve the container runtime on this unix socket")
	pluginDir := flag.String("plugin-dir", "/var/lib/kubelet/device-plugins", "the kubelet's directory for device plugins")
	program := flag.String("run-containers", "", "run containers of other images than pause and true by this program")
	flag.Parse()

	if err := run(*runtimeSocket, *program, *pluginDir); err != nil {
		log.Fatalf("fakenode: %v", err)
	}
}

func run(runtimeSocket, program, pluginDir string) error {
	containers, err := startRuntime(runtimeSocket, program, filepath.Dir(runtimeSocket))
	if err != nil {
		return err
	}
	node := &node{containers: containers, plugins: newPlugins(pluginDir)}
	return node.serve(os.Stdin, os.Stdout)
}

// node is all that fakenode plays.
type node struct {
	containers *containerRuntime
	plugins    *plugins
}

// serve processes requests until their stream ends.
func (n *node) serve(in io.Reader, out io.Writer) error {
	responses := json.NewEncoder(out)
	if err := responses.Encode(response{OK: true}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20) // a line names every device of a resource
	for lines.Scan() {
		reply := response{OK: true}
		if err := n.handle(lines.Bytes()); err != nil {
			reply = response{Error: err.Error()}
		}
		if err := responses.Encode(reply); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (n *node) handle(line []byte) error {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	switch r.Do {
	case "setDevices":
		return n.plugins.setDevices(r.Resource, r.Devices)
	case "stopPlugin":
		return n.plugins.stop(r.Resource)
	case "startPlugin":
		return n.plugins.start(r.Resource)
	case "served":
		return n.plugins.served()
	case "exitContainers":
		return n.containers.exit(r.Namespace, r.Pod, r.Code)
	}
	return fmt.Errorf("nothing to do is called %q", r.Do)
}
