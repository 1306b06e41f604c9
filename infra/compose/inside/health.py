#!/usr/bin/env -S python3 -I -S
"""Whether a program of Muster is well, for a container's health check: 0 it is, 1 it is not, with one sentence.

    health http PORT PATH         something listens there and answers; that it wants a token is an answer
    health process FILE           the process whose number stands in the file lives
    health fresh FILE SECONDS     the file was written within so many seconds: an agent's lease is, at each acknowledged report

It runs every few seconds in every container, so it loads nothing of Muster: only the standard library is used.
"""

import http.client
import os
import sys
import time

WELL = (200, 401)


def main(words: list[str]) -> str:
    """What is wrong; empty where nothing is."""
    match words:
        case ["http", port, path]:
            return listens(int(port), path)
        case ["process", file]:
            return lives(file)
        case ["fresh", file, seconds]:
            return fresh(file, int(seconds))
    return "nothing was named that can be looked at: http PORT PATH, process FILE or fresh FILE SECONDS would be"


def listens(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=4)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
    return "" if status in WELL else f"{path} at port {port} answers {status}"


def lives(file: str) -> str:
    try:
        with open(file) as lock:
            os.kill(int(lock.read()), 0)
    except (OSError, ValueError) as error:
        return f"the process of {file} does not run: {error}"
    return ""


def fresh(file: str, seconds: int) -> str:
    try:
        age_s = time.time() - os.stat(file).st_mtime
    except OSError as error:
        return f"{file} cannot be looked at: {error}"
    return "" if age_s <= seconds else f"{file} was written {age_s:.0f} s ago, and not within {seconds} s"


if __name__ == "__main__":
    wrong = main(sys.argv[1:])
    if wrong:
        print(wrong)
        raise SystemExit(1)
