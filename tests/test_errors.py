import inspect

import denserk.errors as errors


def test_the_tree_in_the_docstring_is_whole():
    for name, item in vars(errors).items():
        if inspect.isclass(item) and issubclass(item, errors.DenserkError):
            assert f"{name} " in (errors.__doc__ or "")


def test_where_it_happened():
    assert str(errors.InputError("-", 2, "a", "b")).startswith("standard input, line 2: found a")
    assert str(errors.InputError("f", None, "a", "b")) == "f: found a; expected b"
