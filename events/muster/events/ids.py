"""What an id says by itself."""


def made_us(job: str) -> int | None:
    """When an id that is a UUIDv7 was made, by its maker's clock, in microseconds since 1970; None of any other id."""
    if len(job) == 36 and job[14] == "7" and job[8] == job[13] == "-":
        try:
            return 1000 * int(job[:8] + job[9:13], 16)
        except ValueError:
            return None
    return None
