import hashlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_models import FakeModel, byte_level, model_of

from kingpost.errors import KingpostError, UsageError
from kingpost.texts import Text, load_text

TEXT = "the quick brown fox jumps over a king post, and the load of the roof stays up. " * 40
ALL = 10_000


def ids_of(model, text):
    return model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def write(path, text):
    path.write_bytes(text.encode())
    return str(path)


def write_rows(path, texts):
    return write(path, "\n".join(json.dumps({"text": text}) for text in texts))


def in_order(text: Text) -> np.ndarray:
    """The drawn sequences, put back in the order of the pool."""
    order = np.random.default_rng(text.seed).permutation(text.n_available)[: len(text.token_ids)]
    back = np.empty_like(text.token_ids)
    back[order] = text.token_ids
    return back


def test_the_sequences_of_one_document_are_its_tokens_in_order(tmp_path, plain_model):
    source = write(tmp_path / "a.txt", TEXT)
    expected = ids_of(plain_model, TEXT)
    text = load_text(source, model=plain_model, n_sequences=ALL, length=50)
    n = len(expected) // 50
    assert text.token_ids.shape == (n, 50)
    assert text.token_ids.dtype == np.int64
    assert text.n_available == text.n_sequences == n
    assert in_order(text).ravel().tolist() == expected[: n * 50]
    assert set(text.documents) == {"a.txt"}
    assert (text.source, text.length, text.seed) == (source, 50, 0)
    assert TEXT.startswith(plain_model.tokenizer.decode(in_order(text).ravel()))
    tail = len(expected) - n * 50
    assert f"{tail} tokens were left out, in tails shorter than one sequence." in text.notes


