"""The files of the page: which there are, what may be in them, and that an installed package has them."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import agentloop

PACKAGE = Path(agentloop.__file__).parent
PAGE = PACKAGE / "integrations" / "web" / "page"
FILES = sorted(path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*") if path.is_file())
OWN = [name for name in FILES if not name.startswith("vendor/")]
SCRIPTS = [name for name in OWN if name.endswith(".js")]

VENDORED = {
    "vendor/markdown-it.min.js": "d5432491790141da046b1197353705db03264f40b5727f3b4b591f5aba193e30",
    "vendor/purify.min.js": "f69a46022ab1f53e969c8ebbca98172c8995785a9b3be72ea4a12d25b1a1bf67",
}
TESTS = Path(__file__).parent / "page"


@pytest.mark.parametrize("name", VENDORED)
def test_a_vendored_library_is_the_file_of_its_package(name: str) -> None:
    digest = hashlib.sha256((PAGE / name).read_bytes()).hexdigest()
    assert digest == VENDORED[name]
    assert digest in (PAGE / "vendor" / "README.md").read_text()


def test_every_vendored_script_is_known_and_comes_with_its_licence() -> None:
    assert {name for name in FILES if name.startswith("vendor/") and name.endswith(".js")} == set(VENDORED)
    licences = {name.removeprefix("vendor/LICENSE-").removesuffix(".txt") for name in FILES if "LICENSE" in name}
    bundled = {"linkify-it", "mdurl", "uc.micro", "punycode", "entities"}
    assert licences == {"markdown-it", "dompurify"} | bundled


def test_the_page_has_no_inline_script_or_style_and_asks_no_other_host() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?:|//", html.replace("<!doctype html>", ""))
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    assert not re.search(r"@import|url\(", (PAGE / "style.css").read_text())


def test_every_address_in_the_page_is_relative_and_is_a_file() -> None:
    html = (PAGE / "index.html").read_text()
    addresses = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert addresses
    assert [address for address in addresses if address.removeprefix("page/") not in FILES] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_files_of_the_page_and_reads_no_text_as_code(name: str) -> None:
    source = (PAGE / name).read_text()
    for target in re.findall(r'(?:from|import) "([^"]+)"', source):
        assert target.startswith("./")
        assert target.removeprefix("./") in FILES
    assert not re.search(r"\beval\(|new Function|outerHTML|insertAdjacentHTML|document\.write", source)
    assert ("innerHTML" in source) == (name == "sanitizer.js")


def test_every_id_that_the_scripts_ask_for_is_in_the_page() -> None:
    html = (PAGE / "index.html").read_text()
    asked = set(re.findall(r'\$\("([\w-]+)"\)', (PAGE / "main.js").read_text()))
    assert asked - set(re.findall(r'\bid="([\w-]+)"', html)) == {"welcome"}  # it comes and goes


@pytest.mark.parametrize(
    "hook",
    [
        *("composer", "send", "cancel", "conversation-list", "conversation", "new-conversation", "turn", "answer"),
        *("tool-call", "approval", "approve", "deny", "unsettled", "ask-again", "discard", "continue", "withdrawn"),
        *("connection", "usage"),
    ],
)
def test_a_hook_for_tests_is_where_it_was(hook: str) -> None:
    text = "".join((PAGE / name).read_text() for name in ("index.html", *SCRIPTS))
    assert re.search(rf'testid"?[:=] ?"{hook}"', text)


@pytest.mark.system
def test_a_built_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(PACKAGE.parent)], check=True, timeout=50)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert {f"agentloop/integrations/web/page/{name}" for name in FILES} <= packed


@pytest.mark.system
@pytest.mark.parametrize("name", sorted(path.name for path in TESTS.glob("*.test.js")))
def test_the_modules_of_the_page_pass_their_own_tests(name: str, tmp_path: Path) -> None:
    """They run in Node; no browser is needed for what is pure."""
    node = shutil.which("node")
    assert node is not None, "expected Node 20 or newer on the path"
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copytree(PAGE, tmp_path / "page")
    shutil.copytree(TESTS, tmp_path / "tests")
    done = subprocess.run(
        [node, "--test", f"tests/{name}"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout
