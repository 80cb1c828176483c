// A pipe between processes of dtrun, or between dtrun and a rank.
#pragma once

#include <chrono>

#include "dtrain/base/descriptor.h"

namespace launcher {

struct Pipe {
  dtrain::base::Descriptor reader;
  dtrain::base::Descriptor writer;
};

/// Makes a pipe whose ends close on exec, and whose reader does not block.
///
/// Throws: Error{spawn}.
[[nodiscard]] Pipe make_pipe();

/// Returns whether a read gives something, or the end, within `limit`.
[[nodiscard]] bool is_readable_within(const dtrain::base::Descriptor& reader,
                                      std::chrono::milliseconds limit);

}  // namespace launcher
