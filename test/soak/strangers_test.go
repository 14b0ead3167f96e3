package soak

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// stranger is a client without credentials on an address of its own. It knows the port of a replica.
type stranger struct {
	http  *http.Client
	url   string
	asked atomic.Int64
}

func newStranger(address, webhook string) *stranger {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: 5 * time.Second}
	return &stranger{
		http: &http.Client{Timeout: 35 * time.Second, Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // what an attacker does
		}},
		url: "https://" + webhook,
	}
}

// ask sends a review to the path of its kind, and returns the status of the answer, or 0.
func (s *stranger) ask(ctx context.Context, body []byte) int {
	path := "/validate-workload"
	if bytes.Contains(body[:min(len(body), 256)], []byte(`"kind":"Pod"`)) {
		path = "/mutate-v1-pod"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path+"?timeout=5s", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.http.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, res.Body)
	s.asked.Add(1)
	return res.StatusCode
}

// review is a review of a pod, whose metadata and spec are JSON.
func review(namespace, metadata, spec string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Pod"},`+
		`"operation":"CREATE","namespace":%q,"object":{"apiVersion":"v1","kind":"Pod","metadata":{%s},"spec":{%s}}}}`, namespace, metadata, spec)
}

// policyReview is a review of a SpreadPolicy, whose spec is JSON.
func policyReview(spec string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"stowage.dev","version":"v1alpha1","kind":"SpreadPolicy"},`+
		`"operation":"CREATE","namespace":"default","object":{"apiVersion":"stowage.dev/v1alpha1","kind":"SpreadPolicy","metadata":{"name":"p"},"spec":{%s}}}}`, spec)
}

// hostileReviews are reviews of so many bytes, of many small items each, one of each list and map of a pod, and some of a policy.
func hostileReviews(size int) [][]byte {
	fill := func(format, item string) string {
		return fmt.Sprintf(format, strings.TrimSuffix(strings.Repeat(item+",", size/(len(item)+1)), ","))
	}
	entries := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, `,"%x":""`, i)
		}
		return fmt.Sprintf(format, strings.TrimPrefix(b.String(), ","))
	}
	var most strings.Builder
	for i := range 99 {
		fmt.Fprintf(&most, `,"%x":""`, i)
	}
	container := fmt.Sprintf(`{"name":"c","resources":{"limits":{%s},"requests":{%[1]s}}}`, strings.TrimPrefix(most.String(), ","))
	terms := `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[%s]}}}`
	return [][]byte{
		review("default", fill(`"ownerReferences":[%s]`, `{}`), ""),
		review("default", entries(`"labels":{%s}`), ""),
		review("default", entries(`"annotations":{%s}`), ""),
		review("default", "", fill(`"tolerations":[%s]`, `{}`)),
		review("default", "", fill(`"containers":[%s]`, `{}`)),
		review("default", "", fill(`"initContainers":[%s]`, `{}`)),
		review("default", "", fill(`"containers":[%s]`, container)),
		review("default", "", fill(`"schedulingGates":[%s]`, `{}`)),
		review("default", "", fill(terms, `{}`)),
		review("default", "", fill(terms, `{"matchExpressions":[{"values":["","",""]}]}`)),
		review("default", "", entries(`"nodeSelector":{%s}`)),
		review("default", "", fill(`"other":[%s]`, `{"a":[1]}`)),
		policyReview(fill(`"pools":[%s]`, `{}`)),
		policyReview(fill(`"pools":[%s]`, `{"maxReplicas":"x"}`)),
		policyReview(fill(`"pools":[{"name":"a","matchExpressions":[%s]}]`, `{}`)),
		policyReview(entries(`"selector":{"matchLabels":{%s}}`)),
	}
}

// reviewOfEntries is a review of a pod of about so many bytes with as many labels and annotations as are let in, and an owner that does not exist.
func reviewOfEntries(namespace string, size int) []byte {
	var entries strings.Builder
	for i := range 980 {
		fmt.Fprintf(&entries, `,"%x":"%s"`, i, strings.Repeat("v", max(0, size/1960-9)))
	}
	all := strings.TrimPrefix(entries.String(), ",")
	owner := `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"nope","uid":"u","controller":true}]`
	return review(namespace, fmt.Sprintf(`"name":"p",%s,"labels":{%s},"annotations":{%[2]s}`, owner, all), `"containers":[{"name":"c"}]`)
}

// series counts the time series that a process publishes.
func series(t *testing.T, url string) (n int) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "#") {
			n++
		}
	}
	return n
}
