"""Extensions of ASGI that our server has, by the names under which a scope's ``extensions`` hold them."""

PEER = "quartermaster.peer"  # where the connection comes from, be it a proxy
ABORT = "quartermaster.abort"  # drops the connection without waiting for its reader
# writes a further piece of a streamed body at once. False: its reader is slow, ``send`` is to be asked, which waits
WRITE = "quartermaster.write"
# sends a whole answer (status, headers that need no check, body) at once, with ``headers.NO_SNIFFING``. False: as
# ``WRITE``, and nothing was sent
ANSWER = "quartermaster.answer"
