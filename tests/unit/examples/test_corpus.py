import numpy as np
import pytest
from corpus import Corpus, load_corpus, rank_rows
from hypothesis import given
from hypothesis import strategies as st


def test_a_batch_depends_on_seed_and_step_alone():
    corpus = Corpus.of(bytes(range(256)) * 4)
    corpus.global_batch(0, 1, 8, 16)
    first = corpus.global_batch(0, 7, 8, 16)
    again = Corpus.of(bytes(range(256)) * 4).global_batch(0, 7, 8, 16)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, corpus.global_batch(0, 8, 8, 16))
    assert not np.array_equal(first, corpus.global_batch(1, 7, 8, 16))


def test_targets_are_the_next_bytes_of_the_text():
    tokens, targets = Corpus.of(bytes(range(100))).global_batch(0, 1, 4, 10)
    np.testing.assert_array_equal(targets, tokens + 1)


@given(st.integers(1, 9), st.integers(1, 40))
def test_the_ranks_share_the_batch_without_overlap(world_size, rows):
    taken = [row for rank in range(world_size) for row in range(rows)[rank_rows(rank, world_size, rows)]]
    assert taken == list(range(rows))


def test_a_text_shorter_than_a_row_is_refused():
    with pytest.raises(ValueError, match="10 bytes"):
        Corpus.of(b"0123456789").global_batch(0, 1, 1, 16)


def test_the_default_text_is_the_language_reference(tmp_path):
    corpus = load_corpus(None)
    assert len(corpus.tokens) > 200_000
    assert b"statement" in corpus.tokens.tobytes()
    file = tmp_path / "text"
    file.write_bytes(b"hello")
    assert load_corpus(file).tokens.tobytes() == b"hello"
