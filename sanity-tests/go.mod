// The lab (two real Kubernetes clusters on one machine) and the tests that run
// on it. What the lab runs is pinned by the modules below components/.
module storage.liqo.io/sanity-tests

go 1.26.0

require golang.org/x/sys v0.42.0
