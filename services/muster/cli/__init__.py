"""The command line: `muster COMMAND`. One file a command, named after it."""
