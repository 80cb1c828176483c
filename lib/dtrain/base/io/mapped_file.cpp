#include "dtrain/base/io/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/text/text.h"

namespace dtrain::base {

// Never freed, because the signal handler may be reading the list. `begin` is written last, and is
// 0 while the entry is free.
struct MappingGuard::Entry {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::string line{};
  int status = 0;
  Entry* next = nullptr;
};

namespace {

std::mutex changes;  // of the list
std::atomic<MappingGuard::Entry*> entries{nullptr};
struct sigaction previous {};

// Restores the previous action. A fault recurs when this returns; a sent signal is raised again.
void handle_as_before(bool is_fault) {
  ::sigaction(SIGBUS, &previous, nullptr);
  if (!is_fault) ::raise(SIGBUS);
}

// Runs in the faulting thread, with any lock held: async-signal-safe calls only.
void handle_fault(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const bool is_missing_page = info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const MappingGuard::Entry* entry = is_missing_page ? entries.load() : nullptr;
  for (; entry != nullptr; entry = entry->next) {
    const std::uintptr_t begin = entry->begin.load();
    if (begin == 0 || address < begin || address >= entry->end.load()) continue;
    [[maybe_unused]] const auto written =
        ::write(STDERR_FILENO, entry->line.data(), entry->line.size());
    ::_exit(entry->status);
  }
  // Some machine memory errors are reported without a fault.
  handle_as_before(info->si_code > 0 && info->si_code != BUS_MCEERR_AO);
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = handle_fault;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &previous);
}

MappingGuard::Entry* free_entry() {
  for (auto* entry = entries.load(); entry != nullptr; entry = entry->next) {
    if (entry->begin.load() == 0) return entry;
  }
  if (entries.load() == nullptr) install_handler();
  auto* made = new MappingGuard::Entry{.next = entries.load()};
  entries.store(made);
  return made;
}

}  // namespace

MappingGuard::MappingGuard(std::span<const std::byte> bytes, ErrorKind kind,
                           std::string_view message) {
  const std::lock_guard lock(changes);
  Entry* entry = free_entry();
  entry->line = "dtrain: error: " + printable(message) + "\n";
  entry->status = static_cast<int>(kind);
  entry->end.store(reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()));
  entry->begin.store(reinterpret_cast<std::uintptr_t>(bytes.data()));
  entry_.reset(entry);
}

void MappingGuard::Release::operator()(Entry* entry) const {
  const std::lock_guard lock(changes);
  entry->begin.store(0);
}

MappedFile MappedFile::open(const std::string& path, const FileRole& role) {
  const InputFile file = InputFile::open(path, role);
  const auto size = static_cast<std::size_t>(file.size());
  void* memory = nullptr;
  const int result = retry_transient(path, [&] {
    memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    return memory == MAP_FAILED && errno != ENODEV ? -1 : 0;
  });
  if (result != 0 || memory == MAP_FAILED) {
    const int error = errno;
    const std::string text = fmt::format("{} '{}' cannot be mapped ({}); {}", role.what, path,
                                         std::strerror(error), role.advice);
    if (error == ENODEV) throw Error(role.kind, text);  // its file system never maps files
    fail_on_storage(role.kind, error, text);
  }
  MappedFile mapped;
  mapped.path_ = path;
  mapped.memory_ = {static_cast<const std::byte*>(memory), Unmap{size}};
  mapped.guard_ = MappingGuard(
      mapped.bytes(), role.kind,
      fmt::format("{} '{}' cannot be read any more: it was shortened while it was in use, or its "
                  "disk failed; to replace a file in use, rename a new one over it",
                  role.what, path));
  return mapped;
}

void MappedFile::Unmap::operator()(const std::byte* memory) const {
  // The pages come from mmap and are const only by our own promise, so the cast is safe.
  ::munmap(const_cast<std::byte*>(memory), size);
}

}  // namespace dtrain::base
