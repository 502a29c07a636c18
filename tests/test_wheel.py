import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_builds_and_what_it_installs_runs(tmp_path: Path) -> None:
    wheel = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(wheel, check=True)
    (built,) = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        str(built),
    ]
    subprocess.run(install, check=True)
    code = f"import sys; sys.path.insert(0, {str(target)!r}); "
    code += "import fedtailor; print(fedtailor.__file__)\n"
    code += "from fedtailor.reporting.html import render; from fedtailor.cli import main; main()"
    words = ["run", "rounds=2", "data.clients=12", "cohort=3", f"out={tmp_path / 'out'}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(target))
    assert (tmp_path / "out" / "report.html").exists()
    listed = subprocess.run(
        [sys.executable, "-c", code, "study"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    for file in (ROOT / "studies").glob("*/study.toml"):
        assert f"\n{file.parent.name} " in listed.stdout
        shipped = target / "fedtailor" / "_studies" / file.parent.name
        assert {path.name for path in file.parent.glob("*.json")} == {
            path.name for path in shipped.glob("*.json")
        }
