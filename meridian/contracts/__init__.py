"""Generated from proto/ by `python proto/generate.py`; committed so that users need no protobuf compiler."""
