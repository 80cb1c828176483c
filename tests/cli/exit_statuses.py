"""What ranks do, and the status with which a launcher of two of them ends."""

# Shell texts of a rank, which finds its number in RANK. Of two that fail, rank 1's FIFO ends with rank 0.
RANKS = {"all end well": ("exit 0", 0),
         "one fails": ("[ $RANK = 1 ] && exit 3; exec sleep 20", 3),
         "one fails, and others say so": ("mkfifo $0.fifo 2>&-; [ $RANK = 1 ] && { read line < $0.fifo; exit 3; }; "
                                          "exec 3> $0.fifo; exit 4", 3),
         "one is killed": ("[ $RANK = 1 ] && kill -9 $$; exec sleep 20", 137),
         "one gets SIGTERM": ("[ $RANK = 1 ] && kill $$; exec sleep 20", 143),
         "one is stopped": ("[ $RANK = 1 ] && kill -STOP $$; exec sleep 20", 5),
         "one only says that another failed": ("[ $RANK = 1 ] && exit 4; exec sleep 20", 4),
         "one saves and leaves, outside of dtrain": ("exit 9", 9)}
