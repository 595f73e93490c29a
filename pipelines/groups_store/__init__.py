"""What a build remembers, so that the next one need only look at what is new.

The unit is a **group**: everything about one prompt key (its interactions, their feedback, all copies of
both, the rows and fates that came of them), or feedback that waits for the same missing interaction or
session. A build writes one immutable **segment** with the groups it worked on; of a group that is in several
segments the newest counts, and a group that became empty is there as an empty one. The file `state.json` names
the segments that count; it is replaced atomically at the end of a build.
"""
