//! The packages to publish: `cargo package` succeeds, and each package has the files and fields that it needs.
//!
//! A crate is published unless its manifest contains `publish = false`. The packages are not compiled here, since that
//! takes minutes; the forge does it (`.github/workflows/ci.yml`).

use std::process::Stdio;

use serde_json::Value;

use crate::{Result, cargo, run};

pub(crate) fn check() -> Result {
    let crates = published()?;
    let selection: Vec<&str> = crates.iter().flat_map(|it| ["--package", name(it)]).collect();
    // Packaging resolves the dependencies again. With all of them downloaded, that works without a network.
    run(cargo().args(["fetch", "--locked", "--quiet"]))?;
    let package = ["package", "--no-verify", "--allow-dirty", "--offline", "--quiet"];
    run(cargo().args(package).args(&selection))?;
    let mut problems = repeated_descriptions(&crates);
    for it in &crates {
        let files = output(&["package", "--list", "--allow-dirty", "--offline", "--package", name(it)])?;
        problems.extend(missing_fields(it));
        problems.extend(file_problems(name(it), &files));
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("packages:\n  {}", problems.join("\n  "))) }
}

/// The crates of the workspace that are published, as `cargo metadata` describes them.
fn published() -> Result<Vec<Value>> {
    let text = output(&["metadata", "--format-version=1", "--no-deps", "--locked"])?;
    let mut metadata: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let Value::Array(packages) = metadata["packages"].take() else {
        return Err("cargo metadata lists no packages".to_owned());
    };
    // `publish` is null if the manifest does not restrict it, and an empty list for `publish = false`.
    Ok(packages.into_iter().filter(|package| package["publish"].is_null()).collect())
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// Fields that a registry requires or shows.
fn missing_fields(package: &Value) -> Vec<String> {
    let is_missing = |field: &&str| match &package[*field] {
        Value::Array(values) => values.is_empty(),
        value => value.is_null(),
    };
    let fields = ["description", "license", "repository", "readme", "keywords", "categories"];
    fields
        .into_iter()
        .filter(is_missing)
        .map(|field| format!("{}: Cargo.toml has no {field}", name(package)))
        .collect()
}

fn repeated_descriptions(packages: &[Value]) -> Vec<String> {
    let is_repeated = |(index, package): &(usize, &Value)| {
        packages[..*index].iter().any(|earlier| earlier["description"] == package["description"])
    };
    let repeated = packages.iter().enumerate().filter(is_repeated);
    repeated
        .map(|(_, package)| format!("{}: another crate has the same description", name(package)))
        .collect()
}

/// Checks the list of a package's files, one per line.
fn file_problems(name: &str, files: &str) -> Vec<String> {
    let required = ["LICENSE", "README.md", "Cargo.lock"];
    let missing = required.iter().filter(|file| !files.lines().any(|line| line == **file));
    let is_for_tests = |file: &&str| ["tests/", "benches/"].iter().any(|folder| file.starts_with(folder));
    let missing = missing.map(|file| format!("{name}: the package has no {file}"));
    missing
        .chain(files.lines().filter(is_for_tests).map(|file| format!("{name}: the package contains {file}")))
        .collect()
}

/// What cargo prints to standard output.
fn output(words: &[&str]) -> Result<String> {
    let line = format!("cargo {}", words.join(" "));
    let output = cargo().args(words).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{line}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{line}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_package_needs_its_licence_and_contains_no_tests() {
        let complete = "Cargo.lock\nCargo.toml\nLICENSE\nREADME.md\nsrc/lib.rs\nsrc/tests/it.rs\n";
        assert_eq!(file_problems("a", complete), [""; 0]);
        let problems = file_problems("a", "Cargo.lock\nREADME.md\ndocs/LICENSE\ntests/it/main.rs\n");
        assert_eq!(problems, ["a: the package has no LICENSE", "a: the package contains tests/it/main.rs"]);
    }

    #[test]
    fn fields_that_are_null_or_empty_are_missing() {
        let package = json!({
            "name": "a", "description": "jobs", "license": "MIT", "repository": null, "readme": "README.md",
            "keywords": [], "categories": ["database"],
        });
        let problems = missing_fields(&package);
        assert_eq!(problems, ["a: Cargo.toml has no repository", "a: Cargo.toml has no keywords"]);
    }

    #[test]
    fn each_crate_has_its_own_description() {
        let package = |name: &str, description: &str| json!({ "name": name, "description": description });
        let packages = [package("a", "jobs"), package("b", "tasks"), package("c", "jobs")];
        assert_eq!(repeated_descriptions(&packages), ["c: another crate has the same description"]);
    }
}
