import pytest

from quire.config import Config, ConfigError, load_config


def write(tmp_path, text):
    path = tmp_path / "quire.toml"
    path.write_text(text, "utf-8")
    return path


def test_keys_left_out_keep_their_defaults(tmp_path):
    assert load_config(write(tmp_path, "page_size = 32")) == Config(page_size=32)


@pytest.mark.parametrize("text", ["page_sise = 32", "page_size = 0", "page_size = true", 'page_size = "8"'])
def test_what_cannot_be_meant_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="page_si"):
        load_config(write(tmp_path, text))
