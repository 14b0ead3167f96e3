package main

import (
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkHandler/pod=other/impl=stowage-2   	     100	     20561 ns/op	 200.72 MB/s	   10512 B/op	      80 allocs/op
BenchmarkHandler/pod=other/impl=plain-2     	     100	    178429 ns/op	   52211 B/op	     397 allocs/op
BenchmarkTracked-2   	     100	 140415120 ns/op	       658.9 heap-B/pod	      7021 ns/pod	93317242 B/op	  817303 allocs/op
PASS
`

func TestTable(t *testing.T) {
	is := map[string]counts{}
	if n := read("internal/x", output, is); n != 2 {
		t.Fatalf("%d benchmarks were read: %v", n, is)
	}
	was := parse(table(is))
	if err := compare(was, is); err != nil {
		t.Errorf("the same counts differ: %v", err)
	}
	is["x Handler/pod=other/impl=stowage"]["allocs/op"] = 82
	if err := compare(was, is); err != nil {
		t.Errorf("within the margin: %v", err)
	}
	if keep(was, is); is["x Handler/pod=other/impl=stowage"]["allocs/op"] != 80 {
		t.Errorf("an update writes %v", is)
	}
	is["x Handler/pod=other/impl=stowage"]["allocs/op"] = 84
	is["x New"], was["x Gone"] = counts{"allocs/op": 1}, counts{"allocs/op": 1}
	err := compare(was, is)
	for _, want := range []string{"has 84 allocs/op, and the table 80", "x New has 1 allocs/op, and the table has none", "x Gone is in the table"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	is["x Handler/pod=other/impl=stowage"]["allocs/op"] = 70
	if err := compare(was, is); err == nil || !strings.Contains(err.Error(), "has 70 allocs/op") {
		t.Errorf("cheaper: got %v", err)
	}
}
