import pytest

from quire.config import Config, ConfigError, load_config, parse_override


def write(tmp_path, text):
    path = tmp_path / "quire.toml"
    path.write_text(text, "utf-8")
    return path


def test_keys_left_out_keep_their_defaults(tmp_path):
    assert load_config(write(tmp_path, "page_size = 32")) == Config(page_size=32)


def test_an_override_wins_over_the_file(tmp_path):
    path = write(tmp_path, "page_size = 32")
    assert load_config(path, {"page_size": 8}) == Config(page_size=8)


def test_an_unknown_page_format_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="--set: page_format must be float32 or int8, not 'int4'"):
        load_config(None, {"page_format": "int4"})


@pytest.mark.parametrize(("text", "value"), [("page_size=8", 8), ("page_format=int8", "int8")])
def test_a_value_may_leave_its_quotes_out(text, value):
    assert parse_override(text)[1] == value


@pytest.mark.parametrize("text", ["page_sise = 32", "page_size = 0", "page_size = true", 'page_size = "8"'])
def test_what_cannot_be_meant_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="page_si"):
        load_config(write(tmp_path, text))
