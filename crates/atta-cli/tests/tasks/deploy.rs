//! The files in `deploy/`: supervisors wait longer for the end of a worker than the worker may take.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{node, node_folder};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

/// The rest of the line that begins with `start`.
fn after<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("{start} in {text}"))
}

/// How long a worker with these variables may take to stop.
fn longest_stop(variables: &[(String, String)]) -> Duration {
    let output = Command::new(env!("CARGO_BIN_EXE_atta"))
        .args(["config", "--json"])
        .current_dir(std::env::temp_dir())
        .envs(variables.iter().cloned())
        .output()
        .unwrap();
    let config: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seconds = |key: &str| -> u64 {
        let value = &config[key]["value"];
        let value = value.as_str().and_then(|text| text.strip_suffix('s')?.parse().ok());
        value.unwrap_or_else(|| panic!("{key} is no number of seconds: {config}"))
    };
    let periods = ["shutdown_grace_period", "shutdown_abort_period", "kill_after"];
    Duration::from_secs(periods.into_iter().map(seconds).sum())
}

#[test]
fn systemd_waits_for_the_worker_and_lets_it_end_its_tasks() {
    let unit = text("atta.service");
    let wait: u64 = after(&unit, "TimeoutStopSec=").parse().unwrap();
    assert!(Duration::from_secs(wait) > longest_stop(&[]) + Duration::from_secs(5));
    assert_eq!(after(&unit, "KillMode="), "mixed");
    assert_eq!(after(&unit, "DynamicUser="), "yes");
    assert!(after(&unit, "ExecStart=").starts_with("/usr/local/bin/atta "));
}

#[test]
fn kubernetes_waits_for_the_worker_and_gives_it_no_privileges() {
    let script = "const yaml = require('js-yaml'); const fs = require('node:fs');
        process.stdout.write(JSON.stringify(yaml.load(fs.readFileSync(process.argv[1], 'utf8'))));";
    let output = Command::new(node())
        .args(["-e", script])
        .arg(path("kubernetes.yaml").canonicalize().unwrap())
        .current_dir(node_folder())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let deployment: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let variables: Vec<(String, String)> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| Some((entry["name"].as_str()?.to_owned(), entry["value"].as_str()?.to_owned())))
        .collect();
    assert!(variables.iter().any(|(name, _)| name == "ATTA_SHUTDOWN_GRACE_PERIOD"), "{variables:?}");
    let wait = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
    assert!(wait > longest_stop(&variables) + Duration::from_secs(5));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container.get("command"), None, "the image's own entry point passes signals on");
}

#[test]
fn the_image_runs_the_worker_without_a_shell_and_without_privileges() {
    let dockerfile = text("Dockerfile");
    let entry: Vec<String> = serde_json::from_str(after(&dockerfile, "ENTRYPOINT ")).unwrap();
    assert_eq!(entry, ["tini", "--", "atta"]);
    assert!(after(&dockerfile, "USER ").parse::<u32>().unwrap() > 0);
    assert_eq!(after(&dockerfile, "STOPSIGNAL "), "SIGTERM");
    // The minimal package lacks half of what the host of Python tasks imports.
    assert!(dockerfile.contains(" python3 "));
}
