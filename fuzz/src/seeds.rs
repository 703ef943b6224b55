//! Writes the good inputs of each target to `corpus/TARGET/`, from where cargo-fuzz begins.

use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in ringmesh::fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, input) in (target.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
