"""The gateway: the cell over HTTP, for people, programs and agents. It shows only what admitted cycles say."""
