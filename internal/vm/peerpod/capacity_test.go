package peerpod_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "10": 10, " 7\n": 7, "100000": 100_000} {
		if got, err := peerpod.ParseLimit(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ten", "-1", "1e9", "1000000000", "1.5", "0x10", "9223372036854775808"} {
		if got, err := peerpod.ParseLimit(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestAdvertise(t *testing.T) {
	none := peerpod.None
	says := func(capacity, allocatable int64, mark string) peerpod.Advertised {
		return peerpod.Advertised{Capacity: capacity, Allocatable: allocatable, Mark: mark}
	}
	cases := map[string]struct {
		says     peerpod.Advertised
		want     int64
		change   *peerpod.Change
		conflict bool
	}{
		"a new node":                        {says: says(none, none, ""), want: 10, change: &peerpod.Change{Mark: "10", Amount: 10}},
		"as it should be":                   {says: says(10, 10, "10"), want: 10},
		"another limit":                     {says: says(10, 10, "10"), want: 4, change: &peerpod.Change{Mark: "4", Amount: 4}},
		"zeroed by a kubelet":               {says: says(0, 0, "10"), want: 10, change: &peerpod.Change{Mark: "10", Amount: 10, Restores: true}},
		"zeroed before it was ours":         {says: says(0, 0, ""), want: 10, change: &peerpod.Change{Mark: "10", Amount: 10}},
		"allocatable is missing":            {says: says(10, none, "10"), want: 10, change: &peerpod.Change{Mark: "10", Amount: 10, Restores: true}},
		"another client's":                  {says: says(5, 5, ""), want: 10, conflict: true},
		"another client's, and right":       {says: says(10, 10, ""), want: 10, change: &peerpod.Change{Mark: "10", Amount: 10}},
		"handed over":                       {says: says(5, 5, "yes"), want: 10, change: &peerpod.Change{Mark: "10", Amount: 10}},
		"withdrawn":                         {says: says(10, 10, "10"), want: 0, change: &peerpod.Change{Amount: none}},
		"withdrawn, but the mark is there":  {says: says(none, none, "10"), want: 0, change: &peerpod.Change{Amount: none}},
		"nothing to withdraw":               {says: says(none, none, ""), want: 0},
		"another client's is not withdrawn": {says: says(5, 5, ""), want: 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			change, conflict := peerpod.Advertise(tc.says, tc.want)
			if diff := cmp.Diff(tc.change, change); diff != "" || conflict != tc.conflict {
				t.Errorf("conflict %v, change (-want +got):\n%s", conflict, diff)
			}
		})
	}
}
