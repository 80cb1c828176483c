// Tells which ranks of a host still live. Private to comm.
#pragma once

#include <cstdint>
#include <utility>

#include "dtrain/base/descriptor.h"

namespace dtrain::comm {

/// Each rank of a host locks its own byte of a file that all of them have open; the system unlocks
/// it when the process ends, however it ends. So a rank needs one descriptor for any number of
/// others, and nobody without that file can pretend to be one.
///
/// Threads: any.
class Roster {
 public:
  /// `file`: the only descriptor of it that this process closes meanwhile, since that unlocks too.
  explicit Roster(base::Descriptor file) : file_(std::move(file)) {}

  /// Throws: Error{comm} with the system's reason.
  void enter(std::int64_t rank);
  /// Returns whether that rank has entered and lives. Ranks of the own process count as absent.
  [[nodiscard]] bool has(std::int64_t rank) const;

 private:
  base::Descriptor file_;
};

}  // namespace dtrain::comm
