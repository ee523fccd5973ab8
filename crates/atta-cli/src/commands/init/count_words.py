# A task in Python: a function named task. To add a job, run
#   atta add count_words '{"text": "to be or not to be"}'


def task(payload, helpers):
    words = payload.get("text", "").split()
    helpers.logger.info(f"{len(words)} words, {len(set(words))} different ones")
