// Package permissions tests, once the packages test/e2e, test/resources, test/serving and test/situations have run, that they have used every permission of
// config/rbac. One of them alone uses a part.
package permissions

import (
	"testing"

	"github.com/stowage-dev/stowage/test/suite"
)

func TestEveryPermissionIsUsed(t *testing.T) {
	unused, err := suite.Unused()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range unused {
		t.Errorf("no test uses this permission of ServiceAccount %s", p)
	}
}
