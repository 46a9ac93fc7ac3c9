//! The steps of imports of snapshots, and of their undo.

use super::*;

const OLD: UserSnapshot = UserSnapshot::Old {
    deleting: false,
    touched: false,
};
const TOUCHED: UserSnapshot = UserSnapshot::Old {
    deleting: false,
    touched: true,
};

fn begun() -> SnapshotImportFacts {
    SnapshotImportFacts {
        recorded: true,
        begun: true,
        data: data(),
        secured: true,
        leaving: false,
        seen: true,
        user: OLD,
        content: ImportedContent::Sound,
        twin: ImportedTwin::Ready,
        user_content: ImportedContent::Absent,
        obstacles: Vec::new(),
        unmakeable: None,
    }
}

fn data() -> StoredSnapshot {
    StoredSnapshot {
        content: "real".into(),
        driver: "real.test".into(),
        handle: "data".into(),
        second: None,
    }
}

fn refused(facts: &SnapshotImportFacts) -> SnapshotImportRefusal {
    match snapshot_import_step(facts) {
        SnapshotImportStep::Refuse(refusal) => refusal,
        step => panic!("not refused: {step:?}"),
    }
}

#[test]
fn nothing_is_deleted_before_the_data_is_retained_and_the_twin_ready() {
    let facts = SnapshotImportFacts {
        recorded: false,
        begun: false,
        secured: false,
        content: ImportedContent::Absent,
        twin: ImportedTwin::Absent,
        ..begun()
    };
    assert_eq!(snapshot_import_step(&facts), SnapshotImportStep::Mark);
    for (facts, step) in [
        (
            SnapshotImportFacts {
                secured: false,
                ..begun()
            },
            SnapshotImportStep::Mark,
        ),
        (
            SnapshotImportFacts {
                content: ImportedContent::Absent,
                ..begun()
            },
            SnapshotImportStep::MakeContent,
        ),
        (
            SnapshotImportFacts {
                content: ImportedContent::Unretained,
                ..begun()
            },
            SnapshotImportStep::RetainContent,
        ),
        (
            SnapshotImportFacts {
                seen: false,
                ..begun()
            },
            SnapshotImportStep::AwaitSeen,
        ),
        (
            SnapshotImportFacts {
                twin: ImportedTwin::Absent,
                ..begun()
            },
            SnapshotImportStep::MakeTwin,
        ),
        (
            SnapshotImportFacts {
                twin: ImportedTwin::Waiting,
                ..begun()
            },
            SnapshotImportStep::AwaitTwin,
        ),
        (
            SnapshotImportFacts {
                twin: ImportedTwin::Foreign,
                ..begun()
            },
            SnapshotImportStep::Refuse(SnapshotImportRefusal::TwinForeign),
        ),
        (begun(), SnapshotImportStep::DeleteUser),
    ] {
        assert_eq!(snapshot_import_step(&facts), step);
    }
}

#[test]
fn an_import_is_completed_once_the_old_snapshot_is_deleted() {
    let of = |user, user_content| {
        snapshot_import_step(&SnapshotImportFacts {
            user,
            user_content,
            ..begun()
        })
    };
    let dying = UserSnapshot::Old {
        deleting: true,
        touched: false,
    };
    let (none, there) = (ImportedContent::Absent, ImportedContent::Sound);
    assert_eq!(of(dying, none.clone()), SnapshotImportStep::AwaitUserGone);
    assert_eq!(
        of(UserSnapshot::Absent, none),
        SnapshotImportStep::MakeUserContent
    );
    assert_eq!(
        of(UserSnapshot::Absent, there.clone()),
        SnapshotImportStep::MakeUser
    );
    assert_eq!(
        of(UserSnapshot::New { ready: false }, there.clone()),
        SnapshotImportStep::AwaitUser
    );
    assert_eq!(
        of(UserSnapshot::New { ready: true }, there.clone()),
        SnapshotImportStep::Forget
    );
    assert_eq!(
        of(UserSnapshot::Other, there),
        SnapshotImportStep::Refuse(SnapshotImportRefusal::NameTaken("real".into()))
    );
    let leaving = SnapshotImportFacts {
        user: UserSnapshot::New { ready: true },
        leaving: true,
        ..begun()
    };
    assert_eq!(snapshot_import_step(&leaving), SnapshotImportStep::AwaitForgotten);
    let ended = SnapshotImportFacts {
        recorded: false,
        user: UserSnapshot::New { ready: true },
        ..begun()
    };
    assert_eq!(snapshot_import_step(&ended), SnapshotImportStep::Done);
}