def test_each_sequence_begins_as_the_tokenizer_begins_a_text(tmp_path, bos_model):
    assert bos_model.tokenizer("a")["input_ids"][0] == 0
    assert bos_model.tokenizer("a")["input_ids"][-1] == 1
    expected = ids_of(bos_model, TEXT)
    text = load_text(write(tmp_path / "a.txt", TEXT), model=bos_model, n_sequences=ALL, length=50)
    assert text.token_ids.shape == (len(expected) // 49, 50)
    assert (text.token_ids[:, 0] == 0).all()
    content = in_order(text)[:, 1:].ravel().tolist()
    assert content == expected[: len(content)]
    assert 1 not in text.token_ids  # a suffix is not added


def test_a_suffix_alone_is_no_prefix(tmp_path):
    model = model_of(byte_level(eos=True))
    text = load_text(write(tmp_path / "a.txt", TEXT), model=model, length=20)
    assert not np.isin([0, 1], text.token_ids).any()


def test_more_sequences_extend_fewer(tmp_path, plain_model):
    source = write(tmp_path / "a.txt", TEXT)
    few = load_text(source, model=plain_model, n_sequences=4, length=20, seed=3)
    more = load_text(source, model=plain_model, n_sequences=9, length=20, seed=3)
    other = load_text(source, model=plain_model, n_sequences=9, length=20, seed=4)
    assert more.token_ids[:4].tolist() == few.token_ids.tolist()
    assert more.token_ids.tolist() != other.token_ids.tolist()
    assert few.digest == more.digest == other.digest


def test_drawing_is_without_replacement(tmp_path, plain_model):
    numbers = " ".join(str(n) for n in range(2000))
    source = write(tmp_path / "a.txt", numbers)
    text = load_text(source, model=plain_model, n_sequences=ALL, length=20)
    assert len({tuple(row) for row in text.token_ids.tolist()}) == text.n_available


def test_the_digest_is_of_the_pool(tmp_path, plain_model):
    rows = ["one " * 30, "two " * 30]
    source = write_rows(tmp_path / "a.jsonl", rows)
    text = load_text(source, model=plain_model, n_sequences=1, length=10)
    ids = [np.array(ids_of(plain_model, row), dtype="<i4") for row in rows]
    counts = [len(row) // 10 for row in ids]
    pool = b"".join(row[: n * 10].tobytes() for row, n in zip(ids, counts, strict=True))
    names = [[f"a.jsonl:{i + 1}", n] for i, n in enumerate(counts)]
    head = json.dumps([10, names]).encode()
    assert text.digest == hashlib.sha256(head + b"\n" + pool).hexdigest()
    assert text.digest != load_text(source, model=plain_model, length=11).digest


def test_fewer_sequences_than_asked_are_all_taken_and_noted(tmp_path, plain_model):
    text = load_text(write(tmp_path / "a.txt", TEXT), model=plain_model, n_sequences=500, length=99)
    assert text.n_sequences == text.n_available < 500
    n = text.n_available
    assert text.notes[-1] == (
        f"The text gives {n} sequences, fewer than the 500 asked for: all were taken."
    )


def test_short_documents_are_joined_with_a_blank_line(tmp_path, plain_model):
    long = "post " * 100
    rows = ["the fox", long, "the dog", "", "a roof", "a king", "the load"]
    text = load_text(
        write_rows(tmp_path / "a.jsonl", rows), model=plain_model, n_sequences=ALL, length=8
    )
    groups, waiting = [], []
    for number, row in enumerate(rows, start=1):
        if len(ids_of(plain_model, row)) >= 8 or not row:
            continue
        waiting.append((number, row))
        joined = ids_of(plain_model, "\n\n".join(row for _, row in waiting))
        if len(joined) >= 8:
            groups.append((f"a.jsonl:{waiting[0][0]}+{len(waiting) - 1}", joined))
            waiting = []
    assert groups  # the case is what it is meant to be
    expected = {name: joined[: len(joined) // 8 * 8] for name, joined in groups}
    whole = ids_of(plain_model, long)
    expected["a.jsonl:2"] = whole[: len(whole) // 8 * 8]
    order = np.random.default_rng(0).permutation(text.n_available)
    got: dict[str, list[int]] = {}
    for index in np.argsort(order):
        got.setdefault(text.documents[index], []).extend(text.token_ids[index].tolist())
    assert got == expected
    joined = sum(int(name.split("+")[1]) + 1 for name, _ in groups)
    assert (
        f"{joined} documents shorter than one sequence were joined into {len(groups)}, "
        "with a blank line between."
    ) in text.notes
    assert "1 empty document was left out." in text.notes
    left = ids_of(plain_model, "\n\n".join(row for _, row in waiting))
    left_out = [note for note in text.notes if "too short for one sequence" in note]
    assert len(left_out) == bool(waiting)
    assert all(f"({len(left)} tokens)" in note for note in left_out)


def test_documents_are_not_joined_across_files(tmp_path, plain_model):
    write(tmp_path / "a.txt", "the fox")
    write(tmp_path / "b.txt", "the dog")
    write(tmp_path / "c.txt", TEXT)
    text = load_text(str(tmp_path), model=plain_model, n_sequences=ALL, length=20)
    assert set(text.documents) == {"c.txt"}
    tokens = len(ids_of(plain_model, "the fox")) + len(ids_of(plain_model, "the dog"))
    assert (
        "2 documents were left out: too short for one sequence, also when joined "
        f"({tokens} tokens)."
    ) in text.notes


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.text(st.sampled_from("the fox\n é漢"), max_size=60), min_size=1, max_size=12),
    length=st.integers(2, 30),
    bos=st.booleans(),
)
def test_no_token_is_lost_or_doubled(tmp_path, plain_model, bos_model, rows, length, bos):
    model: FakeModel = bos_model if bos else plain_model
    source = write_rows(tmp_path / "rows.jsonl", rows)
    try:
        text = load_text(source, model=model, n_sequences=ALL, length=length)
    except KingpostError as error:
        said = str(error)
        text = None
    if text is None:
        longest = len(ids_of(model, "\n\n".join(row for row in rows if row.strip())))
        assert "has no text in it" in said or longest < length - bos
        return
    content = in_order(text)[:, bos:]
    assert content.shape == (text.n_available, length - bos)
    order = np.random.default_rng(0).permutation(text.n_available)
    names = np.empty(text.n_available, dtype=object)
    names[order] = text.documents
    lines = [int(name.split(":")[1].split("+")[0]) for name in dict.fromkeys(names)]
    assert len(lines) == len(set(lines))
    short = [
        n
        for n, row in enumerate(rows, start=1)
        if row.strip() and len(ids_of(model, row)) < length - bos
    ]
    for name in dict.fromkeys(names):
        first, _, more = name.removeprefix("rows.jsonl:").partition("+")
        at = short.index(int(first)) if more else None
        members = short[at : at + int(more) + 1] if more else [int(first)]
        whole = ids_of(model, "\n\n".join(rows[n - 1] for n in members))
        fewer = ids_of(model, "\n\n".join(rows[n - 1] for n in members[:-1]))
        assert not more or len(fewer) < length - bos
        got = content[names == name].ravel().tolist()
        assert got == whole[: len(whole) // (length - bos) * (length - bos)]


def test_a_spelled_special_token_is_noted(tmp_path, plain_model):
    text = load_text(write(tmp_path / "a.txt", TEXT + "</s>" + TEXT), model=plain_model, length=20)
    assert "special tokens of the tokenizer, kept as they are: </s>." in text.notes[-1]


@pytest.mark.filterwarnings("error")
def test_no_warning_about_the_length_of_a_text(tmp_path, plain_model, caplog, capfd):
    load_text(write(tmp_path / "a.txt", TEXT), model=plain_model, length=20)
    load_text(write_rows(tmp_path / "a.jsonl", ["fox " * 20] * 3), model=plain_model, length=90)
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_control_characters_are_kept(tmp_path, plain_model):
    odd = "\x1b[31m{{7*7}} $(rm x) \x07\r\n\u202e<script> " * 20
    text = load_text(write(tmp_path / "a.txt", odd), model=plain_model, n_sequences=ALL, length=8)
    assert odd.startswith(plain_model.tokenizer.decode(in_order(text).ravel())[:-1])


def test_a_text_too_short_says_by_how_much(tmp_path, bos_model):
    source = write(tmp_path / "a.txt", "the quick brown fox")
    n = len(ids_of(bos_model, "the quick brown fox"))
    with pytest.raises(KingpostError) as error:
        load_text(source, model=bos_model, length=256)
    assert str(error.value) == (
        f"{source!r} has {n} tokens, too few for one sequence of 256: "
        f"give a longer text, or --length {n + 1} or less"
    )
    assert load_text(source, model=bos_model, length=n + 1).n_available == 1


def test_short_files_of_a_folder_say_which_length_would_do(tmp_path, plain_model):
    write(tmp_path / "a.txt", "the fox")
    write(tmp_path / "b.txt", "the quick brown dog")
    n = len(ids_of(plain_model, "the quick brown dog"))
    with pytest.raises(KingpostError, match=rf"at most {n} tokens in a file.*--length {n} or less"):
        load_text(str(tmp_path), model=plain_model, length=256)
    assert load_text(str(tmp_path), model=plain_model, length=n).documents == ("b.txt",)


def test_a_text_of_one_token_gets_no_impossible_advice(tmp_path, plain_model):
    with pytest.raises(KingpostError, match=r"has 1 tokens.*: give a longer text$"):
        load_text(write(tmp_path / "a.txt", "a"), model=plain_model, length=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 1}, "at least 2 tokens to have one to predict, but the length is 1"),
        ({"length": 4097}, "length 4097 is more than the 4096 positions.*--length 4096 or less"),
        ({"n_sequences": 0}, "--sequences is 0"),
        ({"seed": -1}, "--seed is -1"),
    ],
)
def test_a_number_out_of_range_is_a_usage_error(plain_model, arguments, message):
    with pytest.raises(UsageError, match=message):
        load_text(model=plain_model, **arguments)


def test_a_model_without_a_most_takes_any_length(tmp_path, plain_model):
    model = model_of(plain_model.tokenizer, max_length=None)
    assert load_text(write(tmp_path / "a.txt", TEXT * 9), model=model, length=5000).length == 5000


def test_a_model_without_tokenizer_is_an_error():
    with pytest.raises(KingpostError, match="the model has no tokenizer"):
        load_text(model=FakeModel(None, 10))


@pytest.mark.parametrize("at_most", [0, 255])
def test_a_tokenizer_of_another_model_is_an_error(tmp_path, plain_model, at_most):
    source = write(tmp_path / "a.txt", TEXT)
    largest = max(ids_of(plain_model, TEXT))
    rows = largest - at_most
    with pytest.raises(KingpostError, match=rf"token id {largest}, .* has {rows} rows"):
        load_text(source, model=FakeModel(plain_model.tokenizer, rows), n_sequences=500, length=5)
    model = FakeModel(plain_model.tokenizer, largest + 1)
    assert load_text(source, model=model, length=5).n_available
