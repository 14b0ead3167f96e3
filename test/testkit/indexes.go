package testkit

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Indexed adds to a fake client the indexes that a manager adds to its cache.
func Indexed(b *fake.ClientBuilder) *fake.ClientBuilder {
	if err := worldcache.AddIndexes(context.Background(), indexer{b}); err != nil {
		panic(err) // an indexer of a fake client never fails
	}
	return b
}

type indexer struct{ *fake.ClientBuilder }

// IndexField implements client.FieldIndexer.
func (i indexer) IndexField(_ context.Context, obj client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(obj, field, values)
	return nil
}
