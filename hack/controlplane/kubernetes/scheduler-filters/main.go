// Command scheduler-filters answers which nodes kube-scheduler's own filters let take a pod. It reads questions from standard input, JSON values one
// after the other, and writes an answer to each as soon as it has it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/stowage-dev/stowage/hack/controlplane/kubernetes/filters"
)

// question is a state of a cluster, and pods to ask about.
type question struct {
	// Objects are nodes, pods, volumes and so on, each with its apiVersion and kind.
	Objects []json.RawMessage `json:"objects"`
	// Only are the plugins to ask; none are all.
	Only []string `json:"only,omitempty"`
	// Pods are asked about, each by itself.
	Pods []*corev1.Pod `json:"pods"`
}

// answer has what the filters say of each node, for each pod of the question.
type answer struct {
	Pods  []map[string]filters.Answer `json:"pods,omitempty"`
	Error string                      `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		if err := q.ask(context.Background(), &a); err != nil {
			a = answer{Error: err.Error()}
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func (q *question) ask(ctx context.Context, a *answer) error {
	decoder := serializer.NewCodecFactory(scheme.Scheme).UniversalDeserializer()
	var objects []runtime.Object
	for _, raw := range q.Objects {
		o, _, err := decoder.Decode(raw, nil, nil)
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	f, err := filters.Only(q.Only, objects...)
	if err != nil {
		return err
	}
	for _, pod := range q.Pods {
		passes, err := f.Passes(ctx, pod)
		if err != nil {
			return err
		}
		a.Pods = append(a.Pods, passes)
	}
	return nil
}
