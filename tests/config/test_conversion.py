import pytest

from denserk.config.conversion import ConversionSettings
from denserk.errors import UsageError


@pytest.mark.parametrize("tag", ["", "two words", "tab\t"])
def test_a_tag_is_one_word(tag):
    with pytest.raises(UsageError, match="white space"):
        ConversionSettings(tag=tag)
