// Reads from descriptors that another program may have made non-blocking, such as standard input.
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>

namespace dtrain::base {

/// Reads at most to.size() bytes, as ::read does, after waiting for input whatever the descriptor's
/// flags are. Returns 0 at the end; -1, with errno set, if the descriptor cannot be read.
///
/// on_wait: called repeatedly during the wait; may throw to end it; may be empty.
[[nodiscard]] ssize_t blocking_read(int descriptor, std::span<char> to,
                                    const std::function<void()>& on_wait = {});

}  // namespace dtrain::base
