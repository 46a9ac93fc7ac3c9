//! Text that is not a kubeconfig, or that another parser would read differently.

use proptest::prelude::*;

use super::*;

#[test]
fn duplicate_entries_and_documents_are_refused() {
    for list in ["contexts", "clusters", "users"] {
        let mut file = plain();
        let again = file[list][1].clone();
        let name = again["name"].as_str().unwrap().to_owned();
        file[list].as_array_mut().unwrap().push(again);
        let said = refusal(&file, Allowed::default());
        assert!(
            said.starts_with(&format!("{list}[{name}] exists twice")),
            "{said}"
        );
    }
    let one = plain().to_string();
    for text in [
        format!("{one}\n---\n{one}"),
        one.replacen("\"token\"", "\"token\": \"first\", \"token\"", 1),
        one.replacen("\"token\"", "\"odd\": \"first\", \"odd\"", 1),
        one.replacen("\"token\"", "<<: { \"tokenFile\": \"/f\" }, \"token\"", 1),
        one.replacen('{', "{ \"users\": [], ", 1),
    ] {
        let refused = vet(text.as_bytes(), Allowed::default()).unwrap_err();
        assert!(
            matches!(refused, KubeconfigRefused::NotYaml { .. }),
            "{refused}\n{text}"
        );
    }
}

#[test]
fn text_that_is_no_kubeconfig_is_refused_without_quoting_it() {
    let bomb = (1..40).fold(String::from("l0: &l0 [x, x]\n"), |text, n| {
        format!("{text}l{n}: &l{n} [*l{0}, *l{0}, *l{0}, *l{0}]\n", n - 1)
    });
    for text in [
        String::new(),
        SECRET.to_owned(),
        format!("- {SECRET}"),
        format!("users: {SECRET}"),
        format!("users: [{{ name: [{SECRET}] }}]"),
        format!("a: b: {SECRET}"),
        format!("{{ users: {SECRET}"),
        format!("clusters:\n- name: c\n  cluster:\n    insecure-skip-tls-verify: {SECRET}\n"),
        format!("token: !!binary {SECRET}\n\tx"),
        "[".repeat(LONGEST),
        "{a: ".repeat(LONGEST / 4),
        "- ".repeat(LONGEST / 2),
        bomb,
    ] {
        let refused = vet(text.as_bytes(), Allowed::default()).unwrap_err();
        let said = format!("{refused} {refused:?}");
        assert!(!said.contains(SECRET) && said.len() < 300, "{said}");
    }
    assert_eq!(
        vet(b"users: \xff", Allowed::default()).unwrap_err(),
        KubeconfigRefused::NotText
    );
    assert_eq!(
        vet(&vec![b' '; LONGEST + 1], Allowed::default()).unwrap_err(),
        KubeconfigRefused::TooLarge
    );
    let odd = vet(b"a: b\nusers: 5\n", Allowed::default()).unwrap_err();
    assert_eq!(
        odd.to_string(),
        "not a kubeconfig (one YAML document without repeated or merged keys): see line 2"
    );
}

#[test]
fn yaml_tags_and_variables_are_not_expanded() {
    for text in [
        "!include /etc/hostname",
        "!include_str /etc/hostname",
        "${HOME}",
        "${file:/etc/hostname}",
    ] {
        let yaml = plain().to_string().replace(&format!("\"{SECRET}\""), text);
        if let Ok(kept) = vet(yaml.as_bytes(), Allowed::default()) {
            let token = kept.auth_infos[0].auth_info.clone().unwrap().token.unwrap();
            assert!(text.ends_with(token.expose_secret()), "{text} was obeyed");
        }
    }
}

proptest! {
    #[test]
    fn no_text_makes_vetting_panic(text in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = vet(&text, PROXIED);
    }

    #[test]
    fn no_yaml_makes_vetting_panic(text in "[\\[\\]{}:,&*!|>'\"\\-?#%@` \n\ta-c<]{0,200}") {
        let _ = vet(text.as_bytes(), PROXIED);
    }
}
