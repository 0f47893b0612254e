// madepods makes random pods with Kubernetes' own types and prints a line for each: the message in hex, a tab, and
//
//	madepods json SEED COUNT   the JSON of what it decodes to
//	madepods rows SEED COUNT   the cells of "kubectl get pods -o wide"
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

func main() {
	log.SetFlags(0)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	switch {
	case len(os.Args) == 4 && os.Args[1] == "json":
		pods(out, number(os.Args[2]), number(os.Args[3]))
	case len(os.Args) == 4 && os.Args[1] == "rows":
		rows(out, number(os.Args[2]), number(os.Args[3]))
	default:
		log.Fatal("madepods json SEED COUNT | rows SEED COUNT")
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// jsonOf is the JSON of the decoded message, as Kubernetes' types encode it.
func jsonOf(message []byte) ([]byte, error) {
	var pod corev1.Pod
	if err := pod.Unmarshal(message); err != nil {
		return nil, err
	}
	return json.Marshal(&pod)
}

// pods makes pods of every kind: the first has everything in it, the second nothing.
func pods(out *bufio.Writer, seed, count int64) {
	for index := int64(0); index < count; index++ {
		random := rand.New(rand.NewSource(seed + index))
		filler := randfill.New().RandSource(random).Funcs(quantity, moment, intOrString, fields, typeMeta)
		switch {
		case index == 0:
			filler = filler.NilChance(0).NumElements(1, 2)
		case index == 1:
			filler = filler.NilChance(1)
		default:
			filler = filler.NilChance(random.Float64()).NumElements(0, 1+random.Intn(3))
		}
		var pod corev1.Pod
		if index != 1 {
			filler.Fill(&pod)
		}
		message, err := pod.Marshal()
		if err != nil {
			log.Fatal(err)
		}
		text, err := jsonOf(message)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintf(out, "%s\t%s\n", hex.EncodeToString(message), text)
	}
}

func quantity(q *resource.Quantity, c randfill.Continue) {
	formats := []resource.Format{resource.BinarySI, resource.DecimalSI, resource.DecimalExponent}
	format := formats[c.Intn(len(formats))]
	*q = *resource.NewQuantity(c.Int63n(1<<uint(c.Intn(60)+1)), format)
	if c.Bool() {
		*q = *resource.NewMilliQuantity(c.Int63n(1<<40), format)
	}
}

// From the year 1 to 9999, what there is; sometimes none.
func moment(t *metav1.Time, c randfill.Continue) {
	*t = metav1.Time{}
	if c.Intn(8) > 0 {
		*t = metav1.Unix(c.Int63n(253402300800+62135596800)-62135596800, 0)
	}
}

func intOrString(v *intstr.IntOrString, c randfill.Continue) {
	if c.Bool() {
		*v = intstr.FromInt32(int32(c.Uint32()))
	} else {
		*v = intstr.FromString(c.String(0))
	}
}

func fields(f *metav1.FieldsV1, c randfill.Continue) {
	texts := []string{`{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}`, `{}`, ``}
	f.SetRawString(texts[c.Intn(len(texts))])
}

func typeMeta(*metav1.TypeMeta, randfill.Continue) {}
