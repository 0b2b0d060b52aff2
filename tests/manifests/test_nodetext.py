"""Manifests of nodes as they are written: what is read back is what was meant, and a document goes without harm to others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.manifests import yamltext
from llmgw.manifests.load import load
from llmgw.manifests.nodetext import Remarks, node_text, scalar, without_document
from llmgw.model.manifest import Expect, FromFile, NodeSpec, Ssh

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFqKzSDEpTiYmhtPcACf4pM2zqRk32aRIwTbUzZSMBcf"
WHOLE = NodeSpec(
    pool="big",
    ssh=Ssh(
        host="fd00::12",
        port=2222,
        user="ops",
        become="sudo",
        host_keys=(KEY, "ssh-rsa AAAA"),
        identity=FromFile(from_file="~/.ssh/id: #1"),
        agent=True,
        jump="ops@bastion.example.org:2200",
        jump_host_keys=(KEY,),
    ),
    address="10.0.0.12",
    expect=Expect(gpus=8, gpu_class="h100-80g"),
    python="/usr/bin/python3.12",
)
PLAIN = NodeSpec(ssh=Ssh(host="10.0.0.11", host_keys=(KEY,)))


@pytest.mark.parametrize("spec", [WHOLE, PLAIN], ids=["every-field", "defaults"])
def test_what_is_written_is_read_back_as_the_same_node(spec: NodeSpec) -> None:
    remarks = Remarks(machine=["8 x H100 80GB.", "seen"], address="eth0 holds it", fabric=["mlx5_0 port 1"])
    text = node_text("gpu01", spec, remarks=remarks, schema="../.schemas/node.schema.json")
    (node,) = load({"nodes/gpu01.yaml": text.encode()}, commit=None, path=".").nodes
    assert (node.metadata.name, node.spec) == ("gpu01", spec)
    assert text.startswith("# yaml-language-server: $schema=../.schemas/node.schema.json\n")
    assert "# 8 x H100 80GB." in text
    assert "eth0 holds it" in text
    assert "fabrics: [{name: ib-a, hcas: [mlx5_0]}]" in text


@given(
    text=st.text(
        alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=["Cc", "Cs"]),
        min_size=1,
    )
)
def test_any_text_stays_that_text(text: str) -> None:
    documents, problems = yamltext.read("x.yaml", f"key: {scalar(text)}\n".encode())
    assert not problems
    assert documents[0].data == {"key": text}


@pytest.mark.parametrize(
    "word", ["no", "On", "null", "1.10", "0777", "22:22", "1e5", "~", "- x", "a: b", "10.0.0.11", "true"]
)
def test_words_that_mean_something_to_yaml_stay_text(word: str) -> None:
    documents, _ = yamltext.read("x.yaml", f"- {scalar(word)}\n".encode())
    assert documents[0].data == [word]


def _document(name: str) -> str:
    return f"# about {name}\nkind: Node\nmetadata: {{name: {name}}}\n"


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_one_document_goes_and_the_others_stay_as_they_are(gone: str) -> None:
    text = "# yaml-language-server: $schema=x\n" + "---\n".join(map(_document, "abc"))
    line = next(number for number, it in enumerate(text.splitlines(), 1) if f"name: {gone}" in it)
    rest = without_document(text, line)
    documents, problems = yamltext.read("x.yaml", rest.encode())
    assert not problems
    assert [it.data["metadata"]["name"] for it in documents] == [it for it in "abc" if it != gone]
    assert rest.startswith("# yaml-language-server: $schema=x\n")
    assert f"about {gone}" not in rest


def test_the_last_document_leaves_nothing() -> None:
    assert without_document("# only\n---\n" + _document("a"), 4) == ""
    assert without_document(_document("a"), 2) == ""