#[test]
fn an_import_is_refused_while_its_content_is_being_deleted() {
    let dying = UserSnapshot::Old {
        deleting: true,
        touched: false,
    };
    for user in [OLD, dying, UserSnapshot::Absent, UserSnapshot::Other] {
        let mut facts = SnapshotImportFacts {
            user,
            leaving: true,
            obstacles: vec![SnapshotObstacle::Deleting],
            ..begun()
        };
        assert_eq!(refused(&facts), SnapshotImportRefusal::DataLeaving(data()));
        // The record is deleted with it.
        facts.recorded = false;
        let said = refused(&facts).to_string();
        assert!(
            said.contains("real.test") && said.contains("handle data"),
            "{said}"
        );
        facts.recorded = true;
        facts.secured = false;
        assert_eq!(snapshot_import_step(&facts), SnapshotImportStep::Mark);
    }
    let leaving = SnapshotImportFacts {
        user: UserSnapshot::New { ready: true },
        leaving: true,
        content: ImportedContent::Absent,
        ..begun()
    };
    assert_eq!(refused(&leaving), SnapshotImportRefusal::DataLeaving(data()));
    for user in [OLD, UserSnapshot::Absent, UserSnapshot::New { ready: true }] {
        let facts = SnapshotImportFacts {
            user,
            content: ImportedContent::Deleting("second".into()),
            ..begun()
        };
        let said = refused(&facts).to_string();
        assert!(said.contains("second") && said.contains("handle data"), "{said}");
    }
}

#[test]
fn a_content_not_created_by_the_import_is_refused_by_name() {
    for content in [
        ImportedContent::Foreign("second".into()),
        ImportedContent::Outlived("second".into()),
    ] {
        for user in [OLD, UserSnapshot::Absent, UserSnapshot::New { ready: true }] {
            let facts = SnapshotImportFacts {
                user,
                content: content.clone(),
                ..begun()
            };
            assert!(refused(&facts).to_string().contains("second"));
        }
        let facts = SnapshotImportFacts {
            user: UserSnapshot::Absent,
            user_content: content,
            ..begun()
        };
        assert!(refused(&facts).to_string().contains("second"));
    }
}

#[test]
fn an_undone_import_is_not_resumed() {
    let facts = SnapshotImportFacts {
        recorded: false,
        ..begun()
    };
    assert_eq!(refused(&facts), SnapshotImportRefusal::Undone);
    let anew = SnapshotImportFacts {
        begun: false,
        ..facts
    };
    assert_eq!(snapshot_import_step(&anew), SnapshotImportStep::Mark);
}

#[test]
fn all_obstacles_to_a_snapshot_import_are_reported_at_once() {
    let obstacles = vec![SnapshotObstacle::NotReady, SnapshotObstacle::InUse("copy".into())];
    for recorded in [false, true] {
        let facts = SnapshotImportFacts {
            recorded,
            begun: recorded,
            obstacles: obstacles.clone(),
            ..begun()
        };
        let SnapshotImportStep::Refuse(refusal) = snapshot_import_step(&facts) else {
            panic!("it is begun")
        };
        assert_eq!(refusal.to_string().lines().count(), 2);
    }
}

#[test]
fn an_undo_first_touches_the_snapshot_so_that_no_import_deletes_it() {
    assert_eq!(snapshot_undo_step(&begun()), SnapshotUndoStep::Touch);
    let of = |twin, content, recorded| {
        snapshot_undo_step(&SnapshotImportFacts {
            user: TOUCHED,
            twin,
            content,
            recorded,
            ..begun()
        })
    };
    let (none, sound) = (ImportedContent::Absent, ImportedContent::Sound);
    let leaving = ImportedContent::Deleting("second".into());
    let outlived = ImportedContent::Outlived("second".into());
    let foreign = ImportedContent::Foreign("second".into());
    for recorded in [true, false] {
        assert_eq!(
            of(ImportedTwin::Ready, sound.clone(), recorded),
            SnapshotUndoStep::DeleteTwin
        );
        assert_eq!(
            of(ImportedTwin::Deleting, sound.clone(), recorded),
            SnapshotUndoStep::AwaitTwinGone
        );
        assert_eq!(
            of(ImportedTwin::Absent, outlived.clone(), recorded),
            SnapshotUndoStep::DeleteContent
        );
        assert_eq!(
            of(ImportedTwin::Absent, leaving.clone(), recorded),
            SnapshotUndoStep::AwaitContentGone
        );
        let end = if recorded {
            SnapshotUndoStep::Restore
        } else {
            SnapshotUndoStep::Untouch
        };
        assert_eq!(of(ImportedTwin::Absent, none.clone(), recorded), end);
        assert_eq!(of(ImportedTwin::Absent, foreign.clone(), recorded), end);
        assert_eq!(
            of(ImportedTwin::Ready, foreign.clone(), recorded),
            SnapshotUndoStep::Refuse(SnapshotUndoRefusal::ContentForeign("second".into()))
        );
    }
}

#[test]
fn an_undo_deletes_nothing_before_its_data_is_retained() {
    let touched = SnapshotImportFacts {
        user: TOUCHED,
        ..begun()
    };
    for (facts, step) in [
        (
            SnapshotImportFacts {
                secured: false,
                ..touched.clone()
            },
            SnapshotUndoStep::Mark,
        ),
        (
            SnapshotImportFacts {
                content: ImportedContent::Unretained,
                ..touched.clone()
            },
            SnapshotUndoStep::RetainContent,
        ),
        (
            SnapshotImportFacts {
                seen: false,
                ..touched
            },
            SnapshotUndoStep::AwaitSeen,
        ),
    ] {
        assert_eq!(snapshot_undo_step(&facts), step);
    }
}

