//! Parameters of real classes that their driver expands with metadata of the claim, such as
//! `${.PVC.namespace}` in the directory of a volume. The claim that such a driver sees is the twin: at home
//! all twins share one namespace, and only allowed annotations are carried to a twin. A directory per
//! namespace, or per annotation, would become one directory for the volumes of all users.
//!
//! Known forms: nfs-subdir-external-provisioner `${.PVC.annotations.x}`, csi-driver-nfs
//! and -smb `${pvc.metadata.namespace}`, csi-provisioner `${pvc.annotations['x']}`,
//! local-path-provisioner `{{ .PVC.Namespace }}`.

use std::collections::BTreeMap;

/// Where a template begins and ends.
const FORMS: [(&str, &str); 2] = [("${", "}"), ("{{", "}}")];

/// The metadata of the claim that a parameter refers to, and that the twin does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expands {
    /// The namespace of the claim.
    Namespace,
    /// An annotation of the claim.
    Annotation,
}

impl Expands {
    /// What the variables of a value refer to; `Annotation` if it has variables of both kinds.
    fn of(value: &str) -> Option<Self> {
        FORMS
            .into_iter()
            .flat_map(|(begin, end)| {
                let parts = value.split(begin).skip(1);
                parts.map(move |part| part.split(end).next().unwrap_or(part))
            })
            .filter_map(|template| {
                let template = template.to_lowercase();
                let names = |word: &str| template.contains("pvc") && template.contains(word);
                if names("annotations") {
                    return Some(Self::Annotation);
                }
                names("namespace").then_some(Self::Namespace)
            })
            .max()
    }
}

/// The first parameter of a class that is expanded with this.
#[must_use]
pub fn expanding(parameters: &BTreeMap<String, String>, with: Expands) -> Option<&str> {
    let found = parameters
        .iter()
        .find(|(_, value)| Expands::of(value) == Some(with));
    found.map(|(parameter, _)| parameter.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_with_namespace_or_annotations_are_recognised() {
        for namespace in [
            "${.PVC.namespace}/${.PVC.name}",
            "${pvc.namespace}",
            "sub/${pvc.metadata.namespace}/${pvc.metadata.name}",
            "{{ .PVC.Namespace }}/{{ .PVC.Name }}",
            "{{.PVC.ObjectMeta.Namespace}}",
        ] {
            assert_eq!(Expands::of(namespace), Some(Expands::Namespace), "{namespace}");
        }
        for annotation in [
            "${.PVC.annotations.nfs.io/storage-path}",
            "${.PVC.namespace}/${.PVC.annotations.x}",
            "${pvc.annotations['team.example.com/key']}",
            "${pvc.annotations['my-namespace']}",
            "{{ .PVC.Annotations.x }}",
        ] {
            assert_eq!(Expands::of(annotation), Some(Expands::Annotation), "{annotation}");
        }
        for neither in [
            "",
            "namespace",
            "pvc-namespace",
            "${pvc.name}",
            "${.PVC.name}-${pv.name}",
            "${.PVC.labels.app}",
            "${pv.name",
            "kube-system",
        ] {
            assert_eq!(Expands::of(neither), None, "{neither}");
        }
    }
}
