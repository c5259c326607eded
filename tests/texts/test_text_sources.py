import inspect
import json
import json.decoder
from pydoc_data.topics import topics

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kingpost.errors import KingpostError, UsageError
from kingpost.texts import documents as documents_module
from kingpost.texts import load_text
from kingpost.texts import sources as sources_module
from kingpost.texts.sources import read_documents


def read(source, **options):
    """Name and text of every document, and the notes."""
    notes = []
    documents = read_documents(str(source), notes, **options)
    return {document.name: document.text for document in documents}, notes


def fails(source, message, kind=KingpostError):
    with pytest.raises(kind) as error:
        read(source)
    assert type(error.value) is kind or issubclass(type(error.value), KingpostError)
    text = str(error.value)
    assert message in text
    assert "\n" not in text
    return text


def test_python_docs_are_the_topics_by_name():
    found, notes = read("python-docs")
    assert list(found) == sorted(topics)
    assert found == topics
    assert notes == []


def test_python_docs_are_the_default(plain_model):
    text = load_text(model=plain_model)
    assert text.source == "python-docs"
    assert text.token_ids.shape == (16, 256)
    names = {name.split("+")[0] for name in text.documents}
    assert names <= set(topics)
    assert (
        plain_model.tokenizer.decode(text.token_ids[0])[:200]
        in (topics[text.documents[0].split("+")[0]])
        or "+" in text.documents[0]
    )


@pytest.mark.parametrize("name", ["a.txt", "a.md", "notes", "a.py", "a.JSON"])
def test_a_file_of_any_suffix_is_one_document(tmp_path, name):
    content = "Zeile eins\r\n\tzwei \x01 é 漢\n\n"
    (tmp_path / name).write_bytes(content.encode())
    assert read(tmp_path / name) == ({name: content}, [])


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbftext \xef\xbb\xbfhere")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "row"}\n')
    assert read(tmp_path / "a.txt")[0] == {"a.txt": "text \ufeffhere"}
    assert read(tmp_path / "a.jsonl")[0] == {"a.jsonl:1": "row"}


def test_jsonl_has_a_document_for_each_line(tmp_path):
    lines = ['{"id": "x", "text": "one\\u0000"}', "", '{"text": "two"}\r', '{"text": null}', "  "]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"text": "last"}']), newline="")
    found, notes = read(tmp_path / "a.jsonl")
    assert found == {"a.jsonl:1": "one\0", "a.jsonl:3": "two", "a.jsonl:6": "last"}
    assert notes == ["1 empty document was left out."]


