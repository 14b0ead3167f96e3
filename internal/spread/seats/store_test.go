package seats

import (
	"context"
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// A write is uncertain only if nobody knows whether it was applied. A book reads the ledger after it.
func TestResultOfAWrite(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	internal := func(message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: message}}
	}
	ledgers := schema.GroupResource{Group: "stowage.dev", Resource: "seatledgers"}
	cases := map[string]struct {
		err  error
		want ledger.WriteResult
	}{
		"it is applied":                          {nil, ledger.WriteOK},
		"another replica was first":              {apierrors.NewConflict(ledgers, "uid", errors.New("changed")), ledger.WriteConflict},
		"the ledger was removed":                 {apierrors.NewNotFound(ledgers, "uid"), ledger.WriteConflict},
		"priority and fairness refuses it":       {apierrors.NewTooManyRequests("too many requests", 1), ledger.WriteBusy},
		"so does an API server that shuts down":  {apierrors.NewServiceUnavailable("apiserver is shutting down"), ledger.WriteBusy},
		"and a load balancer without a server":   {apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "put", ledgers, "uid", "", 0, true), ledger.WriteBusy},
		"the API server finds it too large":      {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), ledger.WriteRefused},
		"etcd finds it too large":                {internal("etcdserver: request is too large"), ledger.WriteRefused},
		"so does the API server's etcd client":   {internal("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097160 vs. 2097152)"), ledger.WriteRefused},
		"a quota forbids it":                     {apierrors.NewForbidden(ledgers, "uid", errors.New("exceeded quota")), ledger.WriteRefused},
		"etcd does not answer in time":           {internal("etcdserver: request timed out"), ledger.WriteUncertain},
		"the API server does not answer in time": {context.DeadlineExceeded, ledger.WriteUncertain},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
				Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return tc.err },
			})
			if _, got, _ := (&Store{Client: c}).WriteLedger(t.Context(), testOwner, &ledger.Object{Version: 7}); got != tc.want {
				t.Errorf("the result of %v is %d, want %d", tc.err, got, tc.want)
			}
		})
	}
}
