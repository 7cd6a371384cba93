"""Protocol codecs: bytes in, commands out; replies in, bytes out. No sockets, no queues."""
