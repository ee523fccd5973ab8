# A task in Python: the function named task. Add a job of it by
#   atta add count_words '{"text": "to be or not to be"}'


def task(payload, helpers):
    words = payload.get("text", "").split()
    helpers.logger.info(f"{len(words)} words, {len(set(words))} different ones")
