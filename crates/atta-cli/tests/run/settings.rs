//! `atta.toml`, the variables, and `atta config`.

use serde_json::Value;

use crate::{Folder, run};

fn config(folder: &Folder, words: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut command = folder.command(&[&["config", "--json"], words].concat());
    let run = run(command.envs(variables.iter().copied()));
    assert_eq!(run.code, 0, "{}", run.err);
    serde_json::from_str(&run.out).expect("it prints JSON")
}

fn shown(config: &Value, key: &str) -> (Value, String) {
    (config[key]["value"].clone(), config[key]["from"].as_str().expect("it has an origin").to_owned())
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_the_defaults() {
    let folder = Folder::new();
    let none = config(&folder, &[], &[]);
    assert_eq!(shown(&none, "jobs"), (1.into(), "default".into()));
    assert_eq!(shown(&none, "poll_interval"), ("2s".into(), "default".into()));
    assert_eq!(shown(&none, "schema"), ("graphile_worker".into(), "default".into()));

    folder.write(
        "atta.toml",
        "jobs = 2\nschema = 'from_file'\npoll_interval = 700\n[time_limits]\nslow = '4h'\n",
    );
    let file = config(&folder, &[], &[]);
    assert_eq!(shown(&file, "jobs"), (2.into(), "atta.toml".into()));
    assert_eq!(shown(&file, "schema"), ("from_file".into(), "atta.toml".into()));
    assert_eq!(shown(&file, "poll_interval"), ("700ms".into(), "atta.toml".into()));
    assert_eq!(file["time_limits"]["value"]["slow"], "4h");

    let variables = [("ATTA_JOBS", "3"), ("GRAPHILE_WORKER_SCHEMA", "from_variable"), ("RUST_LOG", "debug")];
    let environment = config(&folder, &[], &variables);
    assert_eq!(shown(&environment, "jobs"), (3.into(), "$ATTA_JOBS".into()));
    assert_eq!(shown(&environment, "schema"), ("from_variable".into(), "$GRAPHILE_WORKER_SCHEMA".into()));
    assert_eq!(shown(&environment, "log"), ("debug".into(), "$RUST_LOG".into()));
    let graphile = config(&folder, &[], &[("GRAPHILE_LOGGER_DEBUG", "1")]);
    assert_eq!(shown(&graphile, "log"), ("debug".into(), "$GRAPHILE_LOGGER_DEBUG".into()));
    let both = config(&folder, &[], &[("GRAPHILE_LOGGER_DEBUG", "1"), ("ATTA_LOG", "warn")]);
    assert_eq!(shown(&both, "log"), ("warn".into(), "$ATTA_LOG".into()));

    let flags = config(&folder, &["-j", "4", "-s", "from_flag", "--poll-interval", "100"], &variables);
    assert_eq!(shown(&flags, "jobs"), (4.into(), "--jobs".into()));
    assert_eq!(shown(&flags, "schema"), ("from_flag".into(), "--schema".into()));
    assert_eq!(shown(&flags, "poll_interval"), ("100ms".into(), "--poll-interval".into()));
}

#[test]
fn the_connection_is_shown_with_its_origin_and_without_its_password() {
    let folder = Folder::new();
    folder.write("atta.toml", "connection = 'postgres://me:s3cret@in.file/app'\n");
    let place = |host: &str| format!("postgres://me:***@{host}/app");
    let file = config(&folder, &[], &[]);
    assert_eq!(shown(&file, "connection"), (place("in.file").into(), "atta.toml".into()));
    let variable = [("DATABASE_URL", "postgres://me:s3cret@in.variable/app")];
    let environment = config(&folder, &[], &variable);
    assert_eq!(shown(&environment, "connection"), (place("in.variable").into(), "$DATABASE_URL".into()));
    let flag = config(&folder, &["-c", "postgres://me:s3cret@in.flag/app"], &variable);
    assert_eq!(shown(&flag, "connection"), (place("in.flag").into(), "--connection".into()));
    let text = folder.atta(&["config"]).out;
    assert!(text.contains("in.file") && !text.contains("s3cret"), "{text}");
}

#[test]
fn a_file_elsewhere_has_paths_of_its_own() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path.join("etc")).unwrap();
    folder.write("etc/worker.toml", "tasks = 'my_tasks'\n");
    let elsewhere = config(&folder, &["-C", "etc/worker.toml"], &[]);
    assert_eq!(shown(&elsewhere, "tasks"), ("etc/my_tasks".into(), "etc/worker.toml".into()));
}

#[test]
fn errors_in_the_file_are_reported_with_their_line() {
    let folder = Folder::new();
    for (text, said) in [
        ("jobs = 2\njbos = 3\n", "line 2"),
        ("jobs = 2\njbos = 3\n", "unknown field `jbos`"),
        ("claims = 'firm'\n", "line 1"),
        ("poll_interval = 'soon'\n", "a duration"),
        ("jobs = \n", "line 1"),
    ] {
        folder.write("atta.toml", text);
        let run = folder.atta(&["config"]);
        assert_eq!(run.code, 2, "{text}");
        assert!(
            run.err.contains("the settings file atta.toml is invalid") && run.err.contains(said),
            "{}",
            run.err
        );
    }
    for text in [
        "connection = 'postgres://me:s3cret@h/db\n",
        "jobs = 1\nconnection = \"postgres://me:s3cret@h/db\" 5\n",
    ] {
        folder.write("atta.toml", text);
        let run = folder.atta(&["config"]);
        assert!(run.code == 2 && run.err.contains("line ") && !run.err.contains("s3cret"), "{}", run.err);
    }
    let code = folder.atta(&["config", "-C", "graphile.config.js"]);
    assert!(code.err.contains("can't read the settings file graphile.config.js"), "{}", code.err);
    folder.write("graphile.config.js", "module.exports = {};");
    let code = folder.atta(&["config", "-C", "graphile.config.js"]);
    assert!(code.err.contains("TOML, not code"), "{}", code.err);
    folder.write("atta.toml", "");
    let wrong = run(folder.command(&["config"]).env("ATTA_JOBS", "many"));
    assert!(
        wrong.code == 2 && wrong.err.contains("the variable ATTA_JOBS has an invalid value (\"many\")"),
        "{}",
        wrong.err
    );
}
