"""Reading hostile JSON lives in `loadsheet.safejson`; the names stay here for those who import them so."""

from loadsheet.safejson import file_label, load_json, open_regular, parse_json

__all__ = ["file_label", "load_json", "open_regular", "parse_json"]
