// Distinguishes a disk that is full for now from one that is broken.
#pragma once

#include <cerrno>

namespace dtrain::base {

/// Returns whether a write failed with `error` for lack of room (disk, quota, limit on file sizes),
/// which somebody may make.
[[nodiscard]] constexpr bool is_full_disk(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

}  // namespace dtrain::base
