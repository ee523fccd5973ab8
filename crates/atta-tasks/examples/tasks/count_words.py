# A task in Python: a function named task.


def task(payload, helpers):
    helpers.logger.info(f"{len(payload['text'].split())} words")
