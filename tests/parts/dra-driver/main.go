// Command dra-driver is a driver for Dynamic Resource Allocation whose devices are
// described in a file (pools.go has the format). It publishes them as ResourceSlices,
// prepares and unprepares claims for a real kubelet, and writes which claims are
// prepared to its book. There is no hardware behind it.
//
// It reads requests as JSON lines on standard input, writes one response line for
// each on standard output, and ends with standard input. Its first line of output
// means that the kubelet can register it.
//
//	{"do":"registered"}
//	{"do":"readPools"}
//	{"do":"published"}
//	{"do":"failPrepare","why":"no such device"}
//	{"do":"holdPrepare"}
//	{"do":"allowPrepare"}
//
// "registered" fails until the kubelet has registered it; before, no claim can be
// prepared or unprepared. "readPools" reads the file again and publishes what is in it
// now. "published" fails until the API server has exactly that. After "failPrepare"
// each claim fails to be prepared, after "holdPrepare" each waits, until
// "allowPrepare". A claim that is prepared already is not affected.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// settings are the flags.
type settings struct {
	name, node, kubeconfig, kubeletDir, cdiDir, pools, book string
}

// request is one line of standard input.
type request struct {
	Do  string `json:"do"`
	Why string `json:"why"`
}

// response is the response to one request.
type response struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func main() {
	var s settings
	flag.StringVar(&s.name, "name", "", "the driver's name, such as gpu.example.com")
	flag.StringVar(&s.node, "node", "", "the Node's name")
	flag.StringVar(&s.kubeconfig, "kubeconfig", "", "access to the API server")
	flag.StringVar(&s.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's directory")
	flag.StringVar(&s.cdiDir, "cdi-dir", "/var/run/cdi", "the directory for the CDI files of claims with CPUs")
	flag.StringVar(&s.pools, "pools", "", "read the pools of devices from this file (JSON)")
	flag.StringVar(&s.book, "book", "", "write the prepared claims to this file (JSON), and read them from it at the start")
	flag.Parse()

	if err := run(s); err != nil {
		log.Fatalf("dra-driver: %v", err)
	}
}

func run(s settings) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	driver, err := newDriver(s, client)
	if err != nil {
		return err
	}
	// The kubelet makes one of them when it starts, the helper none.
	sockets := filepath.Join(s.kubeletDir, "plugins_registry")
	data := filepath.Join(s.kubeletDir, "plugins", s.name)
	for _, dir := range []string{sockets, data, s.cdiDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	driver.helper, err = kubeletplugin.Start(context.Background(), driver,
		kubeletplugin.DriverName(s.name),
		kubeletplugin.NodeName(s.node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(sockets),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.HealthService(false),
		// A claim that waits must not keep others from being unprepared.
		kubeletplugin.Serialize(false),
	)
	if err != nil {
		return err
	}
	defer driver.helper.Stop()
	if err := driver.publish(); err != nil {
		return err
	}
	return driver.serve(os.Stdin, os.Stdout)
}

// serve processes requests until their stream ends.
func (d *driver) serve(in io.Reader, out io.Writer) error {
	responses := json.NewEncoder(out)
	if err := responses.Encode(response{OK: true}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		reply := response{OK: true}
		if err := d.handle(lines.Bytes()); err != nil {
			reply = response{Error: err.Error()}
		}
		if err := responses.Encode(reply); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (d *driver) handle(line []byte) error {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	switch r.Do {
	case "registered":
		if status := d.helper.RegistrationStatus(); status == nil || !status.PluginRegistered {
			return fmt.Errorf("the kubelet has not registered it: %v", status)
		}
	case "readPools":
		if err := d.readPools(); err != nil {
			return err
		}
		return d.publish()
	case "published":
		return d.published(context.Background())
	case "failPrepare":
		d.gate.fail(r.Why)
	case "holdPrepare":
		d.gate.hold()
	case "allowPrepare":
		d.gate.allow()
	default:
		return fmt.Errorf("nothing to do is called %q", r.Do)
	}
	return nil
}
