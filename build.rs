//! For the crate `wire`: compiles the interfaces in `proto/` without protoc, and takes the derived
//! `Debug` away from every message that carries a secret: those get one that
//! names the field and hides its values, so that no log line can leak them.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

/// As seen from the folder of the crate, where Cargo runs this.
const FOLDER: &str = "../../proto";
const PROTOS: [&str; 2] = ["csi.proto", "registration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut compiler = protox::Compiler::new([FOLDER])?;
    compiler.include_imports(true).open_files(PROTOS)?;

    let secretive = messages_with_secrets(&compiler);
    let mut prost = tonic_prost_build::configure();
    for (message, _) in &secretive {
        prost = prost.skip_debug([format!(".{}", message.full_name())]);
    }
    prost
        .generate_default_stubs(true)
        .compile_fds(compiler.file_descriptor_set())?;

    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("redacted.rs"), redacting_debug_impls(&secretive)?)?;
    Ok(())
}

type Secretive = Vec<(protox::prost_reflect::MessageDescriptor, Vec<String>)>;

/// The messages with at least one `csi_secret` field, and the names of those fields.
fn messages_with_secrets(compiler: &protox::Compiler) -> Secretive {
    let pool = compiler.descriptor_pool();
    let Some(secret) = pool.get_extension_by_name("csi.v1.csi_secret") else {
        return Vec::new();
    };
    pool.all_messages()
        .filter_map(|message| {
            let fields: Vec<String> = message
                .fields()
                .filter(|field| field.options().get_extension(&secret).as_bool() == Some(true))
                .map(|field| field.name().to_owned())
                .collect();
            (!fields.is_empty()).then_some((message, fields))
        })
        .collect()
}

fn redacting_debug_impls(secretive: &Secretive) -> Result<String, std::fmt::Error> {
    let mut code = String::new();
    for (message, secrets) in secretive {
        let name = message.name();
        write!(
            code,
            "impl ::core::fmt::Debug for {name} {{\n\
             fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{\n\
             f.debug_struct(\"{name}\")"
        )?;
        for field in message.fields() {
            let field = field.name();
            if secrets.iter().any(|secret| secret == field) {
                write!(code, ".field(\"{field}\", &super::Redacted(self.{field}.len()))")?;
            } else {
                write!(code, ".field(\"{field}\", &self.{field})")?;
            }
        }
        code.push_str(".finish()\n}\n}\n");
    }
    Ok(code)
}
