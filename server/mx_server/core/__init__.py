"""What the server decides, as pure functions on frozen records: no I/O, no clock.

`requests` reads messages into `records`, `rules` judges rows, `answers` writes messages.
"""
