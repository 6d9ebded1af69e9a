import denserk.errors as errors


def test_where_it_happened():
    assert str(errors.InputError("-", 2, "a", "b")).startswith("standard input, line 2: found a")
    assert str(errors.InputError("f", None, "a", "b")) == "f: found a; expected b"
