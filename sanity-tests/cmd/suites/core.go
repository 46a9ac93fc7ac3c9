package main

// coreTest is a lab test that every `make test` runs.
type coreTest struct {
	suite, test string
	// args are flags of the test program that shorten the test.
	args string
	// inSlices: the flags leave out what no seed brings back, so that a slice has the complete test.
	inSlices bool
}

// core has a test of each capability at home and in a remote cluster, and the three with a database. A capability that
// several tests cover has the one that takes the least time. A unit test fails when they take more than coreBudget.
var core = []coreTest{
	{suite: "driver", test: "TestDeletingAClaimDeletesEverything"},
	{suite: "driver", test: "TestRetainKeepsTheData"},
	{suite: "driver", test: "TestTwinDeletedByAUser"},
	{suite: "driver", test: "TestBlockVolumes"},
	{suite: "driver", test: "TestReadWriteManyAcrossNodes"},
	{suite: "driver", test: "TestRetainedSnapshotIsKeptAndCanBeDeleted"},
	// From a snapshot and as a clone.
	{suite: "driver", test: "TestDatabaseIsCopiedWhileItWrites"},
	{suite: "driver", test: "TestSmallerSizeSucceedsAfterAFailedExpansion"},
	{suite: "driver", test: "TestAttributesAreChangedAndChangedBack"},
	{suite: "driver", test: "TestImportReleaseImport"},

	{suite: "remote", test: "TestRemotePodUsesTheTwinAndReturnsToItsData"},
	{suite: "remote", test: "TestRetainKeepsRemoteData"},
	{suite: "remote", test: "TestRemoteSnapshotIsRestoredInItsCluster"},
	{suite: "remote", test: "TestRemoteVolumeGrowsThreeTimes"},
	{suite: "remote", test: "TestDatabaseMovesThereAndBackWhileItWrites", args: "-moves=1", inSlices: true},

	{suite: "offload", test: "TestPodRunsInTheClusterOfItsData"},
	{suite: "offload", test: "TestStreamsReachThePods"},
	{suite: "offload", test: "TestNamespaceIsOffloadedWithEachStrategy"},
	{suite: "offload", test: "TestRemoteIdentityIsRestricted"},
	{suite: "offload", test: "TestUnoffloadingReschedulesPodsAtHome"},
	{suite: "offload", test: "TestDatabaseIsReplicatedAcrossTwoClusters", args: "-restarts=1", inSlices: true},
	{suite: "offload", test: "TestPodsRunAtMostOnceDespiteFaults", args: "-trials=6"},

	// Together these pass twenty crash points, which change with the seed.
	{suite: "faults", test: "TestCrashAtEveryPoint/a_volume_that_is_attached", args: "-short-leg=a_volume_that_is_attached"},
	{suite: "faults", test: "TestCrashAtEveryPoint/a_volume_in_another_cluster", args: "-short-leg=a_volume_in_another_cluster"},
	{suite: "faults", test: "TestMovesWithCrashAtEveryPoint/a_move_from_its_cut-over_on", args: "-short-leg=a_move_from_its_cut-over_on"},
	{suite: "faults", test: "TestVolumesSurviveRandomKills", args: "-cycles=6"},

	{suite: "csi-sanity", test: "TestDriver/directories"},
}
