"""What the fork server of ranks imports first, and nobody else: to import it is the one way to run something there.

From here on the fork server ends with the agent, and with it the ranks. Without this it would end with the last rank
only, since each of them holds what the server watches its parent by.
"""

from videoserve.lifeline import bind_to_parent

bind_to_parent()
