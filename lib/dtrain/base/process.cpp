#include "dtrain/base/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace dtrain::base {

void secure_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
  std::signal(SIGPIPE, SIG_IGN);
}

void survive_file_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

void hold_requests_to_save() {
  sigset_t requests;
  ::sigemptyset(&requests);
  ::sigaddset(&requests, SIGUSR1);
  ::sigaddset(&requests, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &requests, nullptr);
}

void end_process(int status) {
#ifdef __SANITIZE_ADDRESS__
  std::exit(status);
#else
  std::fflush(nullptr);
  ::_exit(status);
#endif
}

}  // namespace dtrain::base
