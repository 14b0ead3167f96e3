package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDropEmpty(t *testing.T) {
	table := Table{Head: []string{"A", "B", "C", "D"}, Rows: [][]string{{"1", "-", "-", "-"}, {"-", "-", "2", "-"}}}
	table.DropEmpty("-")
	if diff := cmp.Diff(Table{Head: []string{"A", "C"}, Rows: [][]string{{"1", "-"}, {"-", "2"}}}, table); diff != "" {
		t.Errorf("the table (-want +got):\n%s", diff)
	}
}
