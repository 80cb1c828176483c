"""What ranks do, and the status with which a launcher of two of them ends."""

# Shell texts of a rank, which finds its number in RANK.
RANKS = {"all end well": ("exit 0", 0),
         "one fails": ("[ $RANK = 1 ] && exit 3; exec sleep 20", 3),
         "one fails, and others say so": ("[ $RANK = 1 ] && sleep 0.05 && exit 3; exit 4", 3),
         "one is killed": ("[ $RANK = 1 ] && kill -9 $$; exec sleep 20", 137),
         "one gets SIGTERM": ("[ $RANK = 1 ] && kill $$; exec sleep 20", 143),
         "one is stopped": ("[ $RANK = 1 ] && kill -STOP $$; exec sleep 20", 5),
         "one only says that another failed": ("[ $RANK = 1 ] && exit 4; exec sleep 20", 4),
         "one saves and leaves, outside of dtrain": ("exit 9", 9)}
