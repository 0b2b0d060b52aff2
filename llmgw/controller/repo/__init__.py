"""Git: commits are read here, the record is kept here."""
