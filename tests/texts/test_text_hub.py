import json
import sys

import datasets
import pytest

from kingpost.errors import KingpostError, UsageError
from kingpost.texts import load_text
from kingpost.texts.hub import parse
from kingpost.texts.sources import read_documents


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))


def texts(source):
    return [(document.name, document.text) for document in read_documents(source, [])]


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "set" / "train.jsonl", [{"text": f"row {i}", "n": i} for i in range(3)])
    write_rows(tmp_path / "set" / "test.jsonl", [{"text": "held out", "n": 0}])
    return tmp_path / "set"


def test_a_local_folder_gives_train_or_the_split_asked_for(folder):
    train = [("set:0", "row 0"), ("set:1", "row 1"), ("set:2", "row 2")]
    assert texts(f"hf:{folder}") == texts(f"hf:{folder}@train") == train
    assert texts(f"hf:{folder}@test") == [("set:0", "held out")]


def test_the_only_split_is_taken_and_of_several_one_must_be_named(folder):
    (folder / "train.jsonl").unlink()
    assert texts(f"hf:{folder}") == [("set:0", "held out")]
    write_rows(folder / "validation.jsonl", [{"text": "v", "n": 0}])
    with pytest.raises(UsageError, match="has no split 'train', only validation, test"):
        texts(f"hf:{folder}")
    with pytest.raises(UsageError, match=r"has no split 'dev', only .*: add one of them as @SPLIT"):
        texts(f"hf:{folder}@dev")


def test_a_config_of_a_local_folder(folder):
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: test.jsonl\n"
        "- config_name: big\n  data_files: train.jsonl\n---\n"
    )
    assert texts(f"hf:{folder}/small") == [("set:0", "held out")]
    assert len(texts(f"hf:{folder}/big@train")) == 3
    with pytest.raises(KingpostError, match=r"'none' not found.*check the name, the config"):
        texts(f"hf:{folder}/none")


def test_the_field_is_chosen_as_in_a_file(tmp_path):
    write_rows(tmp_path / "set" / "a.jsonl", [{"n": 1, "body": None}, {"n": 2, "body": "b"}])
    assert texts(f"hf:{tmp_path}/set") == [("set:1", "b")]
    write_rows(tmp_path / "two" / "a.jsonl", [{"title": "t", "body": "b", "n": 1}])
    with pytest.raises(
        KingpostError, match=r"two needs a field 'text'.* are title, body, n: rename"
    ):
        texts(f"hf:{tmp_path}/two")


def test_rows_become_sequences(folder, plain_model):
    write_rows(folder / "train.jsonl", [{"text": "the fox " * 50, "n": 0}])
    text = load_text(f"hf:{folder}", model=plain_model, length=20)
    whole = plain_model.tokenizer("the fox " * 50, verbose=False)["input_ids"]
    assert text.n_available == len(whole) // 20
    assert set(text.documents) == {"set:0"}


def test_the_code_of_a_dataset_is_not_run(folder, tmp_path):
    (folder / "set.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(KingpostError, match="could not be read"):
        texts(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()


def test_a_missing_package_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(KingpostError, match=r"needs the package datasets: pip install 'kingpost\["):
        texts(f"hf:{folder}")


@pytest.mark.parametrize(
    ("source", "readings", "split"),
    [
        ("hf:imdb", [("imdb", None)], None),
        ("hf:imdb@test", [("imdb", None)], "test"),
        ("hf:org/name@test", [("org/name", None), ("org", "name")], "test"),
        ("hf:org/name/cfg", [("org/name", "cfg")], None),
        ("hf:/", [("/", None)], None),
    ],
)
def test_parsing(source, readings, split):
    assert parse(source) == (readings, split)


def test_an_at_sign_of_a_path_is_no_split(tmp_path):
    (tmp_path / "a@b" / "c").mkdir(parents=True)
    assert parse(f"hf:{tmp_path}/a@b/c") == ([(f"{tmp_path}/a@b/c", None)], None)
    assert parse(f"hf:{tmp_path}/a@b/c@x") == ([(f"{tmp_path}/a@b/c", None)], "x")


@pytest.mark.parametrize("source", ["hf:", "hf:@train", "hf:a/b/c/d", "hf:/no/such", "hf:a//b"])
def test_a_name_that_cannot_be_one_is_a_usage_error(source):
    with pytest.raises(UsageError, match="names no dataset and no local folder: write hf:NAME"):
        parse(source)


class FakeHub:
    """A Hub on which some datasets exist; the real one cannot be reached from a test."""

    def __init__(self, *names):
        self.names, self.asked = names, []

    def load_dataset(self, name, config, *, streaming):
        assert streaming
        self.asked.append((name, config))
        if name not in self.names:
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset {name!r} is not there.")
        rows = datasets.Dataset.from_dict({"text": [f"{name} {config}"]})
        return {"train": rows.to_iterable_dataset()}


@pytest.mark.parametrize(
    ("there", "document"),
    [("org/name", ("org/name:0", "org/name None")), ("org", ("org:0", "org name"))],
)
def test_two_parts_are_owner_and_name_or_else_name_and_config(monkeypatch, there, document):
    monkeypatch.setattr(datasets, "load_dataset", FakeHub(there).load_dataset)
    assert texts("hf:org/name") == [document]


def test_a_dataset_that_is_not_there_is_one_sentence(monkeypatch):
    hub = FakeHub()
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    with pytest.raises(KingpostError) as error:
        texts("hf:org/name")
    assert str(error.value).startswith(
        "'hf:org/name' could not be read (Dataset 'org/name' is not there): check the name"
    )
    assert hub.asked == [("org/name", None), ("org", "name")]
