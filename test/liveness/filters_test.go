package liveness

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The program that has kube-scheduler's own filters. Its module is not ours, because Kubernetes itself is no library of ours.
var scheduler struct {
	sync.Mutex
	ask    *json.Encoder
	answer *json.Decoder
}

// refusal is what the filters say of a node. It is empty where the node passes.
type refusal struct{ Plugin, Reason string }

// startFilters starts the program. The caller must end it.
func startFilters(path string) (end func(), err error) {
	cmd := exec.Command(path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	scheduler.ask, scheduler.answer = json.NewEncoder(in), json.NewDecoder(out)
	return func() {
		_ = in.Close() // it ends when nobody can ask
		_ = cmd.Wait()
	}, cmd.Start()
}

// filters asks which nodes some of kube-scheduler's filters, or all if none are named, refuse for each of some pods.
func filters(objects []runtime.Object, pods []*corev1.Pod, only ...string) ([]map[string]refusal, error) {
	scheduler.Lock()
	defer scheduler.Unlock()
	question := struct {
		Objects []runtime.Object `json:"objects"`
		Only    []string         `json:"only,omitempty"`
		Pods    []*corev1.Pod    `json:"pods"`
	}{objects, only, pods}
	if err := scheduler.ask.Encode(question); err != nil {
		return nil, err
	}
	var answer struct {
		Pods  []map[string]refusal
		Error string
	}
	if err := scheduler.answer.Decode(&answer); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the program with the filters has ended")
		}
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.Pods, nil
}
