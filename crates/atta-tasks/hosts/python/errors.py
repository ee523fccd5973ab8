"""The texts of errors: the message first, then where the error came from."""

import traceback

LONGEST_ERROR = 32 * 1024


def cut(text, longest):
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more characters)"


def message_of(error):
    try:
        text = str(error)
    except Exception as read_error:
        text = f"(its text can't be read because of {type(read_error).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def code_of(error):
    """The SQLSTATE of a database error, or another code that the error has."""
    for name in ("sqlstate", "pgcode", "code", "errno"):
        try:
            code = getattr(error, name, None)
        except Exception:
            continue
        if isinstance(code, (str, int)) and not isinstance(code, bool):
            return code
    return None


def error_text(error):
    """The message of an error, then its stack frames, without those of the host."""
    start = error.__traceback__
    while start and start.tb_frame.f_code.co_filename.startswith(("atta-host/", "<frozen importlib")):
        start = start.tb_next
    try:
        frames = traceback.format_exception(type(error), error, start)
    except Exception:
        frames = traceback.format_tb(start)
    code = code_of(error)
    kind = "" if code is None else f"code: {code}\n"
    return cut(message_of(error) + "\n" + kind + "".join(frames).rstrip(), LONGEST_ERROR)
