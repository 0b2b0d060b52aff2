"""Programs that run on nodes by themselves, standard library only, imported by nobody."""
