//! `atta init`: writes example tasks and a crontab, to be edited.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::args::Init;
use crate::output::{Failure, print};

struct Template {
    path: &'static str,
    text: &'static str,
    mode: u32,
}

const TEMPLATES: [Template; 4] = [
    Template { path: "tasks/hello.js", text: include_str!("init/hello.js"), mode: 0o666 },
    Template { path: "tasks/count_words.py", text: include_str!("init/count_words.py"), mode: 0o666 },
    // Executables need the permission to be executed.
    Template { path: "tasks/disk_space.sh", text: include_str!("init/disk_space.sh"), mode: 0o777 },
    Template { path: "crontab", text: include_str!("init/crontab"), mode: 0o666 },
];

pub(crate) fn run(args: &Init) -> Result<(), Failure> {
    let mut report = String::new();
    for template in &TEMPLATES {
        let said = if write(&args.folder, template)? { "wrote" } else { "kept " };
        report.push_str(&format!("{said}  {}\n", args.folder.join(template.path).display()));
    }
    let change_folder = match args.folder.as_path() {
        here if here == Path::new(".") => String::new(),
        there => format!("  cd {}\n", there.display()),
    };
    report.push_str(&format!(
        "\nNext:\n\n{change_folder}\
         \x20 atta dev                              # a worker, with its own PostgreSQL\n\
         \x20 atta add hello '{{\"name\": \"Bobby\"}}'    # in another terminal, in this folder\n\n\
         A task is a file in tasks/, in any language. The worker reloads it when you\nsave it.\n"
    ));
    print(&report);
    Ok(())
}

/// Writes the file if it does not exist; returns whether it did.
fn write(folder: &Path, template: &Template) -> Result<bool, Failure> {
    let path = folder.join(template.path);
    let failed = |error| Failure::new(format!("can't write {}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    // The user's umask removes bits from the mode.
    match File::options().write(true).create_new(true).mode(template.mode).open(&path) {
        Ok(mut file) => file.write_all(template.text.as_bytes()).map(|()| true).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(error)),
    }
}
