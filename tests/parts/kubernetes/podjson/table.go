package main

import (
	"fmt"
	"io"
	"log"
	"reflect"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// What has a form of its own in JSON.
var special = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  "quantity",
	reflect.TypeFor[metav1.Time]():        "time",
	reflect.TypeFor[intstr.IntOrString](): "intOrString",
	reflect.TypeFor[metav1.FieldsV1]():    "json",
	reflect.TypeFor[[]byte]():             "bytes",
}

// table prints every message that a pod is made of.
func table(out io.Writer) {
	fmt.Fprintf(out, "# Made by tests/parts/kubernetes/podjson from k8s.io/api %s.\n", version("k8s.io/api"))
	queue := []reflect.Type{reflect.TypeFor[corev1.Pod]()}
	named := map[string]reflect.Type{"Pod": queue[0]}
	for ; len(queue) > 0; queue = queue[1:] {
		message := queue[0]
		var lines []line
		for index := range message.NumField() {
			if line, inner, ok := lineOf(message, message.Field(index)); ok {
				lines = append(lines, line)
				if inner != nil && named[inner.Name()] == nil {
					named[inner.Name()] = inner
					queue = append(queue, inner)
				}
				if inner != nil && named[inner.Name()] != inner {
					log.Fatalf("two messages are called %s", inner.Name())
				}
			}
		}
		sort.Slice(lines, func(a, b int) bool { return lines[a].number < lines[b].number })
		fmt.Fprintf(out, "%s\n", message.Name())
		for _, line := range lines {
			fmt.Fprintf(out, "%d %s %s\n", line.number, line.name, line.kind)
		}
	}
}

type line struct {
	number int
	name   string
	kind   string
}

// lineOf is what the table says of a field, and the message that is in it.
func lineOf(message reflect.Type, field reflect.StructField) (line, reflect.Type, bool) {
	tag := strings.Split(field.Tag.Get("protobuf"), ",")
	json := strings.Split(field.Tag.Get("json"), ",")
	if len(tag) < 2 {
		// Kind and version, which are in the envelope.
		if field.Type == reflect.TypeFor[metav1.TypeMeta]() {
			return line{}, nil, false
		}
		log.Fatalf("%s.%s has no number", message.Name(), field.Name)
	}
	number, err := strconv.Atoi(tag[1])
	if err != nil {
		log.Fatal(err)
	}
	has := func(option string) bool {
		for _, word := range json[1:] {
			if word == option {
				return true
			}
		}
		return false
	}
	name := json[0]
	if name == "" {
		if !field.Anonymous || field.Type.Kind() != reflect.Struct {
			log.Fatalf("%s.%s has no name", message.Name(), field.Name)
		}
		name = "-"
	}
	kind, inner := kindOf(field.Type)
	omitted := has("omitempty") || has("omitzero")
	if field.Type.Kind() == reflect.Struct {
		// An empty one is left out by omitzero alone, and only a time can say that it is empty.
		omitted = has("omitzero")
		if omitted && special[field.Type] != "time" {
			log.Fatalf("%s.%s: what is its zero?", message.Name(), field.Name)
		}
	}
	if omitted {
		kind = "?" + kind
	}
	return line{number, name, kind}, inner, true
}

func kindOf(of reflect.Type) (string, reflect.Type) {
	if name, ok := special[of]; ok {
		return name, nil
	}
	wrapped := func(mark string, of reflect.Type) (string, reflect.Type) {
		name, inner := kindOf(of)
		if strings.ContainsAny(name, "*[{") {
			log.Fatalf("%s of %s", mark, name)
		}
		return mark + name, inner
	}
	switch of.Kind() {
	case reflect.Pointer:
		return wrapped("*", of.Elem())
	case reflect.Slice:
		return wrapped("[]", of.Elem())
	case reflect.Map:
		if of.Key().Kind() != reflect.String {
			log.Fatalf("a map by %s", of.Key())
		}
		return wrapped("{}", of.Elem())
	case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64:
		return of.Kind().String(), nil
	case reflect.Struct:
		return of.Name(), of
	}
	log.Fatalf("what is %s?", of)
	return "", nil
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			if dependency.Replace != nil {
				return dependency.Replace.Version
			}
			return dependency.Version
		}
	}
	return "unknown"
}
