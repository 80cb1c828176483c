# cmake -DFILE=... -DOLD=... -DNEW=... -P change_rpath.cmake: replaces the search path of a library. NEW must not be longer.
file(RPATH_CHANGE FILE ${FILE} OLD_RPATH ${OLD} NEW_RPATH ${NEW})
