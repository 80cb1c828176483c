#include "dtrain/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

namespace dtrain::base {

void secure_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
  std::signal(SIGPIPE, SIG_IGN);
}

void survive_file_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace dtrain::base
