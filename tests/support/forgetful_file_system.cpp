// Stand-in.
