// Turns a fault in memory that is mapped from a file into an error line and an exit status.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::base {

/// While it exists, a page of `bytes` that the system cannot provide (the file was shortened, its
/// disk failed) ends the process with "dtrain: error: MESSAGE" and the status of `kind`, from
/// whichever thread touched it: no destructor runs. Every other SIGBUS stays what it was: a fault
/// elsewhere, a memory error of the machine, a signal sent by a process.
///
/// Threads: any; faults are handled without locks and without memory.
class MappingGuard {
 public:
  MappingGuard() = default;
  MappingGuard(std::span<const std::byte> bytes, ErrorKind kind, std::string_view message);
  MappingGuard(MappingGuard&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  MappingGuard& operator=(MappingGuard&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;
  ~MappingGuard();

  struct Entry;

 private:
  Entry* entry_ = nullptr;
};

}  // namespace dtrain::base
