"""Fixtures for all tests: the real encoder, tiny runs, streams, Triton's interpreter and compiler."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
import torch
from torch import Tensor

try:
    import triton  # before polytask, which imports it only on machines with a GPU
except ImportError:
    triton = None

from polytask import Finished, train
from polytask.kernels.triton_support import TRITON
from polytask.pretrained.find import find_encoder
from polytask.stream import Layout, Stream
from polytask.types import UserError

MakeStream = Callable[..., Stream]


# On tensors as small as these, and on cores that are shared, threads that wait for each other take most of the time.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real encoder. Only a machine that says it is offline may do without."""
    try:
        return find_encoder("minilm")
    except UserError as error:
        if os.environ.get("HF_HUB_OFFLINE"):
            pytest.skip(str(error))
        raise


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def patch_language_once() -> None:
    """Makes Triton's interpreter twice as fast: it replaces every function of its language at each call of a kernel.

    In a process that only interprets kernels, replacing them once for each module with kernels is enough.
    """
    from triton.runtime import interpreter  # noqa: PLC0415

    patch, scopes = interpreter._patch_lang, {}

    def patch_once(function: Any) -> Any:
        module = function.__globals__["__name__"]
        if module not in scopes:
            patch(function)
            scopes[module] = SimpleNamespace(restore=lambda: None)
        return scopes[module]

    interpreter._patch_lang = patch_once


if TRITON and INTERPRETED:
    patch_language_once()


@pytest.fixture
def under_interpreter() -> Callable[..., None]:
    """Runs a file's tests in another process that interprets Triton's kernels on the CPU.

    Triton chooses its interpreter when it is imported.
    """
    if not TRITON or INTERPRETED:
        pytest.skip("needs Triton, and not to be in its interpreter already")

    def run(file: str, *options: str) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, file]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.fixture
def ptx() -> Callable[..., str]:
    """Compiles a kernel for an H200, without one, and makes what would launch it: the code, given what the kernel takes
    (float32 addresses where nothing is said), its constants and its warps."""
    if not TRITON or INTERPRETED:
        pytest.skip("needs Triton's compiler")
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, make_backend  # noqa: PLC0415
    from triton.runtime.jit import create_function_from_signature  # noqa: PLC0415

    def compiled(kernel: Any, kinds: dict[str, str], num_warps: int, **constants: Any) -> str:
        target = GPUTarget("cuda", 90, 32)
        # A parameter of a name that Triton has a use for itself ("options") would fail only here.
        create_function_from_signature(kernel.signature, kernel.params, make_backend(target))
        names = kernel.arg_names
        takes = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in names}
        aligned = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(names) if takes[name].startswith("*")}
        source = ASTSource(kernel, takes, {(names.index(n),): v for n, v in constants.items()}, aligned)
        return str(triton.compile(source, target=target, options={"num_warps": num_warps}).asm["ptx"])

    return compiled


TINY = {
    "encoder": "{layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}",
    "train.steps_per_epoch": "10",
    "train.epochs": "2",
    "optimizer.lr": "3e-3",
    "train.precision": "float32",  # whatever this machine multiplies
    "train.device": "cpu",  # also on a machine with a GPU: tests that are about GPUs choose one themselves
}
QUICKSTART = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"


@pytest.fixture(scope="session")
def tiny_settings() -> list[str]:
    """Settings with which a recipe takes seconds: an untrained encoder and twenty steps."""
    return [f"{field}={value}" for field, value in TINY.items()]


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """The finished run of a tiny quick start. Tests must not change it."""
    return train(QUICKSTART, tmp_path_factory.mktemp("tiny") / "run", tiny_settings)


@pytest.fixture(scope="session")
def make_stream() -> MakeStream:
    """make_stream(sequences, segments=None): a stream of one task with these token ids, special tokens or not."""

    def make(sequences: Sequence[Tensor], segments: Sequence[Tensor] | None = None) -> Stream:
        lengths = tuple(len(ids) for ids in sequences)
        tokens = sum(lengths)
        return Stream(
            torch.cat(list(sequences)),
            torch.cat([torch.arange(length) for length in lengths]),
            torch.zeros(tokens, dtype=torch.long) if segments is None else torch.cat(list(segments)),
            Layout(
                cu_seqlens_S1=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
                lengths=lengths,
                sequence_ranges=((0, len(lengths)),),
                token_ranges=((0, tokens),),
            ),
        )

    return make


# --- a browser --------------------------------------------------------------------------------------------------------
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright, which brings none of its own here.

    Not for the whole session: while Playwright runs, no other test can start an event loop.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: sudo apt-get install chromium (make test tries to)")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]' brings Playwright")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


# --- pages and plots --------------------------------------------------------------------------------------------------
def svg_texts(svg: str) -> list[str]:
    """The words in a plot."""
    return ["".join(node.itertext()) for node in svg_tree(svg).iter() if node.tag.endswith("text")]


def svg_tree(svg: str) -> Element:
    return ElementTree.fromstring(svg.replace("xlink:href", "href"))


def svg_ids(svg: str) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', re.sub(r">[^<]*<", "><", svg)))


def assert_clean_svg(svg: str) -> None:
    """One SVG element that runs no script and loads nothing."""
    tree = svg_tree(svg)
    assert tree.tag == "svg"
    assert not {"script", "style", "metadata", "image"} & {node.tag for node in tree.iter()}
    assert not [key for node in tree.iter() for key in node.attrib if key.startswith("on")]
    assert "http" not in svg


class Page(HTMLParser):
    """Reads a page; checks that tags are closed in order; keeps tags, attributes and text."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source, self.open, self.words = text, list[str](), list[str]()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def found(self, tag: str, key: str) -> list[str]:
        """The values of an attribute of all tags of this name."""
        return [a[key] or "" for name, a in self.tags if name == tag and key in a]