def test_the_only_string_field_is_taken(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "body": "one"}\n{"body": "two", "n": 2}\n')
    pa.parquet.write_table(pa.table({"n": [1, 2], "body": ["x", "y"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.jsonl")[0] == {"a.jsonl:1": "one", "a.jsonl:2": "two"}
    assert read(tmp_path / "a.parquet")[0] == {"a.parquet:0": "x", "a.parquet:1": "y"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"title": "a", "body": "b"}', "a.jsonl:1 needs a field 'text'"),
        ('{"title": "a", "body": "b"}', "its fields are title, body: rename"),
        ('{"n": 1}', "its fields are n: rename"),
        ('{"text": ["a"], "body": "b"}', "its fields are text, body: rename"),
        ("{}", "its fields are none"),
        ('{"text": "a"}\n{"body": "b"}', "a.jsonl:2 has no string in the field 'text'"),
        ('{"text": "a"}\n{"text": 7}', "a.jsonl:2 has no string in the field 'text'"),
        ('{"text": "a"}\n\n{"text": "b"', "a.jsonl:3 is not JSON ("),
        ('{"text": "a"}\n["b"]', "a.jsonl:2 is JSON, but not an object"),
        ("[" * 200_000, "a.jsonl:1 is not JSON ("),
        ('{"text": "ab\\ud800"}', "a.jsonl:1 has half of a surrogate pair at character 2"),
    ],
)
def test_broken_jsonl_says_the_line(tmp_path, lines, message):
    (tmp_path / "a.jsonl").write_text(lines)
    fails(tmp_path / "a.jsonl", message)


def test_invalid_utf8_in_a_line_says_the_byte_of_the_file(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe9"}')
    fails(
        tmp_path / "a.jsonl", "a.jsonl is not UTF-8 at byte 24: convert it, for instance with iconv"
    )


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_has_a_document_for_each_row(tmp_path, kind):
    rows = [f"row {i}" for i in range(700)]
    table = pa.table({"title": ["t"] * 700, "text": pa.array(rows).cast(kind)})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    assert read(tmp_path / "a.parquet")[0] == {f"a.parquet:{i}": row for i, row in enumerate(rows)}


def test_a_null_of_parquet_is_an_empty_document(tmp_path):
    pa.parquet.write_table(pa.table({"text": ["a", None, " "]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == (
        {"a.parquet:0": "a"},
        ["2 empty documents were left out."],
    )


def test_parquet_without_a_text_lists_the_fields(tmp_path):
    pa.parquet.write_table(pa.table({"a": ["x"], "b": ["y"], "n": [1]}), tmp_path / "a.parquet")
    fails(tmp_path / "a.parquet", "its fields are a, b, n: rename")


def test_broken_parquet_is_an_error(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    fails(tmp_path / "a.parquet", "could not be read")


def test_a_folder_is_read_by_path_without_what_is_hidden(tmp_path):
    for name in ("b/z.txt", "b.txt", "a/c/x.md", ".git/no.txt", "a/.hidden", "a/empty.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if "empty" in name else name)
    (tmp_path / "a/rows.jsonl").write_text('{"text": "first"}\n{"text": "second"}')
    pa.parquet.write_table(pa.table({"text": ["cell"]}), tmp_path / "t.parquet")
    (tmp_path / "a/picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe{\0")
    (tmp_path / "loop").symlink_to(tmp_path)
    found, notes = read(tmp_path)
    assert list(found.items()) == [
        ("a/c/x.md", "a/c/x.md"),
        ("a/rows.jsonl:1", "first"),
        ("a/rows.jsonl:2", "second"),
        ("b.txt", "b.txt"),
        ("b/z.txt", "b/z.txt"),
        ("t.parquet:0", "cell"),
    ]
    assert notes == [
        "3 files were not UTF-8 text and left out: a/picture.png, bad.jsonl, latin.txt.",
        "1 empty document was left out.",
    ]


def test_a_line_gone_bad_in_a_folder_is_an_error_not_a_shorter_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe9"}')
    fails(tmp_path, "a.jsonl is not UTF-8 at byte 24")


def test_a_named_binary_file_is_an_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\x7fELF\0\0")
    fails(tmp_path / "a.bin", "has NUL bytes, so it is binary or UTF-16")
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16"))
    fails(tmp_path / "a.txt", "iconv -f UTF-16 -t UTF-8")


@pytest.mark.parametrize("offset", [0, 5, 2**20 - 1, 2**20, 2**20 + 1])
@pytest.mark.parametrize("bad", [b"\xff", b"\xe6\xbc", b"\xe6x"])
def test_invalid_utf8_says_the_byte(tmp_path, offset, bad):
    content = b"x" * offset + bad
    with pytest.raises(UnicodeDecodeError) as truth:
        content.decode()
    (tmp_path / "a.txt").write_bytes(content)
    text = fails(tmp_path / "a.txt", f"is not UTF-8 at byte {truth.value.start}: convert it")
    assert "iconv" in text


@pytest.mark.parametrize("name", ["nothing.txt", "no\0name", "x" * 5000])
def test_a_source_that_is_not_there_is_a_usage_error(tmp_path, name):
    fails(tmp_path / name, "there is no file or folder", UsageError)
    fails(
        tmp_path / name,
        "'hf:NAME' for a dataset, or what Python carries, 'python-docs'",
        UsageError,
    )


@pytest.mark.parametrize("content", ["", " \n\t\n"])
def test_a_source_without_text_is_an_error(tmp_path, content, plain_model):
    (tmp_path / "a.txt").write_text(content)
    for source in (tmp_path / "a.txt", tmp_path):
        with pytest.raises(KingpostError, match=f"'{source}' has no text in it: give a file"):
            load_text(str(source), model=plain_model)


def test_the_python_library_is_its_sources_texts_and_help_topics():
    found, notes = read("python-library", max_bytes=2**30)
    assert {name for name in found if name in topics} == {n for n in topics if topics[n].strip()}
    assert found["json/decoder.py"] == inspect.getsource(json.decoder)
    files = [name for name in found if name not in topics]
    assert all(name.endswith((".py", ".rst", ".txt")) for name in files)
    assert not any("site-packages" in name or "pydoc_data" in name for name in files)
    assert any(name.endswith(".txt") for name in files)
    assert len(files) > 500
    assert all("empty document" in note for note in notes)


def test_what_is_beyond_the_cap_is_left_out_and_said(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 600_000)
    (tmp_path / "b.txt").write_text("é" * 300_000)
    (tmp_path / "c.txt").write_text("c")
    found, notes = read(tmp_path, max_bytes=2**20)
    assert found == {"a.txt": "a" * 600_000, "b.txt": "é" * ((2**20 - 600_000) // 2)}
    assert notes == [
        "The source has more than is read, 1 MiB of text and 250,000 documents: it was cut "
        "at b.txt."
    ]


def test_a_text_as_long_as_the_cap_is_whole(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 1000)
    assert read(tmp_path / "a.txt", max_bytes=1000) == ({"a.txt": "a" * 1000}, [])
    (tmp_path / "a.txt").write_text("a" * 1001)
    found, notes = read(tmp_path / "a.txt", max_bytes=1000)
    assert found == {"a.txt": "a" * 1000}
    assert len(notes) == 1


def test_just_beyond_the_real_cap(tmp_path):
    most = documents_module.MAX_BYTES
    for more in (b"x", b"xxxx\xe6\xbc"):  # what is not read is not judged
        (tmp_path / "a.txt").write_bytes(b"a" * most + more)
        found, notes = read(tmp_path / "a.txt")
        assert len(found["a.txt"]) == most
        assert len(notes) == 1
    (tmp_path / "a.txt").write_bytes(b"a" * most + b"\xe6\xbc")
    fails(tmp_path / "a.txt", f"is not UTF-8 at byte {most}: ")


def test_documents_beyond_the_cap_are_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sources_module, "MAX_DOCUMENTS", 3)
    for n in (3, 4):
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": f"{i}"}) for i in range(n)))
        found, notes = read(tmp_path / "a.jsonl")
        assert list(found.values()) == ["0", "1", "2"]
        assert len(notes) == (n > 3)
    assert "and 3 documents: it was cut at a.jsonl:4." in notes[0]


def test_a_text_is_not_run(tmp_path, plain_model):
    marker = tmp_path / "ran"
    (tmp_path / "a.py").write_text(f"open({str(marker)!r}, 'w')\n" * 40)
    assert load_text(str(tmp_path / "a.py"), model=plain_model, length=20).n_available
    assert not marker.exists()
    assert np.all([path.name == "a.py" for path in tmp_path.iterdir()])
