"""Files of generated text."""

from denserk.io.json_records import write_objects


def write_expansions(path, expansions):
    return write_objects(path, (expansion._asdict() for expansion in expansions))
