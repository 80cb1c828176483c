#include "support/fake_device/stray_access.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "support/fake_device/memory.h"

namespace dtrain::testing::fake {
namespace {

bool is_write(const void* context) {
  constexpr greg_t kWriteBit = 2;  // of x86's page fault error code
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
}

void report(const char* who, const char* verb, const void* address) {
  std::array<char, 256> line{};
  int length = 0;
  if (const BlockPtr block = memory().find_at_fault(address)) {
    const bool is_pinned = block->place == Place::pinned;
    length =
        std::snprintf(line.data(), line.size(),
                      "fake device: %s %s byte %zu of %s allocation %llu (%zu bytes)%s\n", who,
                      verb, memory().offset_in(*block, address), is_pinned ? "pinned" : "device",
                      static_cast<unsigned long long>(block->number), block->bytes,
                      is_pinned ? " while a copy uses it" : "");
  } else {
    length = std::snprintf(line.data(), line.size(),
                           "fake device: %s %s memory that is free or beyond an allocation\n", who,
                           verb);
  }
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), static_cast<std::size_t>(length));
}

void on_fault(int signal_number, siginfo_t* info, void* context) {
  const void* const address = info->si_addr;
  const bool is_host = memory().is_for_host(address);
  if (is_host || memory().is_for_kernels(address)) {
    report(is_host ? "the host" : "a kernel", is_write(context) ? "writes" : "reads", address);
  }
  signal(signal_number, SIG_DFL);  // the access faults again, and ends the process
}

}  // namespace

void report_stray_accesses() {
  (void)memory();  // a handler cannot make it
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace dtrain::testing::fake