#[test]
fn an_undo_deletes_nothing_while_the_original_content_is_being_deleted() {
    let keeps = || SnapshotUndoStep::Refuse(SnapshotUndoRefusal::DataLeaving(Box::new(data())));
    let dying = UserSnapshot::Old {
        deleting: true,
        touched: true,
    };
    for user in [OLD, TOUCHED, dying, UserSnapshot::Absent, UserSnapshot::Other] {
        let leaving = SnapshotImportFacts {
            user,
            leaving: true,
            seen: false,
            ..begun()
        };
        assert_eq!(snapshot_undo_step(&leaving), keeps());
        for (facts, step) in [
            (
                SnapshotImportFacts {
                    secured: false,
                    ..leaving.clone()
                },
                SnapshotUndoStep::Mark,
            ),
            (
                SnapshotImportFacts {
                    content: ImportedContent::Unretained,
                    ..leaving.clone()
                },
                SnapshotUndoStep::RetainContent,
            ),
            // The record is gone, and only the second content shows the import.
            (
                SnapshotImportFacts {
                    recorded: false,
                    begun: false,
                    secured: false,
                    ..leaving.clone()
                },
                keeps(),
            ),
            // No object was created yet, or all are deleted.
            (
                SnapshotImportFacts {
                    content: ImportedContent::Absent,
                    twin: ImportedTwin::Absent,
                    ..leaving
                },
                keeps(),
            ),
        ] {
            assert_eq!(snapshot_undo_step(&facts), step, "{facts:?}");
        }
    }
    let ends = SnapshotImportFacts {
        user: UserSnapshot::New { ready: true },
        leaving: true,
        ..begun()
    };
    assert_eq!(
        snapshot_undo_step(&ends),
        SnapshotUndoStep::Refuse(SnapshotUndoRefusal::TooLate)
    );
}

#[test]
fn an_undo_without_traces_of_an_import_reports_what_is_missing() {
    let of = |user, leaving| {
        snapshot_undo_step(&SnapshotImportFacts {
            recorded: false,
            begun: false,
            leaving,
            user,
            content: ImportedContent::Absent,
            twin: ImportedTwin::Absent,
            ..begun()
        })
    };
    assert_eq!(of(TOUCHED, true), SnapshotUndoStep::Untouch);
    assert_eq!(
        of(OLD, true),
        SnapshotUndoStep::Refuse(SnapshotUndoRefusal::NotAsBefore("real".into()))
    );
    assert_eq!(of(OLD, false), SnapshotUndoStep::Done);
}

#[test]
fn a_refused_object_rolls_an_import_back_while_that_is_possible() {
    let of = |user, leaving| {
        snapshot_import_step(&SnapshotImportFacts {
            user,
            leaving,
            content: ImportedContent::Absent,
            unmakeable: Some("no".into()),
            ..begun()
        })
    };
    assert_eq!(of(OLD, false), SnapshotImportStep::RollBack("no".into()));
    assert_eq!(
        of(UserSnapshot::Absent, false),
        SnapshotImportStep::Refuse(SnapshotImportRefusal::NotAccepted {
            content: "real".into(),
            why: "no".into()
        })
    );
    assert_eq!(
        of(OLD, true),
        SnapshotImportStep::Refuse(SnapshotImportRefusal::DataLeaving(data()))
    );
}

#[test]
fn objects_created_after_an_undo_are_removed_by_the_next_undo() {
    for (twin, content) in [
        (ImportedTwin::Absent, ImportedContent::Sound),
        (ImportedTwin::Ready, ImportedContent::Sound),
    ] {
        let facts = SnapshotImportFacts {
            recorded: false,
            secured: false,
            twin,
            content,
            ..begun()
        };
        assert_eq!(snapshot_undo_step(&facts), SnapshotUndoStep::Touch);
    }
}

#[test]
fn an_undo_is_refused_after_the_old_snapshot_was_deleted() {
    let too_late = SnapshotUndoStep::Refuse(SnapshotUndoRefusal::TooLate);
    for user in [
        UserSnapshot::Absent,
        UserSnapshot::New { ready: true },
        UserSnapshot::Old {
            deleting: true,
            touched: true,
        },
    ] {
        assert_eq!(
            snapshot_undo_step(&SnapshotImportFacts { user, ..begun() }),
            too_late
        );
    }
    let ended = SnapshotImportFacts {
        recorded: false,
        user: UserSnapshot::New { ready: true },
        ..begun()
    };
    assert_eq!(
        snapshot_undo_step(&ended),
        SnapshotUndoStep::Refuse(SnapshotUndoRefusal::NotRecorded)
    );
    let never = SnapshotImportFacts {
        recorded: false,
        content: ImportedContent::Absent,
        twin: ImportedTwin::Absent,
        ..begun()
    };
    assert_eq!(snapshot_undo_step(&never), SnapshotUndoStep::Done);
}
