package nodeconformance

// skipped are specs that are run in neither cluster: they measure for half an hour how kubelets
// put off the start of a container that ends, and those of the lab do it for a second at most.
const skipped = `back-off`

// expected are the specs that pass in the remote cluster and not through the virtual node, with the
// reason. docs/offloading-reference.md has them for readers.
var expected = map[string]string{}
