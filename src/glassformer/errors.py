"""What a user did wrong, told in one line."""


class UserError(Exception):
    """A mistake that its message lets the user mend: what, where (file:line), the limit, and the flag that mends it.

    The command line prints the message alone and exits with 2; a Python caller catches this one type.
    """
