package testkit

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PodServer lists pods over HTTP as an API server does: in pages of the size that is asked for, with a token for the
// next one. A fake store gives all at once. Wrap is put around the client's transport. The count is of the answers.
func PodServer(t *testing.T, pods []corev1.Pod, wrap func(http.RoundTripper) http.RoundTripper) (client.Client, *atomic.Int64) {
	t.Helper()
	answers := &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answers.Add(1)
		limit, _ := strconv.Atoi(req.URL.Query().Get("limit"))
		from, _ := strconv.Atoi(req.URL.Query().Get("continue"))
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		to := len(pods)
		if limit > 0 && from+limit < to {
			to = from + limit
			list.Continue = strconv.Itoa(to)
		}
		list.Items = pods[from:to]
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list) // the client may have read enough
	}))
	t.Cleanup(server.Close)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	c, err := client.New(&rest.Config{Host: server.URL, QPS: -1}, client.Options{
		Scheme: scheme.Scheme, Mapper: mapper, HTTPClient: &http.Client{Transport: wrap(http.DefaultTransport)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, answers
}
