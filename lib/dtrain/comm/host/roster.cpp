#include "dtrain/comm/host/roster.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::comm {

namespace {

struct flock byte_of(std::int64_t rank) {
  struct flock byte {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = rank;
  byte.l_len = 1;
  return byte;
}

}  // namespace

void Roster::enter(std::int64_t rank) {
  struct flock byte = byte_of(rank);
  if (::fcntl(file_.get(), F_SETLK, &byte) == 0) return;
  base::fail(base::ErrorKind::comm, "cannot lock a byte of shared memory (fcntl): {}",
             std::strerror(errno));
}

bool Roster::has(std::int64_t rank) const {
  struct flock byte = byte_of(rank);
  return ::fcntl(file_.get(), F_GETLK, &byte) != 0 || byte.l_type != F_UNLCK;
}

}  // namespace dtrain::comm
